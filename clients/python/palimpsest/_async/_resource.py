"""What a client, a session and a memory have in common: budgets, and what was spent."""

from collections.abc import AsyncIterator
from datetime import date
from typing import Any

from palimpsest import _convert_spend as convert
from palimpsest._async._connection import Connection
from palimpsest._values_spend import (
    Budget,
    BudgetPeriod,
    BudgetSet,
    SpendLevel,
    SpendReport,
)
from palimpsest.v1alpha1 import budgets_pb2, budgets_pb2_grpc, usage_pb2, usage_pb2_grpc


class Resource:
    """The tenant, a session or a memory, and the connection to it."""

    def __init__(self, connection: Connection, session: str = "", memory: str = "") -> None:
        self._connection = connection
        self._owner = convert.budget_owner(session, memory)
        self._budgets = budgets_pb2_grpc.BudgetServiceStub(connection.channel)
        self._usage = usage_pb2_grpc.UsageServiceStub(connection.channel)

    async def set_budget(
        self,
        period: BudgetPeriod,
        *,
        limit_tokens: int | None = None,
        limit_micro_usd: int | None = None,
    ) -> BudgetSet:
        """Bounds what all model calls of the tenant, session or memory may cost.

        A "day" (UTC) or in "total"; one limit or both: tokens of prompts and replies, and
        millionths of a US dollar. It replaces the budget of that period; memories that a
        budget held try again. Raises NotFound, ValueError for a limit that cannot be.
        """
        request = budgets_pb2.SetBudgetRequest(
            owner=self._owner,
            period=convert.budget_period(period),
            limit_tokens=convert.budget_limit("limit_tokens", limit_tokens),
            limit_micro_usd=convert.budget_limit("limit_micro_usd", limit_micro_usd),
        )
        response = await self._connection.call(self._budgets.SetBudget, request)
        budget = convert.budget(response.budget)
        return BudgetSet(budget=budget, woken_memories=response.woken_memories)

    async def clear_budget(self, period: BudgetPeriod) -> int:
        """Removes the budget; returns how many memories that it held try again.

        Raises NotFound.
        """
        request = budgets_pb2.ClearBudgetRequest(
            owner=self._owner, period=convert.budget_period(period)
        )
        # Not repeated: what was done the first time would be NOT_FOUND.
        response = await self._connection.call(self._budgets.ClearBudget, request, retry=False)
        return int(response.woken_memories)

    def _list_budgets(self, session: str) -> AsyncIterator[Budget]:
        request = budgets_pb2.ListBudgetsRequest(session=session, page_size=1000)
        method = self._budgets.ListBudgets
        return self._connection.all_of(method, request, "budgets", convert.budget)

    async def _read_spend(
        self, *, level: SpendLevel, from_day: date | None, to_day: date | None, **others: Any
    ) -> SpendReport:
        request = convert.spend_request(level=level, from_day=from_day, to_day=to_day, **others)
        lines: list[usage_pb2.ListSpendResponse.Line] = []
        total = usage_pb2.Spend()
        async for page in self._connection.pages(self._usage.ListSpend, request):
            total = page.total
            lines += page.lines
        return convert.spend_report(total, lines)
