"""Producers: appending to a session's log, with batching, resume and retry."""

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from grpc import aio

from palimpsest import chunks, convert, tracing
from palimpsest.connection import MAX_SENT_BYTES, Reach, may_pass, pause_seconds, raise_status
from palimpsest.errors import InvalidArgument, PalimpsestError, ProducerClosed
from palimpsest.v1 import log_pb2, log_pb2_grpc
from palimpsest.values import Ack

#: Chunks and bytes of a batch, metadata included. The service takes no more chunks, and no
#: more content; with their metadata they must fit a message.
BATCH_CHUNKS = 256
BATCH_BYTES = 1024 * 1024
#: A chunk of another sampled trace begins a batch of its own, if the batch before has so many
#: chunks or fewer than that wait. Else it joins that batch, since one message a chunk is dear.
TRACE_CHUNKS = 32
#: Of a chunk, in bytes: what a message holds, less what stands around the chunk.
MAX_CHUNK_BYTES = MAX_SENT_BYTES - 1024
#: Wait before the second try to connect; doubles up to the second value.
BACKOFF_SECONDS = (0.05, 5.0)
#: Which chunk of a batch a refusal is about.
_CHUNK = re.compile(r"^(?:batch\.)?chunks\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class _Sent:
    produced: log_pb2.ProducedChunk
    size_bytes: int
    #: The span that appended it, as a header names it; empty: none.
    traceparent: str = ""


class Producer:
    """Appends chunks in order, each exactly once, over one long-lived stream.

    What is appended is kept until it is acked, and sent again when the connection is
    lost: the service knows what it has. Chunks are batched by themselves: what waits
    while a batch is being written goes into the next one.

    A producer that is opened again under the same id, in another process even, goes on
    behind what is durable: `last_acked_sequence` says how many chunks that is, so that
    an interrupted ingestion can skip them.
    """

    def __init__(
        self,
        channel: aio.Channel,
        reach: Reach,
        session: str,
        producer_id: str,
        *,
        epoch: int,
        expected_head: int | None,
        give_up_seconds: float,
    ) -> None:
        self._stub = log_pb2_grpc.LogServiceStub(channel)
        self._reach = reach
        self._opening = log_pb2.AppendChunksRequest.Open(
            session=session, producer_id=producer_id, epoch=epoch, expected_head=expected_head
        )
        self._give_up_seconds = give_up_seconds
        self._waiting: deque[_Sent] = deque()
        self._under_way: deque[_Sent] = deque()
        self._bytes = 0
        self._credits = log_pb2.Credits(chunks=1, bytes=1)
        self._next_sequence = 1
        self._last_ack: Ack | None = None
        self._acked_sequence = 0
        self._failure: PalimpsestError | None = None
        #: Whether it was raised.
        self._told = False
        self._opened = False
        #: Whether the present stream was opened.
        self._streaming = False
        self._closing = False
        self._running: asyncio.Task[None] | None = None
        #: Set whenever anything changed that somebody may wait for.
        self._changed = asyncio.Event()
        #: Set while there is something to write.
        self._some = asyncio.Event()

    @property
    def last_acked_sequence(self) -> int:
        """The highest own number that is durable; 0 when there is none."""
        return self._acked_sequence

    @property
    def last_ack(self) -> Ack | None:
        """The newest ack of this run; None before the first."""
        return self._last_ack

    async def __aenter__(self) -> "Producer":
        """Opens the producer. Raises PalimpsestError when the service refuses."""
        self._running = asyncio.create_task(self._run())
        try:
            await self._until(lambda: self._opened)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits until everything is durable, unless an error was raised before."""
        try:
            if kind is None and not self._told:
                await self.flush()
        finally:
            self._closing = True
            await self._stop()

    async def append(self, text: str, *, metadata: Mapping[str, str] | None = None) -> int:
        """Appends plain text; returns its own number.

        Waits only while there is no credit left. Raises InvalidArgument for a chunk that no
        service takes, which harms no other. A service's own limits may be smaller: it refuses
        what is beyond them when it comes there, which ends the producer. That is raised once,
        with the number of the append; after it, ProducerClosed. The chunk is durable when `flush`
        returns, or `last_acked_sequence` has reached its number.
        """
        return await self._append(chunks.text_chunk(text, metadata))

    async def append_message(
        self, role: str, text: str, *, metadata: Mapping[str, str] | None = None
    ) -> int:
        """Appends a turn of a conversation; otherwise as `append`."""
        return await self._append(chunks.message_chunk(role, text, metadata))

    async def append_step(
        self,
        *,
        observation: str = "",
        thought: str = "",
        action: str = "",
        observed_first: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Appends a step of an agent; otherwise as `append`.

        The observation is what came of the action, and is read behind it; with
        `observed_first` it came before thought and action, and is read before them.
        """
        chunk = chunks.step_chunk(
            observation, thought, action, metadata, observed_first=observed_first
        )
        return await self._append(chunk)

    async def flush(self) -> Ack | None:
        """Waits until everything appended so far is durable; the newest ack.

        None when nothing was ever acked in this run.
        """
        wanted = self._next_sequence - 1
        await self._until(lambda: self._acked_sequence >= wanted)
        return self._last_ack

    async def _append(self, chunk: log_pb2.Chunk) -> int:
        if self._closing or self._running is None:
            raise ProducerClosed("the producer is closed")
        whole = chunk.ByteSize()
        if whole > MAX_CHUNK_BYTES:
            # gRPC would end the stream of all that is under way, with no word of why.
            raise InvalidArgument(
                f"a chunk has {whole} bytes; no message holds more than {MAX_CHUNK_BYTES} of one",
                reason="CHUNK_TOO_LARGE",
                metadata={
                    "producer_sequence": str(self._next_sequence),
                    "bytes": str(whole),
                    "limit_bytes": str(MAX_CHUNK_BYTES),
                },
            )
        chunks.check(chunk, self._next_sequence, f"append {self._next_sequence}")
        size = convert.size_bytes(chunk)
        if not self._has_credit(size):
            await self._until(lambda: self._has_credit(size))
        elif len(self._waiting) >= BATCH_CHUNKS:
            # Lets the writer begin while the caller goes on producing.
            await asyncio.sleep(0)
        self._raise_failure()
        sequence = self._next_sequence
        self._next_sequence += 1
        produced = log_pb2.ProducedChunk(
            producer_sequence=sequence, chunk=chunk, digest=convert.digest(chunk)
        )
        self._waiting.append(_Sent(produced, size, tracing.traceparent()))
        self._bytes += size
        self._some.set()
        return sequence

    def _has_credit(self, size: int) -> bool:
        held = len(self._waiting) + len(self._under_way)
        if held == 0:
            return True
        return held < self._credits.chunks and self._bytes + size <= self._credits.bytes

    async def _until(self, reached: Any) -> None:
        while not reached():
            self._raise_failure()
            if self._running is None or self._running.done():
                raise ProducerClosed("the producer is closed")
            self._changed.clear()
            await self._changed.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises the error that ended the producer, and only the first time."""
        if self._failure is None:
            return
        if self._told:
            raise ProducerClosed(f"the producer has ended: {self._failure}") from self._failure
        self._told = True
        raise self._failure

    async def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        """Keeps a stream open until the producer is closed or refused for good."""
        try:
            await self._keep_open()
        except PalimpsestError as error:
            self._failure = error
        except aio.UsageError:
            # What it was made from is closed: nothing can be sent any more.
            self._failure = ProducerClosed("the client of this producer is closed")
        finally:
            self._changed.set()

    async def _keep_open(self) -> None:
        loop = asyncio.get_running_loop()
        wait = BACKOFF_SECONDS[0]
        progress = self._acked_sequence
        since = loop.time()
        while True:
            try:
                await self._stream()
                return
            except aio.AioRpcError as rpc_error:
                error = self._reach.failure(rpc_error)
                if not may_pass(error, rpc_error.code()):
                    raise self._of_append(error) from rpc_error
            # A stream that ended while there was nothing to send did all that was asked of it.
            idle = self._streaming and not self._waiting and not self._under_way
            if idle or self._acked_sequence > progress:
                progress, since, wait = self._acked_sequence, loop.time(), BACKOFF_SECONDS[0]
            self._streaming = False
            if loop.time() - since > self._reach.try_seconds(self._give_up_seconds):
                raise error
            await asyncio.sleep(pause_seconds(wait, error))
            wait = min(wait * 2, BACKOFF_SECONDS[1])

    def _of_append(self, error: PalimpsestError) -> PalimpsestError:
        """Returns a refusal with the number of the append that it is about, if it is of one."""
        number = error.metadata.get("producer_sequence")
        found = next((one for one in map(_CHUNK.search, error.fields) if one), None)
        if number is None and found and self._under_way:
            # All batches before the refused one are acked.
            number = str(self._under_way[0].produced.producer_sequence + int(found[1]))
        if number is None:
            return error
        return type(error)(
            f"append {number} was refused: {error}. It has ended this producer; what was"
            f" appended up to {self._acked_sequence} is durable",
            reason=error.reason,
            metadata={**error.metadata, "producer_sequence": number},
            fields=error.fields,
            retry_seconds=error.retry_seconds,
        )

    async def _stream(self) -> None:
        call: Any = self._stub.AppendChunks(**tracing.options())
        writing: asyncio.Task[None] | None = None
        try:
            await call.write(log_pb2.AppendChunksRequest(open=self._opening))
            response = await call.read()
            if response is aio.EOF:
                await raise_status(call)
            self._begin(response.opened)
            writing = asyncio.create_task(self._write(call))
            while (response := await call.read()) is not aio.EOF:
                self._take_ack(response.ack)
            await raise_status(call)
        except asyncio.InvalidStateError:
            # The call ended while it was being written to; its status says why.
            await raise_status(call)
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            call.cancel()

    def _begin(self, opened: log_pb2.AppendChunksResponse.Opened) -> None:
        self._streaming = self._reach.reached = True
        self._credits = opened.credits
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()
        durable = opened.last_producer_sequence
        # What was not acked is sent again even if its number is durable: that writes nothing,
        # brings the ack that was lost, and is refused if the content is another process's.
        if not self._opened:
            self._acked_sequence = durable
            self._next_sequence = durable + 1
            # The head was checked; what we append ourselves moves it on.
            self._opening.ClearField("expected_head")
            self._opened = True
        if self._waiting:
            self._some.set()
        self._changed.set()

    async def _write(self, call: Any) -> None:
        while True:
            await self._some.wait()
            batch: list[log_pb2.ProducedChunk] = []
            # The trace of its newest chunk if that is sampled, and the first that is.
            newest = traceparent = ""
            size = 0
            # More than the credit may wait where a server came back with less of it.
            most = min(BATCH_CHUNKS, max(self._credits.chunks, 1))
            while self._waiting and len(batch) < most:
                size += self._waiting[0].size_bytes
                trace = tracing.trace_of(self._waiting[0].traceparent)
                is_apart = len(batch) >= TRACE_CHUNKS or len(self._waiting) < TRACE_CHUNKS
                if batch and (size > BATCH_BYTES or (trace != newest and is_apart)):
                    break
                newest = trace
                sent = self._waiting.popleft()
                if not tracing.trace_of(traceparent):
                    traceparent = sent.traceparent or traceparent
                self._under_way.append(sent)
                batch.append(sent.produced)
            if not self._waiting:
                self._some.clear()
            if batch:
                request = log_pb2.AppendChunksRequest.Batch(chunks=batch, traceparent=traceparent)
                await call.write(log_pb2.AppendChunksRequest(batch=request))

    def _take_ack(self, message: log_pb2.Ack) -> None:
        self._last_ack = convert.ack(message)
        self._acked_sequence = message.through_producer_sequence
        self._drop_through(self._under_way, message.through_producer_sequence)
        self._changed.set()

    def _drop_through(self, held: deque[_Sent], sequence: int) -> None:
        while held and held[0].produced.producer_sequence <= sequence:
            self._bytes -= held.popleft().size_bytes
