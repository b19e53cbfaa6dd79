"""Usage, costs and budgets, to and from the proto's messages."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from palimpsest._convert import (
    if_set,
    known_name,
    message_of,
    moment,
    number_of,
    numbers_of,
    positions,
    value_of,
)
from palimpsest._values_spend import (
    MAX_LIMIT,
    Accounting,
    Budget,
    BudgetPeriod,
    CacheLine,
    Comparison,
    CostReport,
    Grouping,
    LoopCost,
    ReadingCost,
    Usage,
    UsageLine,
    UsageReport,
)
from palimpsest.v1 import billing_service_pb2 as pb
from palimpsest.v1 import common_pb2

_PERIODS: dict[BudgetPeriod, Any] = numbers_of(pb.BudgetPeriod, "BUDGET_PERIOD_")
_GROUPINGS: dict[Grouping, Any] = numbers_of(pb.ListUsageRequest.Grouping, "GROUPING_")
#: The first of each is what is not specified.
_PURPOSES = {"": 0, **numbers_of(pb.CallPurpose, "CALL_PURPOSE_")}
_OUTCOMES = {"": 0, **numbers_of(pb.CostReport.CacheOutcome, "CACHE_OUTCOME_")}
#: Fields that are messages themselves.
_COMPARED = ("measured", "as_kept", "in_place", "amendments", "adaptive")
_LOOPS = ("standard", "recursive", "pcc")


def budget_period(period: BudgetPeriod) -> Any:
    """Returns a period as the proto has it. Raises ValueError."""
    return number_of("period", _PERIODS, period)


def budget_limit(name: str, limit: int | None) -> int | None:
    """Returns a limit that can be sent. Raises ValueError."""
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise ValueError(f"{name} is from 0 to {MAX_LIMIT}, not {limit}")
    return limit


def budget(message: pb.Budget) -> Budget:
    """Returns a budget, and how much of it is left."""
    return value_of(
        Budget,
        message,
        period=known_name(_PERIODS, message.period),
        resets_at=if_set(message, "resets_at", moment),
    )


def usage(message: common_pb2.Usage) -> Usage:
    """Returns model calls, summed."""
    return value_of(Usage, message)


def usage_request(
    *,
    group_by: Sequence[Grouping],
    first_day: date | None,
    last_day: date | None,
    session: str = "",
    memory: str = "",
) -> pb.ListUsageRequest:
    """Returns the request of what was used. Raises ValueError."""
    return message_of(
        pb.ListUsageRequest,
        session=session,
        memory=memory,
        group_by=[number_of("group_by", _GROUPINGS, one) for one in group_by],
        first_day=day(first_day),
        last_day=day(last_day),
        page_size=1000,
    )


def day(given: date | None) -> str:
    """Returns a day as the proto has it."""
    return "" if given is None else given.isoformat()


def usage_report(
    total: common_pb2.Usage, lines: Sequence[pb.ListUsageResponse.Line]
) -> UsageReport:
    """Returns what was used, from all pages of a list."""
    return UsageReport(
        total=usage(total),
        lines=tuple(
            value_of(
                UsageLine,
                one,
                day=date.fromisoformat(one.day) if one.day else None,
                purpose=known_name(_PURPOSES, one.purpose),
                usage=usage(one.usage),
            )
            for one in lines
        ),
    )


def cost_report(message: pb.CostReport) -> CostReport:
    """Returns what a session or a memory cost."""
    return CostReport(
        total=usage(message.total),
        cache=tuple(
            value_of(CacheLine, one, outcome=known_name(_OUTCOMES, one.outcome))
            for one in message.cache
        ),
        reading=value_of(ReadingCost, message.reading),
        comparison=if_set(message, "comparison", _comparison),
        accounting=if_set(message, "accounting", _accounting),
    )


def _comparison(message: pb.CostReport.Comparison) -> Comparison:
    logs = {name: value_of(ReadingCost, getattr(message, name)) for name in _COMPARED}
    return value_of(Comparison, message, positions=positions(message), **logs)


def _accounting(message: pb.CostReport.Accounting) -> Accounting:
    loops = {name: value_of(LoopCost, getattr(message, name)) for name in _LOOPS}
    return value_of(Accounting, message, **loops)
