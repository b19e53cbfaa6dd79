"""OperationService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from uuid import UUID

import grpc

from palimpsest.v1alpha1 import errors_pb2, operations_pb2, operations_pb2_grpc
from service.domain.memories.long_operations import (
    ENDED,
    DraftFacts,
    Operation,
    OperationKind,
    OperationState,
    OperationTarget,
)
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.rpc.streams import until_stopped
from service.usecases.memories.long_operations import (
    FoundOperation,
    LongOperations,
    OperationFilter,
)
from storage.memories.long_operations import PageCursor
from storage.memories.memories import StoredMemory
from storage.prism.schema_drafts import StoredSchemaDraft

_KINDS = {
    OperationKind.REBUILD: operations_pb2.Operation.KIND_REBUILD,
    OperationKind.CONSOLIDATION: operations_pb2.Operation.KIND_CONSOLIDATION,
    OperationKind.SCHEMA: operations_pb2.Operation.KIND_SCHEMA,
}
_STATES = {
    OperationState.PENDING: operations_pb2.OPERATION_STATE_PENDING,
    OperationState.RUNNING: operations_pb2.OPERATION_STATE_RUNNING,
    OperationState.DONE: operations_pb2.OPERATION_STATE_DONE,
    OperationState.FAILED: operations_pb2.OPERATION_STATE_FAILED,
    OperationState.CANCELLED: operations_pb2.OPERATION_STATE_CANCELLED,
}


class OperationService(operations_pb2_grpc.OperationServiceServicer):
    """See operations.proto."""

    def __init__(self, operations: LongOperations, pages: Pages, stopping: asyncio.Event) -> None:
        self._operations = operations
        self._pages = pages
        self._stopping = stopping

    async def GetOperation(  # noqa: N802 - named by the proto
        self, request: operations_pb2.GetOperationRequest, context: Context
    ) -> operations_pb2.GetOperationResponse:
        """Returns an operation."""
        found = await self._operations.get(current_tenant(), request.operation)
        return operations_pb2.GetOperationResponse(operation=message(found))

    async def ListOperations(  # noqa: N802
        self, request: operations_pb2.ListOperationsRequest, context: Context
    ) -> operations_pb2.ListOperationsResponse:
        """Lists operations."""
        wanted = OperationFilter(
            session=request.session,
            memory=request.memory,
            kind=next((one for one, number in _KINDS.items() if number == request.kind), None),
            state=next((one for one, number in _STATES.items() if number == request.state), None),
        )
        scope = f"operations:{wanted!r}"
        found, last = await self._operations.list_operations(
            current_tenant(),
            wanted,
            before=_cursor(self._pages.cursor(scope, request.page_token, first="")),
            limit=self._pages.size(request.page_size),
        )
        messages = [message(FoundOperation(operation=one)) for one in found.items]
        page = fitting(messages, self._pages.max_bytes)
        if len(page) < len(messages):
            cut = found.items[len(page) - 1]
            last = (cut.created_at, cut.id.operation_id)
        token = "" if last is None else f"{last[0].isoformat()} {last[1]}"
        return operations_pb2.ListOperationsResponse(
            operations=page, next_page_token=self._pages.next(scope, token) if token else ""
        )

    async def WaitOperation(  # noqa: N802
        self, request: operations_pb2.WaitOperationRequest, context: Context
    ) -> AsyncIterator[operations_pb2.WaitOperationResponse]:
        """Streams an operation until it has ended."""
        states = self._operations.wait(
            current_tenant(), request.operation, deadline=deadline_of(context)
        )
        async with aclosing(until_stopped(states, self._stopping)) as changes:
            async for found in changes:
                yield operations_pb2.WaitOperationResponse(operation=message(found))

    async def CancelOperation(  # noqa: N802
        self, request: operations_pb2.CancelOperationRequest, context: Context
    ) -> operations_pb2.CancelOperationResponse:
        """Cancels an operation."""
        return await reply(
            self._operations.cancel(current_tenant(), request.operation),
            lambda found: operations_pb2.CancelOperationResponse(operation=message(found)),
        )


def message(found: FoundOperation) -> operations_pb2.Operation:
    """Returns an operation as the API has it."""
    operation = found.operation
    made = operations_pb2.Operation(
        id=str(operation.id),
        kind=_KINDS[operation.kind],
        state=_STATES[operation.state],
        session=operation.session,
        memory=operation.memory,
        create_time=convert.timestamp(operation.created_at),
    )
    if operation.ended_at is not None:
        made.end_time.CopyFrom(convert.timestamp(operation.ended_at))
    if operation.state not in ENDED:
        made.progress.CopyFrom(_progress(operation))
    if (error := operation.failure()) is not None:
        made.error.MergeFrom(
            errors_pb2.Error(
                # All that operations fail with.
                code=grpc.StatusCode.FAILED_PRECONDITION.value[0],
                reason=errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason}"),
                message=error.message,
                metadata=error.metadata,
            )
        )
    match found.result:
        case StoredMemory():
            made.memory_result.CopyFrom(convert.memory(found.result))
        case StoredSchemaDraft():
            made.schema_result.CopyFrom(
                operations_pb2.Operation.Schema(
                    schema_source=found.result.source,
                    domain=found.result.domain,
                    example_query=found.result.example_query,
                    model=found.result.model,
                    attempts=found.result.replies,
                )
            )
    return made


def _progress(operation: Operation) -> operations_pb2.Operation.Progress:
    match operation.facts:
        case OperationTarget():
            return operations_pb2.Operation.Progress(
                completed=min(operation.facts.applied_position, operation.goal),
                total=operation.goal,
                blocked=operation.facts.blocked or "",
            )
        case DraftFacts():
            return operations_pb2.Operation.Progress(blocked=operation.facts.blocked or "")
    return operations_pb2.Operation.Progress()


def _cursor(text: str) -> PageCursor | None:
    """Where a page begins, from a token that we signed."""
    if not text:
        return None
    created_at, _, operation_id = text.partition(" ")
    return datetime.fromisoformat(created_at), UUID(operation_id)
