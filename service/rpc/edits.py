"""EditService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1alpha1 import edits_pb2, edits_pb2_grpc
from service.llm.gateway.allowed import AllowedModels
from service.rpc import specs
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.operations import message as operation_message
from service.rpc.streams import until_stopped
from service.usecases.memories.edit import Editor, Target
from service.usecases.memories.long_operations import LongOperations
from service.usecases.memories.rebuild import Rebuilder


class EditService(edits_pb2_grpc.EditServiceServicer):
    """See edits.proto."""

    def __init__(
        self,
        editor: Editor,
        rebuilder: Rebuilder,
        operations: LongOperations,
        stopping: asyncio.Event,
        models: AllowedModels,
    ) -> None:
        self._editor = editor
        self._rebuilder = rebuilder
        self._operations = operations
        self._stopping = stopping
        self._models = models

    async def ConsolidateMemory(  # noqa: N802 - named by the proto
        self, request: edits_pb2.ConsolidateMemoryRequest, context: Context
    ) -> edits_pb2.ConsolidateMemoryResponse:
        """Asks for a pass that merges and shortens the memory."""
        target = Target(session=request.session, memory=request.memory)
        return await reply(
            self._editor.consolidate(current_tenant(), target),
            lambda done: edits_pb2.ConsolidateMemoryResponse(
                memory=convert.memory(done[0]), operation=operation_message(done[1])
            ),
        )

    async def UpdateSchema(  # noqa: N802
        self, request: edits_pb2.UpdateSchemaRequest, context: Context
    ) -> edits_pb2.UpdateSchemaResponse:
        """Gives a live memory a schema with more fields."""
        schema = specs.schema_of(request.schema_source, request.json_schema)
        return await reply(
            self._editor.update_schema(current_tenant(), _target(request), schema),
            lambda stored: edits_pb2.UpdateSchemaResponse(memory=convert.memory(stored)),
        )

    async def UpdateModel(  # noqa: N802
        self, request: edits_pb2.UpdateModelRequest, context: Context
    ) -> edits_pb2.UpdateModelResponse:
        """Gives a live memory another model."""
        self._models.check(request.model, "model")
        target = Target(session=request.session, memory=request.memory)
        return await reply(
            self._editor.update_model(current_tenant(), target, request.model),
            lambda stored: edits_pb2.UpdateModelResponse(memory=convert.memory(stored)),
        )

    async def RebuildMemory(  # noqa: N802
        self, request: edits_pb2.RebuildMemoryRequest, context: Context
    ) -> AsyncIterator[edits_pb2.RebuildMemoryResponse]:
        """Reads the whole log again into a new memory."""
        events = self._rebuilder.rebuild(
            current_tenant(),
            request.session,
            (request.memory, request.new_memory),
            specs.rebuilt(request),
            deadline=deadline_of(context),
        )
        async with aclosing(until_stopped(events, self._stopping)) as told:
            async for event in told:
                response = edits_pb2.RebuildMemoryResponse(
                    memory=convert.memory(event.memory), done=event.done
                )
                if event.operation is not None:
                    found = await self._operations.get(current_tenant(), str(event.operation))
                    response.operation.CopyFrom(operation_message(found))
                yield response


def _target(request: edits_pb2.UpdateSchemaRequest) -> Target:
    expected = request.expected_revision if request.HasField("expected_revision") else None
    return Target(
        session=request.session,
        memory=request.memory,
        expected_revision=expected,
        comment=request.comment,
    )
