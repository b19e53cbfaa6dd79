"""Requests without a producer, decided without a database."""

from dataclasses import replace

import pytest

from service.domain.log.appending import (
    APPEND,
    SERVER_PRODUCER,
    DoneRequest,
    ProducerState,
    Request,
    SessionState,
    check_request,
    plan,
)
from service.domain.values.errors import AlreadyExists, Conflict, Exhausted, NotFound
from service.domain.values.reasons import Reason
from tests.integration.support.writing import submission

SESSION = SessionState(head=9, incarnation=1, applied_position=9)
SENT = submission("s", ["a", "b"], producer=SERVER_PRODUCER)
SENT = replace(SENT, chunks=tuple(replace(chunk, sequence=0) for chunk in SENT.chunks))
REQUEST = Request(request_id="r", digest=b"d" * 32)


@pytest.mark.parametrize("last", [0, 7])
def test_the_server_numbers_after_what_it_has(last: int) -> None:
    known = ProducerState(epoch=0, last_sequence=last) if last else None
    planned = plan(SENT, SESSION, known, backlog_chunks=100)
    assert [placed.position for placed in planned.placed] == [10, 11]
    sequences = [placed.submitted.sequence for placed in planned.placed]
    assert sequences == [last + 1, last + 2]
    assert planned.repeated == ()
    assert planned.producer == ProducerState(epoch=0, last_sequence=last + 2)


def test_the_limits_of_a_session_hold_for_requests_as_well() -> None:
    with pytest.raises(NotFound):
        plan(SENT, None, None, backlog_chunks=100)
    with pytest.raises(Conflict):
        plan(replace(SENT, expected_head=8), SESSION, None, backlog_chunks=100)
    with pytest.raises(Exhausted):
        plan(SENT, replace(SESSION, applied_position=0), None, backlog_chunks=10)


@pytest.mark.parametrize(
    ("method", "digest", "is_same"),
    [(APPEND, b"d" * 32, True), (APPEND, b"e" * 32, False), ("CreateMemory", b"d" * 32, False)],
)
def test_a_request_is_the_same_by_method_and_content(
    method: str, digest: bytes, is_same: bool
) -> None:
    done = DoneRequest(method=method, digest=digest, first_position=1, last_position=2)
    if is_same:
        check_request(REQUEST, done)
        return
    with pytest.raises(AlreadyExists) as caught:
        check_request(REQUEST, done)
    assert caught.value.reason is Reason.REQUEST_CONTENT_CHANGED
    assert caught.value.metadata == {"request_id": "r", "method": method}
