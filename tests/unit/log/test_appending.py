"""The append protocol without a database: what is placed, repeated, refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.log.appending import (
    AppendPlan,
    ProducerState,
    SessionState,
    Submission,
    check_repeated,
    plan,
)
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.log.read_tokens import ReadToken, TokenInvalid, sign_page, verify_page
from service.domain.values.errors import (
    AlreadyExists,
    Conflict,
    Exhausted,
    InvalidInput,
    NotFound,
    OutOfRange,
)
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from tests.integration.support.writing import submission, text_chunk

EMPTY = SessionState(head=0, incarnation=1, applied_position=0)


def decide(
    sent: Submission,
    session: SessionState | None = EMPTY,
    producer: ProducerState | None = None,
    backlog: int = 100,
) -> AppendPlan:
    return plan(sent, session, producer, backlog_chunks=backlog)


def test_positions_follow_the_head() -> None:
    planned = decide(submission("s", ["a", "b"]), replace(EMPTY, head=7, applied_position=7))
    assert [placed.position for placed in planned.placed] == [8, 9]
    assert planned.session.head == 9
    assert planned.producer == ProducerState(epoch=0, last_sequence=2)


def test_a_resend_is_repeated_and_the_rest_is_placed() -> None:
    known = ProducerState(epoch=0, last_sequence=2)
    planned = decide(submission("s", ["b", "c"], first=2), replace(EMPTY, head=2), known)
    assert [chunk.sequence for chunk in planned.repeated] == [2]
    assert [placed.submitted.sequence for placed in planned.placed] == [3]


def test_changed_content_is_refused() -> None:
    sent = text_chunk(1, "new")
    check_repeated("p", sent, True, 9)
    with pytest.raises(AlreadyExists, match="another process uses this") as refused:
        check_repeated("p", sent, False, 9)
    due = {"producer": "p", "producer_sequence": "1", "position": "9"}
    assert refused.value.metadata == due


def test_a_gap_names_the_expected_sequence() -> None:
    with pytest.raises(OutOfRange) as refused:
        decide(submission("s", ["x"], first=5), EMPTY, ProducerState(epoch=0, last_sequence=2))
    assert refused.value.metadata == {"expected": "3", "received": "5"}


def test_a_gap_within_a_batch_is_refused() -> None:
    sent = submission("s", ["a", "b"])
    broken = replace(sent, chunks=(sent.chunks[0], replace(sent.chunks[1], sequence=3)))
    with pytest.raises(OutOfRange):
        decide(broken)


def test_a_lower_epoch_is_fenced_and_a_higher_one_takes_over() -> None:
    known = ProducerState(epoch=3, last_sequence=0)
    with pytest.raises(Conflict) as refused:
        decide(submission("s", ["x"], epoch=2), EMPTY, known)
    assert refused.value.reason is Reason.PRODUCER_FENCED
    assert decide(submission("s", ["x"], epoch=4), EMPTY, known).producer.epoch == 4


def test_an_unknown_session_a_wrong_head_and_a_full_backlog_are_refused() -> None:
    with pytest.raises(NotFound):
        decide(submission("s", ["x"]), None)
    with pytest.raises(Conflict) as refused:
        decide(submission("s", ["x"], expected_head=4))
    assert refused.value.metadata == {"head": "0", "expected_head": "4"}
    with pytest.raises(Exhausted) as full:
        decide(submission("s", ["x"]), replace(EMPTY, head=10), None, backlog=10)
    assert full.value.retry_seconds > 0


def test_a_batch_that_no_backlog_has_room_for_is_refused_for_good() -> None:
    with pytest.raises(InvalidInput, match=r"3 new chunks in a batch; .* 2 chunks behind") as large:
        decide(submission("p", ["a", "b", "c"]), EMPTY, None, backlog=2)
    assert large.value.reason is Reason.BATCH_TOO_LARGE
    assert large.value.metadata == {"chunks": "3", "limit_chunks": "2"}
    stored = ProducerState(epoch=0, last_sequence=3)
    sent_again = decide(submission("p", ["a", "b", "c"]), replace(EMPTY, head=3), stored, backlog=2)
    assert len(sent_again.repeated) == 3, "what is stored already is acked"
    some_new = submission("p", ["a", "b", "c", "d", "e"])
    assert len(decide(some_new, EMPTY, stored, backlog=2).placed) == 2


def test_a_resend_is_acked_even_when_the_backlog_is_full() -> None:
    known = ProducerState(epoch=0, last_sequence=1)
    assert not decide(submission("s", ["x"]), replace(EMPTY, head=10), known, 10).placed


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), max_size=30))
def test_any_order_of_batches_stores_each_sequence_once_and_in_order(
    batches: list[tuple[int, int]],
) -> None:
    """Against the simplest model there is: a list, and the next number."""
    log: list[int] = []
    session, producer = EMPTY, ProducerState(epoch=0, last_sequence=0)
    for first, count in batches:
        sent = submission("s", [str(first + n) for n in range(count)], first=first)
        expected_gap = first > len(log) + 1
        try:
            planned = decide(sent, session, producer, 10**6)
        except OutOfRange:
            assert expected_gap
            continue
        assert not expected_gap
        log += [placed.submitted.sequence for placed in planned.placed]
        session, producer = planned.session, planned.producer
        assert session.head == len(log) == producer.last_sequence
        assert [p.position for p in planned.placed] == [
            p.submitted.sequence for p in planned.placed
        ]
    assert log == list(range(1, len(log) + 1))


def test_digests_distinguish_what_looks_alike() -> None:
    chunks = [
        Chunk(kind=ChunkKind.TEXT, text="ab"),
        Chunk(kind=ChunkKind.MESSAGE, role="a", text="b"),
        Chunk(kind=ChunkKind.MESSAGE, role="", text="ab"),
        Chunk(kind=ChunkKind.STEP, observation="ab"),
        Chunk(kind=ChunkKind.STEP, thought="ab"),
        Chunk(kind=ChunkKind.TEXT, text="ab", metadata={"k": "v"}),
        Chunk(kind=ChunkKind.TEXT, text="ab", metadata={"kv": ""}),
    ]
    assert len({chunk.digest() for chunk in chunks}) == len(chunks)
    one = Chunk(kind=ChunkKind.TEXT, text="x", metadata={"a": "1", "b": "2"})
    other = Chunk(kind=ChunkKind.TEXT, text="x", metadata={"b": "2", "a": "1"})
    assert one.digest() == other.digest()


def test_tokens_come_back_unaltered_or_are_refused() -> None:
    key = session_key(DEFAULT_TENANT, "s")
    token = ReadToken(session_key=key, incarnation=1, position=42)
    text = token.sign(b"k")
    assert ReadToken.verify(b"k", text) == token
    page = sign_page(b"k", "list", "place")
    assert verify_page(b"k", "list", page) == "place"
    altered = text[:-1] + ("A" if text[-1] != "A" else "B")
    for wrong in (altered, text[:-4], "", "ä", "!" * 56, page):
        with pytest.raises(TokenInvalid):
            ReadToken.verify(b"k", wrong)
    with pytest.raises(TokenInvalid):
        ReadToken.verify(b"other", text)
    with pytest.raises(TokenInvalid):
        verify_page(b"k", "another list", page)


def test_a_digest_is_another_one_only_for_a_step_that_observed_first() -> None:
    step = Chunk(kind=ChunkKind.STEP, observation="a", thought="b", action="c")
    # As logs have it that are stored, and requests that are sent again.
    before = "bbc27eafe9fd5860"
    assert step.digest().hex().startswith(before)
    assert replace(step, observed_first=None).digest() == step.digest()
    assert replace(step, observed_first=True).digest() != step.digest()
