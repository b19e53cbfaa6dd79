"""BudgetService."""

import json

from palimpsest.v1alpha1 import budgets_pb2, budgets_pb2_grpc
from service.domain.spend.budgets import BudgetOwner, BudgetPeriod, BudgetScope, Standing
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.spend.budgets import BudgetLimits, Budgets

_PERIODS = {
    budgets_pb2.BUDGET_PERIOD_DAY: BudgetPeriod.DAY,
    budgets_pb2.BUDGET_PERIOD_TOTAL: BudgetPeriod.TOTAL,
}
_PERIOD_NUMBERS = {period: number for number, period in _PERIODS.items()}


class BudgetService(budgets_pb2_grpc.BudgetServiceServicer):
    """See budgets.proto."""

    def __init__(self, budgets: Budgets, pages: Pages) -> None:
        self._budgets = budgets
        self._pages = pages

    async def SetBudget(  # noqa: N802 - named by the proto
        self, request: budgets_pb2.SetBudgetRequest, context: Context
    ) -> budgets_pb2.SetBudgetResponse:
        """Sets a budget."""
        limits = BudgetLimits(
            tokens=request.limit_tokens if request.HasField("limit_tokens") else None,
            micro_usd=request.limit_micro_usd if request.HasField("limit_micro_usd") else None,
        )
        return await reply(
            self._budgets.put(
                current_tenant(), _owner(request.owner), _PERIODS[request.period], limits
            ),
            lambda done: budgets_pb2.SetBudgetResponse(
                budget=_message(done[0]), woken_memories=done[1]
            ),
        )

    async def ListBudgets(  # noqa: N802
        self, request: budgets_pb2.ListBudgetsRequest, context: Context
    ) -> budgets_pb2.ListBudgetsResponse:
        """Lists budgets."""
        scope = f"budgets/{request.session}"
        size = self._pages.size(request.page_size)
        cursor = self._pages.cursor(scope, request.page_token, first='["", "", ""]')
        session, memory, period = json.loads(cursor)
        found = await self._budgets.page(
            current_tenant(), request.session or None, (session, memory, period), size + 1
        )
        page, token = self._pages.cut(
            [_message(one) for one in found[:size]], scope, _place_of, more=len(found) > size
        )
        return budgets_pb2.ListBudgetsResponse(budgets=page, next_page_token=token)

    async def ClearBudget(  # noqa: N802
        self, request: budgets_pb2.ClearBudgetRequest, context: Context
    ) -> budgets_pb2.ClearBudgetResponse:
        """Takes a budget away."""
        return await reply(
            self._budgets.clear(current_tenant(), _owner(request.owner), _PERIODS[request.period]),
            lambda woken: budgets_pb2.ClearBudgetResponse(woken_memories=woken),
        )


def _owner(message: budgets_pb2.BudgetOwner) -> BudgetOwner:
    match message.WhichOneof("scope"):
        case "memory":
            named = message.memory
            return BudgetOwner(scope=BudgetScope.MEMORY, session=named.session, memory=named.memory)
        case "session":
            return BudgetOwner(scope=BudgetScope.SESSION, session=message.session)
    return BudgetOwner(scope=BudgetScope.TENANT)


def _place_of(budget: budgets_pb2.Budget) -> str:
    owner = budget.owner
    session = owner.memory.session or owner.session
    return json.dumps([session, owner.memory.memory, _PERIODS[budget.period].value])


def _message(standing: Standing) -> budgets_pb2.Budget:
    message = budgets_pb2.Budget(
        period=_PERIOD_NUMBERS[standing.period],
        limit_tokens=standing.limit_tokens,
        limit_micro_usd=standing.limit_micro_usd,
        spent_tokens=standing.spent_tokens,
        spent_micro_usd=standing.spent_micro_usd,
        unpriced_calls=standing.unpriced_calls,
        reserved_tokens=standing.reserved_tokens,
        reserved_micro_usd=standing.reserved_micro_usd,
    )
    owner = standing.owner
    match owner.scope:
        case BudgetScope.TENANT:
            message.owner.tenant = True
        case BudgetScope.SESSION:
            message.owner.session = owner.session
        case BudgetScope.MEMORY:
            message.owner.memory.session = owner.session
            message.owner.memory.memory = owner.memory
    if standing.period is BudgetPeriod.DAY:
        message.reset_time.FromDatetime(standing.day_end)
    return message
