"""Usage, costs and budgets, from and to the messages of BillingService."""

from collections.abc import Mapping, Sequence
from datetime import date

from palimpsest.v1 import billing_service_pb2 as pb
from palimpsest.v1 import common_pb2
from service.domain.operations.storage import StorageKind, StoredSize
from service.domain.prompting.flows import Purpose
from service.domain.spend.budgets import BudgetOwner, BudgetPeriod, BudgetScope, Standing
from service.domain.state.accounting import Accounting
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import message_of, positions, timestamp
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
    return message_of(common_pb2.Usage, spend)


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
            message_of(
                pb.CostReport.CacheLine,
                one,
                outcome=_OUTCOMES.get(one.residual, pb.CostReport.CACHE_OUTCOME_UNSPECIFIED),
            )
            for one in cost.residuals
        ],
        reading=message_of(pb.CostReport.Reading, cost.reading),
        comparison=_comparison(cost.detail) if isinstance(cost.detail, Compared) else None,
        accounting=message_of(pb.CostReport.Accounting, cost.detail)
        if isinstance(cost.detail, Accounting)
        else None,
    )


def _comparison(compared: Compared) -> pb.CostReport.Comparison:
    return message_of(
        pb.CostReport.Comparison,
        compared,
        positions=positions(compared.from_position + 1, compared.to_position),
        truncated=compared.steps < compared.all_steps,
    )


def storage_usage(sizes: Mapping[StorageKind, StoredSize]) -> pb.StorageUsage:
    """Returns sizes by kind, with those of which nothing is stored."""
    found = [
        message_of(pb.StorageUsage.Size, sizes.get(kind, StoredSize()), kind=kind)
        for kind in StorageKind
    ]
    return pb.StorageUsage(sizes=found)


def budget_owner(message: pb.Budget | pb.DeleteBudgetRequest) -> BudgetOwner:
    """Returns whose budget it is: both ids empty, the tenant's."""
    if message.memory:
        return BudgetOwner(scope=BudgetScope.MEMORY, session=message.session, memory=message.memory)
    if message.session:
        return BudgetOwner(scope=BudgetScope.SESSION, session=message.session)
    return BudgetOwner(scope=BudgetScope.TENANT)


def budget(standing: Standing) -> pb.Budget:
    """Returns a budget, and how much of it is left."""
    return message_of(
        pb.Budget,
        standing,
        session=standing.owner.session,
        memory=standing.owner.memory,
        etag=standing.limits.etag(),
        resets_at=timestamp(standing.day_end) if standing.period is BudgetPeriod.DAY else None,
    )
