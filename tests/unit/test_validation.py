"""What a request that breaks a rule of the proto is told."""

from collections.abc import Iterator

import pytest
from buf.validate import validate_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from palimpsest.v1 import (
    answers_pb2,
    budgets_pb2,
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
from service.domain.errors import InvalidInput
from service.rpc.interceptors.validation import PATTERNS, validate

FILES = (
    answers_pb2,
    budgets_pb2,
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


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            memories_pb2.ListMemoriesRequest(session="a b"),
            "session: must have only A-Z, a-z, 0-9 and . _ : @ / -,"
            " and begin with a letter or digit",
        ),
        (
            memories_pb2.RetryMemoryRequest(session="a", memory="Notes"),
            "memory: must have only a-z, 0-9, _ and -, and begin with a letter or digit",
        ),
        (
            memories_pb2.GetMemoryRequest(session="a"),
            "memory: must have only a-z, 0-9, _ and -, and begin with a letter or digit",
        ),
    ],
)
def test_a_bad_name_is_told_in_words(request_: Message, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(request_)
    assert caught.value.message == said


@pytest.mark.parametrize("day", ["2026-2-3", "yesterday", "20260203", "2026-02-03T00:00"])
def test_a_bad_day_is_told_in_words(day: str) -> None:
    with pytest.raises(InvalidInput, match=r"^to_day: must be a day such as 2026-11-30$"):
        validate(usage_pb2.GetCostRequest(session="a", to_day=day))
    with pytest.raises(InvalidInput, match=r"^session: must have only A-Z"):
        validate(usage_pb2.ListSpendRequest(session="a b"))


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
        (budgets_pb2.ListBudgetsRequest(session="a b"), "session"),
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
    request = memories_pb2.CreateMemoryRequest(session="main", name="notes")
    request.state.idle.CopyFrom(idle)
    with pytest.raises(InvalidInput, match="must be a duration up to 10,000 years") as caught:
        validate(request)
    assert caught.value.field == "state.idle"


def test_a_time_that_is_none_is_refused_by_its_name() -> None:
    request = search_pb2.SearchChunksRequest(session="main", query="x")
    request.filter.from_time.seconds = 2**62
    with pytest.raises(
        InvalidInput, match="from_time: must be a time from the year 1 to the year 9999"
    ):
        validate(request)
