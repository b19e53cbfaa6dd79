"""BillingService."""

import json

from google.protobuf.empty_pb2 import Empty

from palimpsest.v1 import billing_service_pb2 as pb
from palimpsest.v1 import billing_service_pb2_grpc
from service.domain.spend.budgets import BudgetLimits
from service.rpc.convert import spend as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.operations.storage_usage import StorageUsage
from service.usecases.spend.budgets import Budgets
from service.usecases.spend.costs import Costs


class BillingService(billing_service_pb2_grpc.BillingServiceServicer):
    """See billing_service.proto."""

    def __init__(self, costs: Costs, budgets: Budgets, storage: StorageUsage, pages: Pages) -> None:
        self._costs = costs
        self._storage = storage
        self._budgets = budgets
        self._pages = pages

    async def ListUsage(  # noqa: N802 - named by the proto
        self, request: pb.ListUsageRequest, context: Context
    ) -> pb.ListUsageResponse:
        """Lists what was used, in lines."""
        by_purpose = pb.ListUsageRequest.GROUPING_PURPOSE in request.group_by
        asked = (request.session, request.memory, request.first_day, request.last_day)
        scope = f"usage/{json.dumps([*asked, *sorted(request.group_by)])}"
        size = self._pages.size(request.page_size)
        cursor = json.loads(self._pages.cursor(scope, request.page_token, first="null"))
        after = None if cursor is None else tuple(cursor)
        query = convert.cost_query(request)
        if by_purpose:
            by_memory = pb.ListUsageRequest.GROUPING_MEMORY in request.group_by
            total, costs = await self._costs.purposes(
                current_tenant(), query, by_memory=by_memory, after=after, limit=size + 1
            )
            session = request.session if by_memory else ""
            lines = [convert.purpose_line(one, session) for one in costs]
            places = [[one.memory, one.purpose, one.model] for one in costs]
        else:
            total, found = await self._costs.spend(
                current_tenant(),
                query,
                convert.spend_level(request.group_by),
                by_day=pb.ListUsageRequest.GROUPING_DAY in request.group_by,
                after=after,
                limit=size + 1,
            )
            lines = [convert.spend_line(one) for one in found]
            places = [[one.session, one.memory, one.day] for one in lines]
        page, token = self._pages.cut(
            lines[:size],
            scope,
            lambda one: json.dumps(places[lines.index(one)]),
            more=len(lines) > size,
        )
        return pb.ListUsageResponse(lines=page, total=convert.usage(total), next_page_token=token)

    async def GetCostReport(  # noqa: N802
        self, request: pb.GetCostReportRequest, context: Context
    ) -> pb.CostReport:
        """Explains what a session or a memory cost."""
        cost = await self._costs.cost(
            current_tenant(), convert.cost_query(request), system_tokens=request.system_tokens
        )
        return convert.cost_report(cost)

    async def GetStorageUsage(  # noqa: N802
        self, request: pb.GetStorageUsageRequest, context: Context
    ) -> pb.StorageUsage:
        """Returns how much is stored."""
        return convert.storage_usage(await self._storage.sizes(current_tenant(), request.session))

    async def SetBudget(  # noqa: N802
        self, request: pb.SetBudgetRequest, context: Context
    ) -> pb.Budget:
        """Sets a budget."""
        asked = request.budget
        limits = BudgetLimits(
            tokens=asked.limit_tokens if asked.HasField("limit_tokens") else None,
            micro_usd=asked.limit_micro_usd if asked.HasField("limit_micro_usd") else None,
        )
        owner, period = convert.budget_owner(asked), convert.PERIODS[asked.period]
        return await reply(
            self._budgets.put(current_tenant(), owner, period, limits, etag=asked.etag),
            convert.budget,
        )

    async def ListBudgets(  # noqa: N802
        self, request: pb.ListBudgetsRequest, context: Context
    ) -> pb.ListBudgetsResponse:
        """Lists budgets."""
        scope = f"budgets/{request.session}"
        size = self._pages.size(request.page_size)
        cursor = self._pages.cursor(scope, request.page_token, first='["", "", ""]')
        session, memory, period = json.loads(cursor)
        found = await self._budgets.page(
            current_tenant(), request.session or None, (session, memory, period), size + 1
        )
        page, token = self._pages.cut(
            [convert.budget(one) for one in found[:size]], scope, _place_of, more=len(found) > size
        )
        return pb.ListBudgetsResponse(budgets=page, next_page_token=token)

    async def DeleteBudget(  # noqa: N802
        self, request: pb.DeleteBudgetRequest, context: Context
    ) -> Empty:
        """Deletes a budget."""
        return await reply(
            self._budgets.delete(
                current_tenant(),
                convert.budget_owner(request),
                convert.PERIODS[request.period],
                allow_missing=request.allow_missing,
            ),
            lambda _: Empty(),
        )


def _place_of(budget: pb.Budget) -> str:
    return json.dumps([budget.session, budget.memory, convert.PERIODS[budget.period].value])
