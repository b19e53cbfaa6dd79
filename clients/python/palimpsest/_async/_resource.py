"""The common part of clients, sessions and memories: budgets and usage."""

from collections.abc import AsyncIterator
from datetime import date
from functools import partial
from typing import Any

from palimpsest import _spend as convert
from palimpsest._async._connection import Connection
from palimpsest._convert import message_of, value_of
from palimpsest._spend import Budget, BudgetPeriod, StoredSize, UsageReport
from palimpsest.v1 import billing_service_pb2, common_pb2


class Resource:
    """The tenant, a session or a memory, and the connection to it."""

    def __init__(self, connection: Connection, session: str = "", memory: str = "") -> None:
        self._connection = connection
        self._of_session, self._of_memory = session, memory

    async def set_budget(
        self,
        period: BudgetPeriod,
        *,
        limit_tokens: int | None = None,
        limit_micro_usd: int | None = None,
        etag: str = "",
        request_id: str = "",
    ) -> Budget:
        """Bounds what all model calls of the tenant, session or memory may cost.

        The period is a "day" (UTC) or the "total"; limits are tokens of prompts and replies,
        millionths of a US dollar, or both. Replaces the budget of that period, with an `etag`
        only if its limits are unchanged; memories that a budget held try again. Raises
        NotFound, Aborted for another etag, ValueError.
        """
        budget = message_of(
            billing_service_pb2.Budget,
            session=self._of_session,
            memory=self._of_memory,
            period=period,
            limit_tokens=convert.budget_limit("limit_tokens", limit_tokens),
            limit_micro_usd=convert.budget_limit("limit_micro_usd", limit_micro_usd),
            etag=etag,
        )
        request = billing_service_pb2.SetBudgetRequest(budget=budget, request_id=request_id)
        # Repeated with an etag, what was done the first time would be ETAG_MISMATCH.
        retry = not etag or bool(request_id)
        method = self._connection.billing.SetBudget
        return value_of(Budget, await self._connection.call(method, request, retry=retry))

    async def delete_budget(
        self, period: BudgetPeriod, *, missing_ok: bool = False, request_id: str = ""
    ) -> None:
        """Deletes the budget; memories that it held try again.

        Raises NotFound, unless `missing_ok`.
        """
        request = message_of(
            billing_service_pb2.DeleteBudgetRequest,
            session=self._of_session,
            memory=self._of_memory,
            period=period,
            allow_missing=missing_ok,
            request_id=request_id,
        )
        # Otherwise not repeated: what was done the first time would be NOT_FOUND.
        retry = missing_ok or bool(request_id)
        await self._connection.call(self._connection.billing.DeleteBudget, request, retry=retry)

    def _list_budgets(self, session: str) -> AsyncIterator[Budget]:
        request = billing_service_pb2.ListBudgetsRequest(session=session, page_size=1000)
        method = self._connection.billing.ListBudgets
        return self._connection.all_of(method, request, "budgets", partial(value_of, Budget))

    async def _read_storage(self, session: str) -> tuple[StoredSize, ...]:
        request = billing_service_pb2.GetStorageUsageRequest(session=session)
        method = self._connection.billing.GetStorageUsage
        found = await self._connection.call(method, request)
        return tuple(value_of(StoredSize, one) for one in found.sizes)

    async def _read_usage(
        self, first_day: date | None, last_day: date | None, **wanted: Any
    ) -> UsageReport:
        request = message_of(
            billing_service_pb2.ListUsageRequest,
            first_day=convert.day(first_day),
            last_day=convert.day(last_day),
            page_size=1000,
            **wanted,
        )
        lines: list[billing_service_pb2.ListUsageResponse.Line] = []
        total = common_pb2.Usage()
        async for page in self._connection.pages(self._connection.billing.ListUsage, request):
            total = page.total
            lines += page.lines
        return convert.usage_report(total, lines)
