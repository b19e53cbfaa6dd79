"""Serves SealTree of v1alpha1."""

from palimpsest.v1alpha1 import trees_pb2, trees_pb2_grpc
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.tree.trees import Trees


class TreeSealService(trees_pb2_grpc.TreeServiceServicer):
    """See trees.proto."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees

    async def SealTree(  # noqa: N802 - named by the proto
        self, request: trees_pb2.SealTreeRequest, context: Context
    ) -> trees_pb2.SealTreeResponse:
        """Closes a tree."""
        return await reply(
            self._trees.seal(current_tenant(), request.session, request.memory),
            lambda stored: trees_pb2.SealTreeResponse(memory=convert.memory(stored)),
        )
