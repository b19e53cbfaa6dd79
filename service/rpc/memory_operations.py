"""MemoryOperations: what of MemoryService returns an operation."""

from palimpsest.v1 import memory_service_pb2, operations_pb2
from service.llm.gateway.allowed import AllowedModels
from service.rpc.convert import operations as convert
from service.rpc.convert import specs
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.memories.edit import Editor, Target
from service.usecases.memories.rebuild import Rebuilder
from service.usecases.prism.schemas import SchemaRequest, Schemas


class MemoryOperations:
    """See memory_service.proto."""

    _editor: Editor
    _models: AllowedModels
    _rebuilder: Rebuilder
    _schemas: Schemas

    async def ConsolidateMemory(  # noqa: N802 - named by the proto
        self, request: memory_service_pb2.ConsolidateMemoryRequest, context: Context
    ) -> operations_pb2.Operation:
        """Requests a consolidation."""
        target = Target(session=request.session, memory=request.memory)
        requested = self._editor.consolidate(current_tenant(), target)
        return await reply(requested, convert.operation)

    async def RebuildMemory(  # noqa: N802
        self, request: memory_service_pb2.RebuildMemoryRequest, context: Context
    ) -> operations_pb2.Operation:
        """Reads the whole log again into a new memory."""
        names = (request.memory, request.new_memory.id)
        with specs.fields_within("new_memory"):
            requested = self._rebuilder.rebuild(
                current_tenant(), request.session, names, convert.spec_changes(request)
            )
            return await reply(requested, convert.operation)

    async def GenerateSchema(  # noqa: N802
        self, request: memory_service_pb2.GenerateSchemaRequest, context: Context
    ) -> operations_pb2.Operation:
        """Generates a schema."""
        self._models.check(request.model, "model")
        wanted = SchemaRequest(
            session=request.session,
            domain=request.domain,
            example_query=request.example_query,
            model=request.model,
        )
        requested = self._schemas.generate(current_tenant(), wanted)
        return await reply(requested, convert.operation)
