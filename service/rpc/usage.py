"""UsageService."""

from palimpsest.v1 import usage_pb2, usage_pb2_grpc
from service.rpc import convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases import usage
from storage.database import Database


class UsageService(usage_pb2_grpc.UsageServiceServicer):
    """See usage.proto."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
