"""What MemoryService has to change memories by hand."""

from palimpsest.v1 import memories_pb2, memory_service_pb2
from service.domain.prism.schemas.tree import render
from service.domain.values.errors import SchemaInvalid
from service.rpc.convert import history, specs
from service.rpc.convert.memories import memory
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.memories.edit import Editor, Target


class MemoryEdits:
    """EditMemory, RollbackMemory, FoldMemory and CheckSchema of MemoryService."""

    _editor: Editor

    async def EditMemory(  # noqa: N802 - named by the proto
        self, request: memory_service_pb2.EditMemoryRequest, context: Context
    ) -> memory_service_pb2.EditMemoryResponse:
        """Adds, updates and removes values."""
        edits = [history.edit(one) for one in request.edits]
        return await reply(
            self._editor.revise(current_tenant(), _target(request), edits),
            lambda done: memory_service_pb2.EditMemoryResponse(
                memory=memory(done[0]), amendments=[history.amendment(one) for one in done[1]]
            ),
        )

    async def RollbackMemory(  # noqa: N802
        self, request: memory_service_pb2.RollbackMemoryRequest, context: Context
    ) -> memories_pb2.Memory:
        """Restores an earlier revision."""
        return await reply(
            self._editor.rollback(current_tenant(), _target(request), request.revision), memory
        )

    async def FoldMemory(  # noqa: N802
        self, request: memory_service_pb2.FoldMemoryRequest, context: Context
    ) -> memory_service_pb2.FoldMemoryResponse:
        """Writes the amendments into a new base."""
        target = Target(session=request.session, memory=request.memory)
        return await reply(
            self._editor.fold(current_tenant(), target),
            lambda done: memory_service_pb2.FoldMemoryResponse(
                memory=memory(done[0]), folded=done[1]
            ),
        )

    async def CheckSchema(  # noqa: N802
        self, request: memory_service_pb2.CheckSchemaRequest, context: Context
    ) -> memory_service_pb2.CheckSchemaResponse:
        """Checks a schema."""
        try:
            schema = specs.schema_of(request.schema_source, request.json_schema)
        except SchemaInvalid as error:
            # Here the fields are in no spec.
            error.field = error.field.removeprefix("prism.")
            raise
        return memory_service_pb2.CheckSchemaResponse(schema_source=render(schema))


def _target(
    request: memory_service_pb2.EditMemoryRequest | memory_service_pb2.RollbackMemoryRequest,
) -> Target:
    expected = request.expected_revision if request.HasField("expected_revision") else None
    return Target(
        session=request.session,
        memory=request.memory,
        expected_revision=expected,
        comment=request.comment,
    )
