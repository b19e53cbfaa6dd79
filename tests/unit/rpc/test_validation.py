"""Errors of requests that break a rule of the proto."""

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from buf.validate import validate_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest import v1
from palimpsest.v1 import (
    answer_service_pb2,
    billing_service_pb2,
    chunks_pb2,
    memory_service_pb2,
    rules_pb2,
    session_service_pb2,
    tree_service_pb2,
)
from service.domain.values.errors import InvalidInput
from service.rpc.interceptors.validation import PATTERNS, validate

#: The files of the API.
FILES = [
    import_module(f"{v1.__name__}.{module.name}")
    for module in iter_modules(v1.__path__)
    if module.name.endswith("_pb2")
]


#: Fields that hold ids, whatever their message.
IDS = {
    *("session", "memory", "new_memory", "other_memory", "producer_id", "thread", "source"),
    *("threads", "excluded_threads", "sources"),
}
ONE = chunks_pb2.Chunk(text="x")


def messages(among: Iterable[Descriptor]) -> Iterator[Descriptor]:
    for message in among:
        yield message
        yield from messages(message.nested_types)


def patterns(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        rules = field.GetOptions().Extensions[validate_pb2.field]
        if rules.string.pattern:
            yield rules.string.pattern
    for nested in message.nested_types:
        yield from patterns(nested)


def test_each_pattern_of_the_proto_is_said_in_words() -> None:
    used = {
        pattern
        for file in (*FILES, session_service_pb2)
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for pattern in patterns(message)
    }
    assert used <= set(PATTERNS)


ANSWER = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            answer_service_pb2.CancelAnswerRequest(session="s", answer=ANSWER, request_id="a\n"),
            "request_id: must have at most 128 characters and no control characters",
        ),
        (
            answer_service_pb2.RateAnswerRequest(
                session="s",
                answer=ANSWER,
                rating=answer_service_pb2.Rating(
                    verdict=answer_service_pb2.Rating.VERDICT_GOOD, comment="a\0b"
                ),
            ),
            "rating.comment: must have no NUL character",
        ),
        (
            answer_service_pb2.AskRequest(session="s", memory="m", query="q", model="x" * 257),
            "model: must have at most 256 bytes and no control characters",
        ),
        (
            tree_service_pb2.GetNodeRequest(session="s", memory="m", node="2"),
            "node: must be a stored node as level.number, such as 0.17",
        ),
        (
            billing_service_pb2.GetCostReportRequest(session="s", first_day="2026-1-1"),
            "first_day: must be a day such as 2026-11-30",
        ),
        (
            session_service_pb2.GetSessionRequest(session="x" * 257),
            "session: must have at most 256 bytes",
        ),
        (
            session_service_pb2.CreateSessionRequest(
                session=session_service_pb2.Session(id="s", language="9")
            ),
            "session.language: must have only a-z, 0-9 and _, and begin with a letter",
        ),
    ],
)
def test_a_rule_of_version_1_is_said_in_words(request_: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(request_)
    assert caught.value.message == said


#: What is wrong with an id, in the words of its rule.
ID = re.compile(
    "must be printable, without a slash, control or format characters"
    "|must not begin or end with a blank, nor be '.' or '..'"
    "|must have at most 256 bytes"
    "|value is required"
)


@pytest.mark.parametrize(
    "id_",
    [
        "a",
        "auth0|5f7c",
        "user:42",
        "josé@example.org",
        "jose\u0301@example.org",
        "two words",
        "...",
        "שלום עולם",
        "महाभारत",
        "\u0301",
        "👩\u200d👩\u200d👧",
        "می\u200cخواهم",
        "😀" * 64,
        "é" * 128,
        "%",
        "_",
        "'\"\\",
        "<a href=x>&;--{}",
    ],
)
def test_ids_are_what_people_have(id_: str) -> None:
    validate(session_service_pb2.CreateSessionRequest(session=session_service_pb2.Session(id=id_)))
    validate(memory_service_pb2.GetMemoryRequest(session=id_, memory=id_))
    opening = session_service_pb2.AppendChunksRequest.Open(session=id_, producer_id=id_)
    validate(session_service_pb2.AppendChunksRequest(open=opening))
    validate(chunks_pb2.ChunkFilter(threads=[id_, ""], excluded_threads=[id_], sources=["", id_]))


@pytest.mark.parametrize(
    "id_",
    [
        "",
        " ",
        " a",
        "a ",
        "\u00a0a",
        "a\u3000",
        "a/b",
        "/",
        ".",
        "..",
        "a\nb",
        "a\tb",
        "a\r",
        "a\0b",
        "\x1b[31m",
        "\x7f",
        "a\u0085b",
        "a\u2028b",
        "a\u2029b",
        "a\u200bb",
        "\ufeffa",
        "\u202eabc",
        "\u2066abc",
        "a\u00adb",
        "😀" * 64 + "a",
        "a" * 257,
    ],
)
def test_the_error_for_other_ids_has_the_rule(id_: str) -> None:
    for request, field in (
        (memory_service_pb2.ListMemoriesRequest(session=id_ or "/"), "session"),
        (memory_service_pb2.GetMemoryRequest(session="a", memory=id_), "memory"),
    ):
        with pytest.raises(InvalidInput) as caught:
            validate(request)
        assert ID.fullmatch(caught.value.message.removeprefix(f"{field}: ")), field
    bad = id_ or "/"
    for message, field in (
        (session_service_pb2.ListChunksRequest(session=bad), "session"),
        (session_service_pb2.AppendRequest(session=bad, chunks=[ONE]), "session"),
        (session_service_pb2.AppendChunksRequest.Open(session="a", producer_id=bad), "producer_id"),
        (chunks_pb2.ChunkFilter(threads=["a", bad]), "threads[1]"),
        (chunks_pb2.ChunkFilter(excluded_threads=[bad]), "excluded_threads[0]"),
        (chunks_pb2.ChunkFilter(sources=[bad]), "sources[0]"),
        (chunks_pb2.Chunk(text="x", thread=bad), "thread"),
        (chunks_pb2.Chunk(text="x", source=bad), "source"),
    ):
        with pytest.raises(InvalidInput) as caught:
            validate(message)
        assert caught.value.message.startswith(f"{field}: must ")


def test_an_id_without_utf8_is_no_message() -> None:
    with pytest.raises(UnicodeEncodeError):
        session_service_pb2.GetSessionRequest(session="\ud800")
    with pytest.raises(DecodeError):
        session_service_pb2.GetSessionRequest.FromString(b"\x0a\x01\xff")


def test_each_id_of_the_proto_has_the_rule() -> None:
    named = {
        f"{message.full_name}.{field.name}"
        for file in FILES
        for message in messages(file.DESCRIPTOR.message_types_by_name.values())
        if message.name.endswith(("Request", "Open", "Filter", "OfMemory"))
        for field in message.fields
        if field.name in IDS
        and field.message_type is None
        and not field.GetOptions().Extensions[validate_pb2.field].string.Extensions[rules_pb2.id]
        and not field.GetOptions()
        .Extensions[validate_pb2.field]
        .repeated.items.string.Extensions[rules_pb2.id]
    }
    assert named == set()


@pytest.mark.parametrize(
    "at",
    [
        Timestamp(seconds=253_402_300_800),
        Timestamp(seconds=-62_135_596_801),
        Timestamp(seconds=1, nanos=-1),
        Timestamp(seconds=1, nanos=1_000_000_000),
        Timestamp(seconds=2**63 - 1),
    ],
)
def test_a_time_that_is_none_is_refused(at: Timestamp) -> None:
    chunk = chunks_pb2.Chunk(text="x", occurred_at=at)
    request = session_service_pb2.AppendRequest(session="a", chunks=[chunk])
    with pytest.raises(InvalidInput) as caught:
        validate(request)
    said = "must be a time from the year 1 to the year 9999"
    assert caught.value.message == f"chunks[0].occurred_at: {said}"


@pytest.mark.parametrize("day", ["2026-2-3", "yesterday", "20260203", "2026-02-03T00:00"])
def test_a_bad_day_is_refused_in_words(day: str) -> None:
    with pytest.raises(InvalidInput, match=r"^last_day: must be a day such as 2026-11-30$"):
        validate(billing_service_pb2.GetCostReportRequest(session="a", last_day=day))


def test_a_budget_has_a_period_and_a_limit_and_a_memory_its_session() -> None:
    day = billing_service_pb2.BUDGET_PERIOD_DAY
    budget = billing_service_pb2.Budget
    validate(billing_service_pb2.SetBudgetRequest(budget=budget(period=day, limit_tokens=0)))
    for wrong, said in (
        (budget(limit_tokens=1), "budget.period"),
        (budget(period=7, limit_tokens=1), "budget.period"),  # type: ignore[arg-type]
        (budget(period=day), "give limit_tokens or limit_micro_usd"),
        (budget(period=day, limit_micro_usd=-1), "budget.limit_micro_usd"),
        (budget(period=day, limit_tokens=1, memory="m"), "name the session of the memory"),
        (budget(period=day, limit_tokens=1, session="a/b"), "budget.session"),
        (budget(period=day, limit_tokens=1, etag="x" * 65), "budget.etag"),
    ):
        with pytest.raises(InvalidInput, match=said):
            validate(billing_service_pb2.SetBudgetRequest(budget=wrong))
    for request, said in (
        (billing_service_pb2.SetBudgetRequest(), "budget"),
        (billing_service_pb2.DeleteBudgetRequest(), "period"),
        (billing_service_pb2.DeleteBudgetRequest(period=day, memory="m"), "name the session"),
        (billing_service_pb2.ListBudgetsRequest(session="a/b"), "session"),
        (billing_service_pb2.ListBudgetsRequest(page_size=-1), "page_size"),
    ):
        with pytest.raises(InvalidInput, match=said):
            validate(request)


@pytest.mark.parametrize(
    ("request_", "paths", "is_allowed"),
    [
        (memory_service_pb2.UpdateMemoryRequest(), ["prism.model", "tree.navigation_model"], True),
        (memory_service_pb2.UpdateMemoryRequest(), ["prism.model.x"], False),
        (memory_service_pb2.UpdateMemoryRequest(), ["prism.model", "state.model.x.y"], False),
        (memory_service_pb2.UpdateMemoryRequest(), ["prism"], False),
        (session_service_pb2.UpdateSessionRequest(), ["metadata"], True),
        (session_service_pb2.UpdateSessionRequest(), ["metadata.user"], False),
    ],
)
def test_a_mask_names_fields_and_nothing_within_them(
    request_: Any, paths: list[str], is_allowed: bool
) -> None:
    asked = type(request_)(update_mask={"paths": paths})
    if isinstance(asked, session_service_pb2.UpdateSessionRequest):
        asked.session.id = "s"
    else:
        asked.memory.session, asked.memory.id = "s", "m"
    if is_allowed:
        validate(asked)
        return
    with pytest.raises(InvalidInput) as refused:
        validate(asked)
    assert refused.value.field.startswith("update_mask")


def test_positions_that_no_log_has_are_refused() -> None:
    request = memory_service_pb2.ListAmendmentsRequest(session="a", memory="a")
    for field in ("first", "last"):
        request.positions.Clear()
        setattr(request.positions, field, 2**63 - 1)
        validate(request)
        setattr(request.positions, field, -1)
        with pytest.raises(InvalidInput, match=r"^positions"):
            validate(request)
    request.positions.first, request.positions.last = 3, 2
    with pytest.raises(InvalidInput, match=r"^positions: first must not be greater than last"):
        validate(request)


@pytest.mark.parametrize(
    "idle",
    [
        Duration(seconds=-(2**63)),
        Duration(seconds=315_576_000_001),
        Duration(seconds=1, nanos=-1),
        Duration(nanos=2**31 - 1),
    ],
)
def test_a_duration_that_is_none_is_refused_by_its_name(idle: Duration) -> None:
    request = memory_service_pb2.CreateMemoryRequest()
    request.memory.state.idle.CopyFrom(idle)
    with pytest.raises(InvalidInput, match="must be a duration up to 10,000 years") as caught:
        validate(request)
    assert caught.value.field == "memory.state.idle"


def test_a_time_that_is_none_is_refused_by_its_name() -> None:
    request = session_service_pb2.SearchChunksRequest(session="main", query="x")
    request.filter.created.start.seconds = 2**62
    with pytest.raises(
        InvalidInput,
        match=r"filter[.]created[.]start: must be a time from the year 1 to the year 9999",
    ):
        validate(request)
