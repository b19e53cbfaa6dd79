"""Usage, costs and budgets, from and to the messages of BillingService."""

from collections.abc import Sequence
from datetime import date

from palimpsest.v1 import billing_service_pb2 as pb
from palimpsest.v1 import common_pb2
from service.domain.prompting.flows import Purpose
from service.domain.spend.budgets import BudgetOwner, BudgetPeriod, BudgetScope, Standing
from service.domain.spend.prices import LogCost
from service.domain.state.accounting import Accounting, Loop
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import positions
from service.usecases.spend.comparing import Compared
from service.usecases.spend.costs import Cost, CostQuery
from storage.spend.costs import CostLine
from storage.spend.spend import Days, Spend, SpendLevel, SpendLine

_PURPOSES = {
    purpose.value: pb.CallPurpose.Value(f"CALL_PURPOSE_{purpose.name}") for purpose in Purpose
}
#: By the residual in the ledger; calls of releases that did not classify have none.
_OUTCOMES = {
    "none": pb.CostReport.CACHE_OUTCOME_AS_PREDICTED,
    "more": pb.CostReport.CACHE_OUTCOME_MORE,
    "evicted": pb.CostReport.CACHE_OUTCOME_EVICTED,
    "misrouted": pb.CostReport.CACHE_OUTCOME_MISROUTED,
    "drift": pb.CostReport.CACHE_OUTCOME_DRIFT,
    "outage": pb.CostReport.CACHE_OUTCOME_OUTAGE,
    "unknown": pb.CostReport.CACHE_OUTCOME_UNKNOWN,
}
PERIODS = {
    pb.BUDGET_PERIOD_DAY: BudgetPeriod.DAY,
    pb.BUDGET_PERIOD_TOTAL: BudgetPeriod.TOTAL,
}
_PERIOD_NUMBERS = {period: number for number, period in PERIODS.items()}


def cost_query(request: pb.ListUsageRequest | pb.GetCostReportRequest) -> CostQuery:
    """Returns whose costs of which days are asked for. Raises InvalidInput."""
    first, last = _day(request.first_day, "first_day"), _day(request.last_day, "last_day")
    return CostQuery(
        session=request.session, memory=request.memory, days=Days(first=first, last=last)
    )


def _day(text: str, field: str) -> date | None:
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            Reason.FIELD_INVALID, f"{field}: there is no day {text}", field=field
        ) from error


def spend_level(group_by: Sequence[int]) -> SpendLevel:
    """Returns what lines without purposes are grouped by, besides days."""
    if pb.ListUsageRequest.GROUPING_MEMORY in group_by:
        return SpendLevel.MEMORY
    if pb.ListUsageRequest.GROUPING_SESSION in group_by:
        return SpendLevel.SESSION
    return SpendLevel.TENANT


def usage(spend: Spend) -> common_pb2.Usage:
    """Returns sums."""
    return common_pb2.Usage(**{name: getattr(spend, name) for name in Spend.__dataclass_fields__})


def spend_line(line: SpendLine) -> pb.ListUsageResponse.Line:
    """Returns a line without a purpose."""
    return pb.ListUsageResponse.Line(
        session=line.session,
        memory=line.memory,
        day=line.day.isoformat() if line.day else "",
        usage=usage(line.spend),
    )


def purpose_line(line: CostLine, session: str) -> pb.ListUsageResponse.Line:
    """Returns a line of a purpose and a model."""
    return pb.ListUsageResponse.Line(
        session=session,
        memory=line.memory,
        purpose=_PURPOSES.get(line.purpose, pb.CALL_PURPOSE_UNSPECIFIED),
        model=line.model,
        usage=usage(line.spend),
    )


def cost_report(cost: Cost) -> pb.CostReport:
    """Returns what calls cost, explained."""
    return pb.CostReport(
        total=usage(cost.total),
        cache=[
            pb.CostReport.CacheLine(
                outcome=_OUTCOMES.get(one.residual, pb.CostReport.CACHE_OUTCOME_UNSPECIFIED),
                calls=one.calls,
                predicted_cached_tokens=one.predicted_cached_tokens,
                reported_cached_tokens=one.reported_cached_tokens,
            )
            for one in cost.residuals
        ],
        reading=_reading(cost.reading),
        comparison=_comparison(cost.detail) if isinstance(cost.detail, Compared) else None,
        accounting=_accounting(cost.detail) if isinstance(cost.detail, Accounting) else None,
    )


def _reading(cost: LogCost) -> pb.CostReport.Reading:
    return pb.CostReport.Reading(
        prompts=cost.prompts,
        total_tokens=cost.total_tokens,
        cached_tokens=cost.cached_tokens,
        written_tokens=cost.written_tokens,
        output_tokens=cost.output_tokens,
        cost_index=cost.cost_index,
        cost_micro_usd=cost.cost_micro_usd,
    )


def _comparison(compared: Compared) -> pb.CostReport.Comparison:
    return pb.CostReport.Comparison(
        steps=compared.steps,
        all_steps=compared.all_steps,
        positions=positions(compared.from_position + 1, compared.to_position),
        model=compared.model,
        measured=_reading(compared.measured),
        as_kept=_reading(compared.as_kept),
        in_place=_reading(compared.in_place),
        amendments=_reading(compared.amendments),
        adaptive=_reading(compared.adaptive),
        truncated=compared.steps < compared.all_steps,
    )


def _accounting(found: Accounting) -> pb.CostReport.Accounting:
    return pb.CostReport.Accounting(
        steps=found.steps,
        task_tokens=found.task_tokens,
        system_tokens=found.system_tokens,
        step_tokens=found.step_tokens,
        state_tokens=found.state_tokens,
        period=found.period,
        standard=_loop(found.standard),
        recursive=_loop(found.recursive),
        pcc=_loop(found.pcc),
        standard_ratio=found.standard_ratio,
        recursive_ratio=found.recursive_ratio,
    )


def _loop(loop: Loop) -> pb.CostReport.Loop:
    return pb.CostReport.Loop(**{name: getattr(loop, name) for name in Loop.__dataclass_fields__})


def budget_owner(message: pb.Budget | pb.DeleteBudgetRequest) -> BudgetOwner:
    """Returns whose budget it is: both ids empty, the tenant's."""
    if message.memory:
        return BudgetOwner(scope=BudgetScope.MEMORY, session=message.session, memory=message.memory)
    if message.session:
        return BudgetOwner(scope=BudgetScope.SESSION, session=message.session)
    return BudgetOwner(scope=BudgetScope.TENANT)


def budget(standing: Standing) -> pb.Budget:
    """Returns a budget, and how much of it is left."""
    message = pb.Budget(
        session=standing.owner.session,
        memory=standing.owner.memory,
        period=_PERIOD_NUMBERS[standing.period],
        limit_tokens=standing.limit_tokens,
        limit_micro_usd=standing.limit_micro_usd,
        spent_tokens=standing.spent_tokens,
        spent_micro_usd=standing.spent_micro_usd,
        unpriced_calls=standing.unpriced_calls,
        reserved_tokens=standing.reserved_tokens,
        reserved_micro_usd=standing.reserved_micro_usd,
        etag=standing.limits.etag(),
    )
    if standing.period is BudgetPeriod.DAY:
        message.resets_at.FromDatetime(standing.day_end)
    return message
