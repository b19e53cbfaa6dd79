"""OperationService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1 import operation_service_pb2, operation_service_pb2_grpc, operations_pb2
from service.rpc.convert import operations as convert
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.rpc.streams import until_stopped
from service.usecases.memories.long_operations import FoundOperation, LongOperations


class OperationService(operation_service_pb2_grpc.OperationServiceServicer):
    """See operation_service.proto."""

    def __init__(self, operations: LongOperations, pages: Pages, stopping: asyncio.Event) -> None:
        self._operations = operations
        self._pages = pages
        self._stopping = stopping

    async def GetOperation(  # noqa: N802 - named by the proto
        self, request: operation_service_pb2.GetOperationRequest, context: Context
    ) -> operations_pb2.Operation:
        """Returns an operation."""
        return convert.operation(await self._operations.get(current_tenant(), request.operation))

    async def ListOperations(  # noqa: N802
        self, request: operation_service_pb2.ListOperationsRequest, context: Context
    ) -> operation_service_pb2.ListOperationsResponse:
        """Lists operations."""
        wanted = convert.operation_filter(request)
        scope = f"operations:{wanted!r}"
        found, last = await self._operations.list_operations(
            current_tenant(),
            wanted,
            before=self._pages.created_before(scope, request.page_token),
            limit=self._pages.size(request.page_size),
        )
        messages = [convert.operation(FoundOperation(operation=one)) for one in found.items]
        page = fitting(messages, self._pages.max_bytes)
        if len(page) < len(messages):
            cut = found.items[len(page) - 1]
            last = (cut.created_at, cut.id.operation_id)
        token = "" if last is None else f"{last[0].isoformat()} {last[1]}"
        return operation_service_pb2.ListOperationsResponse(
            operations=page, next_page_token=self._pages.next(scope, token) if token else ""
        )

    async def WaitOperation(  # noqa: N802
        self, request: operation_service_pb2.WaitOperationRequest, context: Context
    ) -> AsyncIterator[operations_pb2.Operation]:
        """Streams an operation until it has ended."""
        states = self._operations.wait(
            current_tenant(), request.operation, deadline=deadline_of(context)
        )
        async with aclosing(until_stopped(states, self._stopping)) as changes:
            async for found in changes:
                yield convert.operation(found)

    async def CancelOperation(  # noqa: N802
        self, request: operation_service_pb2.CancelOperationRequest, context: Context
    ) -> operations_pb2.Operation:
        """Cancels an operation."""
        cancelled = self._operations.cancel(current_tenant(), request.operation)
        return await reply(cancelled, convert.operation)
