"""TreeSealing: what of TreeService returns an operation."""

from palimpsest.v1 import operations_pb2, tree_service_pb2
from service.rpc.convert import operations as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.tree.sealing import Sealer


class TreeSealing:
    """See tree_service.proto."""

    _sealer: Sealer

    async def SealTree(  # noqa: N802 - named by the proto
        self, request: tree_service_pb2.SealTreeRequest, context: Context
    ) -> operations_pb2.Operation:
        """Seals a tree."""
        sealed = self._sealer.seal(current_tenant(), request.session, request.memory)
        return await reply(sealed, convert.operation)
