"""UsageService."""

import json

from palimpsest.v1alpha1 import usage_pb2, usage_pb2_grpc
from service.rpc import costs
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.spend import usage
from service.usecases.spend.costs import Costs
from storage.engine.database import Database


class UsageService(usage_pb2_grpc.UsageServiceServicer):
    """See usage.proto."""

    def __init__(self, database: Database, costs: Costs, pages: Pages) -> None:
        self._database = database
        self._costs = costs
        self._pages = pages

    async def GetUsage(  # noqa: N802 - named by the proto
        self, request: usage_pb2.GetUsageRequest, context: Context
    ) -> usage_pb2.GetUsageResponse:
        """Sums the model calls of a session or a memory."""
        lines = await usage.read(
            self._database, current_tenant(), request.session, request.memory or None
        )
        return usage_pb2.GetUsageResponse(
            total=convert.usage(lines),
            lines=[
                usage_pb2.GetUsageResponse.Line(
                    purpose=line.purpose, model=line.model, usage=convert.usage([line])
                )
                for line in lines
            ],
        )

    async def ListSpend(  # noqa: N802
        self, request: usage_pb2.ListSpendRequest, context: Context
    ) -> usage_pb2.ListSpendResponse:
        """Sums what was spent, in lines."""
        named = (request.session, request.memory, request.from_day, request.to_day)
        scope = f"spend/{json.dumps([*named, request.level, request.by_day])}"
        size = self._pages.size(request.page_size)
        cursor = json.loads(self._pages.cursor(scope, request.page_token, first="null"))
        total, found = await self._costs.spend(
            current_tenant(),
            costs.asked(request),
            costs.LEVELS[request.level],
            by_day=request.by_day,
            after=None if cursor is None else tuple(cursor),
            limit=size + 1,
        )
        page, token = self._pages.cut(
            [costs.spend_line(one) for one in found[:size]],
            scope,
            lambda one: json.dumps([one.session, one.memory, one.day]),
            more=len(found) > size,
        )
        return usage_pb2.ListSpendResponse(
            lines=page, total=costs.spend_message(total), next_page_token=token
        )

    async def GetCost(  # noqa: N802
        self, request: usage_pb2.GetCostRequest, context: Context
    ) -> usage_pb2.GetCostResponse:
        """Says what a session or a memory came to."""
        cost = await self._costs.cost(
            current_tenant(), costs.asked(request), system_tokens=request.system_tokens
        )
        return costs.cost_response(cost)
