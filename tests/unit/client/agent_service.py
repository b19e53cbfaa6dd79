"""A service of one session and its state memory, which keeps what an agent's loop does."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status

from palimpsest.v1 import (
    chunks_pb2,
    memories_pb2,
    memory_service_pb2,
    session_service_pb2,
    state_service_pb2,
)
from tests.unit.client.server import add

Context = state_service_pb2.GetWorkingContextRequest


async def refuse(
    context: Any, code: grpc.StatusCode, reason: str, message: str, **more: str
) -> Any:
    """Ends a call as the service does."""
    packed = Packed()
    packed.Pack(error_details_pb2.ErrorInfo(reason=reason, metadata=more))
    number = getattr(code_pb2, code.name)
    status = status_pb2.Status(code=number, message=message, details=[packed])
    await context.abort_with_status(rpc_status.to_status(status))


class Service:
    """Chunks in order, one producer with its epoch, and working contexts without vectors."""

    def __init__(self, memories: list[memories_pb2.Memory] | None = None) -> None:
        self.memories = memories or []
        self.chunks: list[chunks_pb2.Chunk] = []
        self.epoch = 0
        #: Chunks that are stored without an ack, and whose stream is cut then.
        self.cuts = 0
        #: Why a context that waits is refused: code and reason.
        self.not_made: tuple[grpc.StatusCode, str] | None = None
        self.asked: list[bool] = []

    async def CreateSession(
        self, request: session_service_pb2.CreateSessionRequest, context: Any
    ) -> session_service_pb2.Session:
        return request.session

    async def GetSession(
        self, request: session_service_pb2.GetSessionRequest, context: Any
    ) -> session_service_pb2.Session:
        return session_service_pb2.Session(id=request.session, head=len(self.chunks))

    async def ListMemories(
        self, request: memory_service_pb2.ListMemoriesRequest, context: Any
    ) -> memory_service_pb2.ListMemoriesResponse:
        return memory_service_pb2.ListMemoriesResponse(memories=self.memories)

    async def CreateMemory(
        self, request: memory_service_pb2.CreateMemoryRequest, context: Any
    ) -> memories_pb2.Memory:
        if any(one.id == request.memory.id for one in self.memories):
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, "MEMORY_EXISTS", "it is there")
        made = memories_pb2.Memory(id=request.memory.id, state=request.memory.state)
        # As the service does with what is left open.
        made.state.period = made.state.period or 10
        self.memories.append(made)
        return made

    async def GetWorkingContext(
        self, request: Context, context: Any
    ) -> state_service_pb2.WorkingContext:
        self.asked.append(request.consistency.fully_applied)
        if request.consistency.fully_applied and self.not_made is not None:
            await refuse(context, *self.not_made, "as the test says")
        text = "\n".join(chunk.agent_step.action or chunk.message.text for chunk in self.chunks)
        return state_service_pb2.WorkingContext(head=len(self.chunks), text=text)

    async def AppendChunks(
        self, requests: AsyncIterator[session_service_pb2.AppendChunksRequest], context: Any
    ) -> AsyncIterator[session_service_pb2.AppendChunksResponse]:
        epoch = 0
        async for request in requests:
            if request.HasField("open"):
                epoch = request.open.epoch
                await self._check(epoch, context)
                self.epoch = epoch
                credits = session_service_pb2.AppendChunksResponse.Credits(
                    chunks=4, bytes=1_000_000
                )
                opened = session_service_pb2.AppendChunksResponse.Opened(
                    last_producer_sequence=len(self.chunks), credits=credits
                )
                yield session_service_pb2.AppendChunksResponse(opened=opened)
                continue
            await self._check(epoch, context)
            for produced in request.batch.chunks:
                if "\0" in produced.agent_step.action:
                    await refuse(
                        context, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "a NUL"
                    )
                if produced.producer_sequence == len(self.chunks) + 1:
                    self.chunks.append(produced)
                if self.cuts:
                    self.cuts -= 1
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test says")
            last = len(self.chunks)
            ack = session_service_pb2.AppendChunksResponse.Ack(
                through_producer_sequence=last, through_position=last, read_token="t"
            )
            yield session_service_pb2.AppendChunksResponse(ack=ack)

    async def _check(self, epoch: int, context: Any) -> None:
        if epoch < self.epoch:
            await refuse(
                context,
                grpc.StatusCode.ABORTED,
                "PRODUCER_FENCED",
                "taken over",
                producer="agent",
                epoch=str(self.epoch),
            )

    def register(self, server: aio.Server) -> None:
        """Serves all of it."""
        served: list[tuple[str, str, Any, Any]] = [
            (
                "SessionService",
                "unary",
                self.CreateSession,
                session_service_pb2.CreateSessionRequest,
            ),
            ("SessionService", "unary", self.GetSession, session_service_pb2.GetSessionRequest),
            ("MemoryService", "unary", self.ListMemories, memory_service_pb2.ListMemoriesRequest),
            ("MemoryService", "unary", self.CreateMemory, memory_service_pb2.CreateMemoryRequest),
            ("StateService", "unary", self.GetWorkingContext, Context),
            (
                "SessionService",
                "streams",
                self.AppendChunks,
                session_service_pb2.AppendChunksRequest,
            ),
        ]
        for service, kind, handle, request in served:
            add(server, service, kind, handle, request)
