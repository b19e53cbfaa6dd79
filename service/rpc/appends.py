"""Submits the chunks of unary appends and of append streams."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from opentelemetry.context import Context as TraceContext

from palimpsest.v1 import session_service_pb2
from service.domain.log.appending import SERVER_PRODUCER, Request, Submission, SubmittedChunk
from service.domain.values.errors import InvalidInput, PalimpsestError, server_stopping
from service.domain.values.fault_hook import boundary
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.rpc.convert import chunks as convert
from service.rpc.interceptors.validation import validate
from service.settings.config import Limits
from service.telemetry import tracing
from service.usecases.log.append import Appender
from service.usecases.log.submissions import Appended

Requests = AsyncIterator[session_service_pb2.AppendChunksRequest]


def submission(
    tenant_id: UUID, request: session_service_pb2.AppendRequest, limits: Limits
) -> Submission:
    """Returns what `request` appends; the server numbers it. Raises InvalidInput."""
    chunks = convert.submitted_chunks(request.chunks, limits, numbered=False)
    return Submission(
        session=request.session,
        session_key=session_key(tenant_id, request.session),
        producer_id=SERVER_PRODUCER,
        epoch=0,
        expected_head=request.expected_head if request.HasField("expected_head") else None,
        chunks=chunks,
        request=Request(request_id=request.request_id, digest=_digest(chunks))
        if request.request_id
        else None,
    )


def _digest(chunks: Sequence[SubmittedChunk]) -> bytes:
    """Returns the SHA-256 of all that is appended; each digest has the same length."""
    return hashlib.sha256(b"".join(chunk.digest for chunk in chunks)).digest()


@dataclass(frozen=True, slots=True)
class _UnackedBatch:
    """A batch that is not acked yet."""

    done: "asyncio.Future[Appended]"
    chunks: int
    size_bytes: int


class AppendStream:
    """Reads the batches of one opened stream while there is credit, and acks in order."""

    def __init__(
        self,
        tenant_id: UUID,
        opening: session_service_pb2.AppendChunksRequest.Open,
        incarnation: int,
        appender: Appender,
        limits: Limits,
        stopping: asyncio.Event,
        pace: Callable[[Sequence[Any]], Awaitable[None]],
    ) -> None:
        """`pace` waits until a batch with these chunks may be submitted, or refuses it."""
        self._tenant_id = tenant_id
        self._session = opening.session
        self._session_key = session_key(tenant_id, opening.session)
        self._producer_id = opening.producer_id
        self._incarnation = incarnation
        self._epoch = opening.epoch
        self._appender = appender
        self._limits = limits
        self._stopping = stopping
        self._pace = pace
        self._under_way: deque[_UnackedBatch] = deque()
        self._chunks = 0
        self._bytes = 0
        #: Set when a batch was submitted or reading has ended: there may be something to ack.
        self._some = asyncio.Event()
        #: Set while there is credit left.
        self._credit = asyncio.Event()
        self._credit.set()

    async def run(
        self, requests: Requests
    ) -> AsyncGenerator[session_service_pb2.AppendChunksResponse]:
        """Yields an ack for what became durable; ends when the client does, or with a refusal."""
        reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(lambda _: self._some.set())
        try:
            while True:
                async for ack in self._acks():
                    boundary("append", "ack")
                    yield ack
                    boundary("append", "acked")
                if reading.done() and not self._under_way:
                    break
                self._some.clear()
                if not reading.done() and not self._under_way:
                    await self._some.wait()
            reading.result()
        finally:
            reading.cancel()
            for batch in self._under_way:
                # The stream has ended, so nothing receives their acks.
                batch.done.cancel()

    async def _acks(self) -> AsyncIterator[session_service_pb2.AppendChunksResponse]:
        """Waits for the oldest batch, and acks it with the next ones that are durable."""
        while self._under_way:
            chunks = size_bytes = 0
            refusal: PalimpsestError | None = None
            last: Appended | None = None
            while self._under_way and (last is None or self._under_way[0].done.done()):
                batch = self._under_way[0]
                try:
                    last = await batch.done
                except PalimpsestError as error:
                    refusal = error
                    break
                self._under_way.popleft()
                chunks += batch.chunks
                size_bytes += batch.size_bytes
            if last is not None:
                self._give_back(chunks, size_bytes)
                yield _ack(last, chunks, size_bytes)
            if refusal is not None:
                raise refusal

    async def _read(self, requests: Requests) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        coming: asyncio.Future[Any] | None = None
        try:
            while True:
                await self._credit.wait()
                await self._appender.room()
                coming = asyncio.ensure_future(anext(requests, None))
                await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise server_stopping()
                request = coming.result()
                if request is None:
                    return
                coming = asyncio.ensure_future(self._pace(request.batch.chunks))
                await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise server_stopping()
                coming.result()
                self._submit(request)
        finally:
            stopping.cancel()
            if coming is not None:
                coming.cancel()

    def _submit(self, request: session_service_pb2.AppendChunksRequest) -> None:
        validate(request)
        if request.WhichOneof("frame") != "batch":
            raise misused("a stream is opened once")
        chunks = convert.submitted_chunks(
            request.batch.chunks, self._limits, of="batch.", numbered=True
        )
        done = self._appender.submit(
            self._tenant_id,
            Submission(
                session=self._session,
                session_key=self._session_key,
                producer_id=self._producer_id,
                epoch=self._epoch,
                expected_head=None,
                chunks=chunks,
                incarnation=self._incarnation,
            ),
            parent=_parent(request.batch),
        )
        size_bytes = sum(chunk.size_bytes for chunk in chunks)
        self._under_way.append(_UnackedBatch(done, len(chunks), size_bytes))
        self._chunks += len(chunks)
        self._bytes += size_bytes
        if not self._has_credit():
            self._credit.clear()
        self._some.set()

    def _has_credit(self) -> bool:
        chunks = credit_chunks(self._limits)
        return self._chunks < chunks and self._bytes < self._limits.credit_bytes

    def _give_back(self, chunks: int, size_bytes: int) -> None:
        self._chunks -= chunks
        self._bytes -= size_bytes
        if self._has_credit():
            self._credit.set()


def _parent(batch: session_service_pb2.AppendChunksRequest.Batch) -> TraceContext | None:
    """Returns the trace that a batch belongs to; None: that of its call.

    A call without a trace may last for days: then each batch has a trace of its own.
    """
    return tracing.parsed(batch.traceparent) or (TraceContext() if tracing.begins_here() else None)


def credit_chunks(limits: Limits) -> int:
    """Returns the chunks in flight of a stream: no batch is larger than a backlog may be."""
    return min(limits.credit_chunks, limits.backlog_chunks)


def _ack(last: Appended, chunks: int, size_bytes: int) -> session_service_pb2.AppendChunksResponse:
    return session_service_pb2.AppendChunksResponse(
        ack=session_service_pb2.AppendChunksResponse.Ack(
            through_producer_sequence=last.sequence,
            through_position=last.position,
            read_token=last.token,
            credits=session_service_pb2.AppendChunksResponse.Credits(
                chunks=chunks, bytes=size_bytes
            ),
        )
    )


def misused(why: str) -> InvalidInput:
    """Returns the refusal of a frame that may not come now."""
    return InvalidInput(Reason.STREAM_MISUSED, why, field="frame")
