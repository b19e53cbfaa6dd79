"""Usage, costs and budgets, to and from the proto's messages."""

from datetime import date
from typing import Any

from palimpsest._convert import if_set, known_name, message_of, moment, number_of, value_of
from palimpsest._values_spend import (
    MAX_LIMIT,
    Accounting,
    Budget,
    BudgetPeriod,
    Comparison,
    Cost,
    CostLine,
    LogCost,
    LoopCost,
    Residual,
    Spend,
    SpendLevel,
    SpendLine,
    SpendReport,
    Usage,
    UsageLine,
    UsageReport,
)
from palimpsest.v1alpha1 import budgets_pb2, reading_pb2, usage_pb2

_PERIODS: dict[BudgetPeriod, Any] = {
    "day": budgets_pb2.BUDGET_PERIOD_DAY,
    "total": budgets_pb2.BUDGET_PERIOD_TOTAL,
}
_LEVELS: dict[SpendLevel, Any] = {
    "tenant": usage_pb2.SPEND_LEVEL_TENANT,
    "session": usage_pb2.SPEND_LEVEL_SESSION,
    "memory": usage_pb2.SPEND_LEVEL_MEMORY,
}
#: Fields that are messages themselves.
_COMPARED = ("measured", "as_kept", "in_place", "amendments", "adaptive")
_LOOPS = ("standard", "recursive", "pcc")


def budget_owner(session: str, memory: str) -> budgets_pb2.BudgetOwner:
    """Returns the owner of a budget: a memory, a session, or else the tenant."""
    if memory:
        named = budgets_pb2.BudgetOwner.MemoryName(session=session, memory=memory)
        return budgets_pb2.BudgetOwner(memory=named)
    if session:
        return budgets_pb2.BudgetOwner(session=session)
    return budgets_pb2.BudgetOwner(tenant=True)


def budget_period(period: BudgetPeriod) -> Any:
    """Returns a period as the proto has it. Raises ValueError."""
    return number_of("period", _PERIODS, period)


def budget_limit(name: str, limit: int | None) -> int | None:
    """Returns a limit that can be sent. Raises ValueError."""
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise ValueError(f"{name} is from 0 to {MAX_LIMIT}, not {limit}")
    return limit


def budget(message: budgets_pb2.Budget) -> Budget:
    """Returns a budget, and how much of it is left."""
    owner = message.owner
    of_memory = owner.WhichOneof("scope") == "memory"
    return value_of(
        Budget,
        message,
        session=owner.memory.session if of_memory else owner.session,
        memory=owner.memory.memory,
        period=known_name(_PERIODS, message.period),
        resets_at=if_set(message, "reset_time", moment),
    )


def usage(message: reading_pb2.Usage) -> Usage:
    """Returns model calls, summed."""
    return value_of(Usage, message)


def usage_report(message: usage_pb2.GetUsageResponse) -> UsageReport:
    """Returns the usage of a session or a memory."""
    return UsageReport(
        total=usage(message.total),
        lines=tuple(value_of(UsageLine, one, usage=usage(one.usage)) for one in message.lines),
    )


def spend_request(
    *, level: SpendLevel, from_day: date | None, to_day: date | None, **others: Any
) -> usage_pb2.ListSpendRequest:
    """Returns the request of what was spent. Raises ValueError."""
    return message_of(
        usage_pb2.ListSpendRequest,
        level=number_of("level", _LEVELS, level),
        from_day=day(from_day),
        to_day=day(to_day),
        page_size=1000,
        **others,
    )


def day(given: date | None) -> str:
    """Returns a day as the proto has it."""
    return "" if given is None else given.isoformat()


def spend_report(
    total: usage_pb2.Spend, lines: list[usage_pb2.ListSpendResponse.Line]
) -> SpendReport:
    """Returns what was spent, from all pages of a list."""
    return SpendReport(
        total=value_of(Spend, total),
        lines=tuple(
            value_of(
                SpendLine,
                one,
                day=date.fromisoformat(one.day) if one.day else None,
                spend=value_of(Spend, one.spend),
            )
            for one in lines
        ),
    )


def cost(message: usage_pb2.GetCostResponse) -> Cost:
    """Returns what a session or a memory cost."""
    return Cost(
        total=value_of(Spend, message.total),
        lines=tuple(
            value_of(CostLine, one, spend=value_of(Spend, one.spend)) for one in message.lines
        ),
        residuals=tuple(
            # `class` is a word of Python's.
            value_of(Residual, one, residual=getattr(one, "class"))
            for one in message.residuals
        ),
        reading=value_of(LogCost, message.reading),
        comparison=if_set(message, "comparison", _comparison),
        accounting=if_set(message, "accounting", _accounting),
    )


def _comparison(message: usage_pb2.GetCostResponse.Comparison) -> Comparison:
    logs = {name: value_of(LogCost, getattr(message, name)) for name in _COMPARED}
    return value_of(Comparison, message, **logs)


def _accounting(message: usage_pb2.GetCostResponse.Accounting) -> Accounting:
    loops = {name: value_of(LoopCost, getattr(message, name)) for name in _LOOPS}
    return value_of(Accounting, message, **loops)
