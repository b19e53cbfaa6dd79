"""What a request that breaks a rule of the proto is told."""

from collections.abc import Iterable, Iterator

import pytest
from buf.validate import validate_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest.v1 import memory_service_pb2
from palimpsest.v1alpha1 import (
    answers_pb2,
    budgets_pb2,
    chunks_pb2,
    edits_pb2,
    history_pb2,
    ids_pb2,
    log_pb2,
    memories_pb2,
    schemas_pb2,
    search_pb2,
    sessions_pb2,
    trajectories_pb2,
    trees_pb2,
    usage_pb2,
)
from service.domain.values.errors import InvalidInput
from service.rpc.interceptors.validation import PATTERNS, validate

FILES = (
    answers_pb2,
    budgets_pb2,
    chunks_pb2,
    edits_pb2,
    history_pb2,
    log_pb2,
    memories_pb2,
    schemas_pb2,
    search_pb2,
    sessions_pb2,
    trajectories_pb2,
    trees_pb2,
    usage_pb2,
)


#: Fields that hold ids, whatever their message.
IDS = {
    *("session", "memory", "new_memory", "other_memory", "producer_id", "thread", "source"),
    *("threads", "excluded_threads", "sources"),
}
ONE = log_pb2.ProducedChunk(chunk=log_pb2.Chunk(text="x"))


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
        for file in FILES
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for pattern in patterns(message)
    }
    assert used == set(PATTERNS)


ID = (
    "must be 1 to 256 bytes of printable UTF-8, without '/', control or format characters and"
    " blanks at the ends, and not '.' or '..'"
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
    validate(sessions_pb2.CreateSessionRequest(name=id_))
    validate(memory_service_pb2.GetMemoryRequest(session=id_, memory=id_))
    opening = log_pb2.AppendChunksRequest.Open(session=id_, producer_id=id_)
    validate(log_pb2.AppendChunksRequest(open=opening))
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
def test_other_ids_are_told_the_rule(id_: str) -> None:
    for request, field in (
        (sessions_pb2.GetSessionRequest(name=id_), "name"),
        (log_pb2.ListChunksRequest(session=id_), "session"),
        (log_pb2.AppendRequest(session="a", producer_id=id_ or "/", chunks=[ONE]), "producer_id"),
        (chunks_pb2.ChunkFilter(threads=["a", id_ or "/"]), "threads[1]"),
        (chunks_pb2.ChunkFilter(excluded_threads=[id_ or "/"]), "excluded_threads[0]"),
        (chunks_pb2.ChunkFilter(sources=[id_ or "/"]), "sources[0]"),
        (log_pb2.Chunk(text="x", thread=id_ or "/"), "thread"),
        (log_pb2.Chunk(text="x", source=id_ or "/"), "source"),
    ):
        with pytest.raises(InvalidInput) as caught:
            validate(request)
        assert caught.value.message == f"{field}: {ID}"


def test_an_id_without_utf8_is_no_message() -> None:
    with pytest.raises(UnicodeEncodeError):
        sessions_pb2.GetSessionRequest(name="\ud800")
    with pytest.raises(DecodeError):
        sessions_pb2.GetSessionRequest.FromString(b"\x0a\x01\xff")


def test_each_id_of_the_proto_has_the_rule() -> None:
    named = {
        f"{message.full_name}.{field.name}"
        for file in FILES
        for message in messages(file.DESCRIPTOR.message_types_by_name.values())
        if message.name.endswith(("Request", "Open", "Filter", "BudgetOwner", "OfMemory"))
        for field in message.fields
        if field.name in IDS
        and field.message_type is None
        and not field.GetOptions().Extensions[validate_pb2.field].string.Extensions[ids_pb2.id]
        and not field.GetOptions()
        .Extensions[validate_pb2.field]
        .repeated.items.string.Extensions[ids_pb2.id]
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
    chunk = log_pb2.Chunk(text="x", occurred_at=at)
    request = log_pb2.AppendRequest(session="a", chunks=[log_pb2.ProducedChunk(chunk=chunk)])
    with pytest.raises(InvalidInput) as caught:
        validate(request)
    said = "must be a time from the year 1 to the year 9999"
    assert caught.value.message == f"chunks[0].chunk.occurred_at: {said}"


@pytest.mark.parametrize("day", ["2026-2-3", "yesterday", "20260203", "2026-02-03T00:00"])
def test_a_bad_day_is_told_in_words(day: str) -> None:
    with pytest.raises(InvalidInput, match=r"^to_day: must be a day such as 2026-11-30$"):
        validate(usage_pb2.GetCostRequest(session="a", to_day=day))
    with pytest.raises(InvalidInput, match=r"^session: must be 1 to 256 bytes"):
        validate(usage_pb2.ListSpendRequest(session="a/b"))


def test_a_budget_has_an_owner_a_period_and_a_limit() -> None:
    tenant = budgets_pb2.BudgetOwner(tenant=True)
    day = budgets_pb2.BUDGET_PERIOD_DAY
    validate(budgets_pb2.SetBudgetRequest(owner=tenant, period=day, limit_tokens=0))
    for request, said in (
        (budgets_pb2.SetBudgetRequest(period=day, limit_tokens=1), "owner"),
        (
            budgets_pb2.SetBudgetRequest(
                owner=budgets_pb2.BudgetOwner(), period=day, limit_tokens=1
            ),
            "scope",
        ),
        (
            budgets_pb2.SetBudgetRequest(
                owner=budgets_pb2.BudgetOwner(tenant=False), period=day, limit_tokens=1
            ),
            "owner.tenant",
        ),
        (budgets_pb2.SetBudgetRequest(owner=tenant, limit_tokens=1), "period"),
        (budgets_pb2.SetBudgetRequest(owner=tenant, period=7, limit_tokens=1), "period"),  # type: ignore[arg-type]
        (budgets_pb2.SetBudgetRequest(owner=tenant, period=day), "give limit_tokens"),
        (
            budgets_pb2.SetBudgetRequest(owner=tenant, period=day, limit_micro_usd=2**63),
            "limit_micro_usd",
        ),
        (budgets_pb2.ClearBudgetRequest(owner=tenant), "period"),
        (budgets_pb2.ListBudgetsRequest(session="a/b"), "session"),
        (budgets_pb2.ListBudgetsRequest(page_size=1001), "page_size"),
    ):
        with pytest.raises(InvalidInput, match=said):
            validate(request)


def test_positions_that_no_log_has_are_refused() -> None:
    for field in ("from_position", "to_position"):
        request = memories_pb2.ListAmendmentsRequest(session="a", memory="a")
        setattr(request, field, 2**63 - 1)
        request.to_position = 2**63 - 1
        validate(request)
        request.ClearField("to_position")
        setattr(request, field, 2**63)
        with pytest.raises(InvalidInput, match=f"^{field}: must be less than or equal to 9223"):
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
    request = search_pb2.SearchChunksRequest(session="main", query="x")
    request.filter.from_time.seconds = 2**62
    with pytest.raises(
        InvalidInput, match="from_time: must be a time from the year 1 to the year 9999"
    ):
        validate(request)
