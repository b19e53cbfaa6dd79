"""LogService: appending and reading the log."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from opentelemetry.context import Context as TraceContext

from palimpsest.v1alpha1 import log_pb2, log_pb2_grpc
from service.domain.log.appending import Submission
from service.domain.values.errors import InvalidInput, PalimpsestError, Unavailable
from service.domain.values.fault_hook import boundary
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.rpc import appends, filters
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.interceptors.tracing import say_subject
from service.rpc.interceptors.validation import validate
from service.rpc.pages import Pages, fitting
from service.settings.config import Limits
from service.telemetry import tracing
from service.usecases.log import sessions
from service.usecases.log.append import Appender
from service.usecases.log.append_queue import Appended
from storage.engine.database import Database

Requests = AsyncIterator[log_pb2.AppendChunksRequest]


class LogService(log_pb2_grpc.LogServiceServicer):
    """See log.proto."""

    def __init__(
        self,
        database: Database,
        appender: Appender,
        pages: Pages,
        limits: Limits,
        stopping: asyncio.Event,
    ) -> None:
        self._database = database
        self._appender = appender
        self._pages = pages
        self._limits = limits
        self._stopping = stopping

    async def AppendChunks(  # noqa: N802 - named by the proto
        self, request_iterator: Requests, context: Context
    ) -> AsyncIterator[log_pb2.AppendChunksResponse]:
        """Appends chunks over one stream."""
        tenant_id = current_tenant()
        request = await anext(request_iterator, None)
        if request is None:
            return
        validate(request)
        if request.WhichOneof("frame") != "open":
            raise _misused("a stream begins with open")
        opening = request.open
        say_subject(opening)
        opened = await self._appender.open(
            tenant_id,
            session=opening.session,
            producer_id=opening.producer_id,
            epoch=opening.epoch,
            expected_head=opening.expected_head if opening.HasField("expected_head") else None,
        )
        yield log_pb2.AppendChunksResponse(
            opened=log_pb2.AppendChunksResponse.Opened(
                last_producer_sequence=opened.last_sequence,
                head=opened.head,
                credits=log_pb2.Credits(
                    chunks=_credit_chunks(self._limits), bytes=self._limits.credit_bytes
                ),
            )
        )
        stream = _AppendStream(
            *(tenant_id, opening, opened.incarnation), self._appender, self._limits, self._stopping
        )
        async with aclosing(stream.run(request_iterator)) as responses:
            async for response in responses:
                yield response

    async def Append(  # noqa: N802
        self, request: log_pb2.AppendRequest, context: Context
    ) -> log_pb2.AppendResponse:
        """Appends one batch."""
        tenant_id = current_tenant()
        self._appender.refuse_when_full()
        submission = appends.submission(tenant_id, request, self._limits)
        appended = await self._appender.submit(tenant_id, submission)
        boundary("append", "reply")
        return log_pb2.AppendResponse(
            ack=log_pb2.Ack(
                through_producer_sequence=appended.sequence,
                through_position=appended.position,
                token=appended.token,
            ),
            first_position=appended.first_position,
        )

    async def ListChunks(  # noqa: N802
        self, request: log_pb2.ListChunksRequest, context: Context
    ) -> log_pb2.ListChunksResponse:
        """Reads chunks in order of position."""
        wanted = None
        if request.HasField("filter"):
            wanted = filters.chunk_filter(request.filter, self._limits)
        page = await sessions.read_chunks(
            self._database,
            current_tenant(),
            request.session,
            from_position=request.from_position,
            limit=self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
            wanted=wanted,
        )
        chunks = fitting([convert.logged_chunk(one) for one in page.chunks], self._pages.max_bytes)
        if len(chunks) < len(page.chunks):
            return log_pb2.ListChunksResponse(
                chunks=chunks, next_position=chunks[-1].position + 1, head=page.head
            )
        return log_pb2.ListChunksResponse(
            chunks=chunks, next_position=page.next_position, head=page.head
        )


@dataclass(frozen=True, slots=True)
class _UnackedBatch:
    """A batch that is not acked yet."""

    done: "asyncio.Future[Appended]"
    chunks: int
    size_bytes: int


class _AppendStream:
    """One opened stream: reads batches as long as there is credit, acks in order."""

    def __init__(
        self,
        tenant_id: UUID,
        opening: log_pb2.AppendChunksRequest.Open,
        incarnation: int,
        appender: Appender,
        limits: Limits,
        stopping: asyncio.Event,
    ) -> None:
        self._tenant_id = tenant_id
        self._session = opening.session
        self._session_key = session_key(tenant_id, opening.session)
        self._producer_id = opening.producer_id
        self._incarnation = incarnation
        self._epoch = opening.epoch
        self._appender = appender
        self._limits = limits
        self._stopping = stopping
        self._under_way: deque[_UnackedBatch] = deque()
        self._chunks = 0
        self._bytes = 0
        #: Set whenever there may be something to do for the writing side.
        self._some = asyncio.Event()
        #: Set while there is credit left.
        self._credit = asyncio.Event()
        self._credit.set()

    async def run(self, requests: Requests) -> AsyncGenerator[log_pb2.AppendChunksResponse]:
        """Acks what becomes durable; ends when the client does, or with the refusal."""
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
                # Nobody hears of these any more.
                batch.done.cancel()

    async def _acks(self) -> AsyncIterator[log_pb2.AppendChunksResponse]:
        """Waits for the oldest batch, and acks it with all that are durable behind it."""
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
        coming: asyncio.Future[log_pb2.AppendChunksRequest | None] | None = None
        try:
            while True:
                await self._credit.wait()
                await self._appender.room()
                coming = asyncio.ensure_future(anext(requests, None))
                await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise Unavailable(
                        Reason.SERVER_STOPPING,
                        "this server is stopping; another one serves: call again",
                    )
                request = coming.result()
                if request is None:
                    return
                self._submit(request)
        finally:
            stopping.cancel()
            if coming is not None:
                coming.cancel()

    def _submit(self, request: log_pb2.AppendChunksRequest) -> None:
        validate(request)
        if request.WhichOneof("frame") != "batch":
            raise _misused("a stream is opened once")
        chunks = convert.submitted_chunks(request.batch.chunks, self._limits)
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
        chunks = _credit_chunks(self._limits)
        return self._chunks < chunks and self._bytes < self._limits.credit_bytes

    def _give_back(self, chunks: int, size_bytes: int) -> None:
        self._chunks -= chunks
        self._bytes -= size_bytes
        if self._has_credit():
            self._credit.set()


def _parent(batch: log_pb2.AppendChunksRequest.Batch) -> TraceContext | None:
    """Returns the trace that a batch belongs to; None: that of its call.

    A call that nobody traces may go on for days: then each batch has a trace of its own.
    """
    return tracing.parsed(batch.traceparent) or (TraceContext() if tracing.begins_here() else None)


def _credit_chunks(limits: Limits) -> int:
    """What a stream may have under way: no batch of it is larger than a backlog may be."""
    return min(limits.credit_chunks, limits.backlog_chunks)


def _ack(last: Appended, chunks: int, size_bytes: int) -> log_pb2.AppendChunksResponse:
    return log_pb2.AppendChunksResponse(
        ack=log_pb2.Ack(
            through_producer_sequence=last.sequence,
            through_position=last.position,
            token=last.token,
            credits=log_pb2.Credits(chunks=chunks, bytes=size_bytes),
        )
    )


def _misused(why: str) -> InvalidInput:
    return InvalidInput(Reason.STREAM_MISUSED, why, field="frame")
