"""EditService."""

from typing import Any

from palimpsest.v1alpha1 import edits_pb2, edits_pb2_grpc, memories_pb2
from service.domain.prism.amendments import Op
from service.rpc import past
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.memories.edit import Edit, Editor, Target

_OPS: dict[Any, Op | None] = {
    memories_pb2.AMENDMENT_OP_UNSPECIFIED: None,
    memories_pb2.AMENDMENT_OP_ADD: Op.ADD,
    memories_pb2.AMENDMENT_OP_UPDATE: Op.UPDATE,
    memories_pb2.AMENDMENT_OP_REMOVE: Op.REMOVE,
}


class EditService(edits_pb2_grpc.EditServiceServicer):
    """See edits.proto."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor

    async def ReviseMemory(  # noqa: N802 - named by the proto
        self, request: edits_pb2.ReviseMemoryRequest, context: Context
    ) -> edits_pb2.ReviseMemoryResponse:
        """Adds, updates and removes values."""
        edits = [Edit(op=_OPS[e.op], path=e.path, value_json=e.value_json) for e in request.edits]
        return await reply(
            self._editor.revise(current_tenant(), _target(request), edits),
            lambda done: edits_pb2.ReviseMemoryResponse(
                memory=convert.memory(done[0]), amendments=[past.amendment(one) for one in done[1]]
            ),
        )

    async def RollbackMemory(  # noqa: N802
        self, request: edits_pb2.RollbackMemoryRequest, context: Context
    ) -> edits_pb2.RollbackMemoryResponse:
        """Restores the state of an earlier revision."""
        return await reply(
            self._editor.rollback(current_tenant(), _target(request), request.revision),
            lambda stored: edits_pb2.RollbackMemoryResponse(memory=convert.memory(stored)),
        )

    async def FoldMemory(  # noqa: N802
        self, request: edits_pb2.FoldMemoryRequest, context: Context
    ) -> edits_pb2.FoldMemoryResponse:
        """Writes the amendments into a new base."""
        target = Target(session=request.session, memory=request.memory)
        return await reply(
            self._editor.fold(current_tenant(), target),
            lambda done: edits_pb2.FoldMemoryResponse(
                memory=convert.memory(done[0]), folded=done[1]
            ),
        )


def _target(
    request: edits_pb2.ReviseMemoryRequest | edits_pb2.RollbackMemoryRequest,
) -> Target:
    expected = request.expected_revision if request.HasField("expected_revision") else None
    return Target(
        session=request.session,
        memory=request.memory,
        expected_revision=expected,
        comment=request.comment,
    )
