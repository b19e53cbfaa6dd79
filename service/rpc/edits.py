"""EditService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from palimpsest.v1alpha1 import edits_pb2, edits_pb2_grpc, memories_pb2
from service.domain.prism.amendments import Op
from service.rpc import past, specs
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.operations import message as operation_message
from service.rpc.streams import until_stopped
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.long_operations import LongOperations
from service.usecases.memories.rebuild import Rebuilder

_OPS: dict[Any, Op | None] = {
    memories_pb2.AMENDMENT_OP_UNSPECIFIED: None,
    memories_pb2.AMENDMENT_OP_ADD: Op.ADD,
    memories_pb2.AMENDMENT_OP_UPDATE: Op.UPDATE,
    memories_pb2.AMENDMENT_OP_REMOVE: Op.REMOVE,
}


class EditService(edits_pb2_grpc.EditServiceServicer):
    """See edits.proto."""

    def __init__(
        self,
        editor: Editor,
        rebuilder: Rebuilder,
        operations: LongOperations,
        stopping: asyncio.Event,
    ) -> None:
        self._editor = editor
        self._rebuilder = rebuilder
        self._operations = operations
        self._stopping = stopping

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

    async def ConsolidateMemory(  # noqa: N802
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
