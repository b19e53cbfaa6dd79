"""Producers: appending to a session's log, with batching, resume and retry."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Unpack

from palimpsest import _convert_chunks as convert
from palimpsest._async._connection import Connection
from palimpsest._async._runtime import (
    Background,
    ChannelClosed,
    Condition,
    RpcError,
    sleep,
)
from palimpsest._errors import PalimpsestError, ProducerClosed, Unavailable
from palimpsest._send_queue import SendQueue
from palimpsest._transport import STREAM_BACKOFF_SECONDS, Backoff, may_pass
from palimpsest._values_log import Ack, Chunk, ChunkLabels
from palimpsest.v1 import chunks_pb2, session_service_pb2


@dataclass(slots=True)
class _Stream:
    """One stream: `opened` once the service has replied, `over` once it has ended."""

    opened: bool = False
    over: bool = False


class Producer:
    """Appends chunks in order, each exactly once, over one long-lived stream.

    Chunks are kept until they are acked, and sent again when the connection is lost. Chunks
    that wait while a batch is being written go into the next one.

    A producer that is opened again under the same id, in any process, continues after the
    durable chunks: an interrupted ingestion can skip `last_acked_sequence` of them.
    """

    def __init__(
        self,
        connection: Connection,
        opening: session_service_pb2.AppendChunksRequest.Open,
        give_up_seconds: float,
    ) -> None:
        self._connection = connection
        self._opening = opening
        self._give_up_seconds = give_up_seconds
        self._queue = SendQueue()
        self._failure: PalimpsestError | None = None
        #: Whether it was raised.
        self._reported = False
        self._closing = False
        #: Whether it has ended, closed or with an error.
        self._ended = False
        self._running: Background | None = None
        self._call: Any = None
        #: Whether the newest stream was opened.
        self._streaming = False
        #: Guards all of the above, and wakes all that wait for a change of it.
        self._changed = Condition()

    @property
    def last_acked_sequence(self) -> int:
        """The highest sequence of this producer that is durable; 0 when there is none."""
        return self._queue.acked_sequence

    @property
    def last_ack(self) -> Ack | None:
        """The newest ack of this run; None before the first."""
        return self._queue.last_ack

    async def __aenter__(self) -> "Producer":
        """Opens the producer. Raises PalimpsestError when the service refuses."""
        self._running = Background(self._run)
        try:
            async with self._changed:
                await self._until(lambda: self._queue.opened)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits until everything is durable, unless an error was raised before."""
        try:
            if kind is None and not self._reported:
                await self.flush()
        finally:
            await self._stop()

    async def append(self, text: str, **labels: Unpack[ChunkLabels]) -> int:
        """Appends plain text; returns its sequence, 1, 2, 3 … of this producer.

        `labels` are `thread`, `source`, `occurred_at` and `metadata`. Waits only while there is
        no credit left. Raises InvalidArgument for a chunk that no service accepts; others are
        unaffected. A chunk beyond the limits of this service ends the producer when it arrives:
        the refusal is raised once, with the number of the append, then ProducerClosed. The chunk
        is durable when `flush` returns, or `last_acked_sequence` has reached its number.
        """
        return await self._append(convert.text_chunk(text, **labels))

    async def append_message(self, role: str, text: str, **labels: Unpack[ChunkLabels]) -> int:
        """Appends a turn of a conversation; otherwise as `append`."""
        return await self._append(convert.message_chunk(role, text, **labels))

    async def append_step(
        self,
        *,
        observation: str = "",
        thought: str = "",
        action: str = "",
        observed_first: bool = False,
        **labels: Unpack[ChunkLabels],
    ) -> int:
        """Appends a step of an agent; otherwise as `append`.

        Models read the observation after thought and action, or with `observed_first` before.
        """
        chunk = convert.step_chunk(
            observation=observation,
            thought=thought,
            action=action,
            observed_first=observed_first,
            **labels,
        )
        return await self._append(chunk)

    async def append_chunk(self, chunk: Chunk) -> int:
        """Appends the content of a chunk, such as one of another log; otherwise as `append`."""
        return await self._append(convert.chunk_message(chunk, {}))

    async def flush(self) -> Ack | None:
        """Waits until all appended chunks are durable; returns the newest ack of this run."""
        async with self._changed:
            wanted = self._queue.last_sequence
            await self._until(lambda: self._queue.acked_sequence >= wanted)
            return self._queue.last_ack

    async def _append(self, chunk: chunks_pb2.Chunk) -> int:
        async with self._changed:
            if self._closing or self._running is None:
                raise ProducerClosed("the producer is closed")
            size = self._queue.check(chunk)
            await self._until(lambda: self._queue.has_credit(size))
            sequence, is_full = self._queue.put(chunk, size), self._queue.is_full
            self._changed.notify_all()
        if is_full:
            # Lets the writer begin while the caller continues to produce.
            await sleep(0)
        return sequence

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Waits, within `_changed`. Raises the error that ended the producer."""
        while not reached():
            self._raise_failure()
            if self._ended:
                raise ProducerClosed("the producer is closed")
            await self._changed.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises the error that ended the producer, and only the first time."""
        if self._failure is None:
            return
        if self._reported:
            raise ProducerClosed(f"the producer has ended: {self._failure}") from self._failure
        self._reported = True
        raise self._failure

    async def _stop(self) -> None:
        async with self._changed:
            self._closing = True
            call = self._call
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if self._running is not None:
            await self._running.stop()

    async def _run(self) -> None:
        """Keeps a stream open until the producer is closed or refused for good."""
        failure: PalimpsestError | None = None
        try:
            await self._keep_open()
        except PalimpsestError as error:
            failure = error
        finally:
            async with self._changed:
                self._failure = failure
                self._ended = True
                self._changed.notify_all()

    async def _keep_open(self) -> None:
        backoff = Backoff(STREAM_BACKOFF_SECONDS)
        progress = self._queue.acked_sequence
        since = time.monotonic()
        while not self._closing:
            error = await self._stream()
            # A stream that ended while there was nothing to send did all that was asked of it.
            idle = self._streaming and self._queue.is_empty
            if idle or self._queue.acked_sequence > progress:
                progress, since = self._queue.acked_sequence, time.monotonic()
                backoff.restart()
            self._streaming = False
            seconds = self._connection.reach.try_seconds(self._give_up_seconds)
            if time.monotonic() - since > seconds:
                raise error
            await self._pause(backoff.pause_seconds(error))

    async def _pause(self, seconds: float) -> None:
        """Waits before the next stream, or until the producer is closed."""
        until = time.monotonic() + seconds
        async with self._changed:
            while not self._closing and (left := until - time.monotonic()) > 0:
                await self._changed.wait(left)

    async def _stream(self) -> PalimpsestError:
        """Returns what a stream ended with, after which another can be opened.

        Raises PalimpsestError where none can.
        """
        stream = _Stream()
        try:
            async with self._changed:
                if self._connection.closed:
                    raise ProducerClosed("the client of this producer is closed")
                method = self._connection.sessions.AppendChunks
                call = self._call = method(self._requests(stream), **self._connection.headers())
                if self._closing:
                    call.cancel()
            async for response in call:
                async with self._changed:
                    if stream.opened:
                        self._take_ack(response.ack)
                    else:
                        self._begin(response.opened)
                        stream.opened = True
                    self._changed.notify_all()
        except RpcError as ended:
            error = self._connection.reach.failure(ended)
            if not may_pass(error, ended.code()):
                raise self._queue.refusal(error) from ended
            return error
        except ChannelClosed as closed:
            raise ProducerClosed("the client of this producer is closed") from closed
        finally:
            stream.over = True
            async with self._changed:
                self._changed.notify_all()
            if self._call is not None:
                self._call.cancel()
        return Unavailable("the service ended the stream without a reason")

    async def _requests(
        self, stream: _Stream
    ) -> AsyncIterator[session_service_pb2.AppendChunksRequest]:
        """Yields what is sent: gRPC asks for the next when the one before is written."""
        yield session_service_pb2.AppendChunksRequest(open=self._opening)
        while True:
            async with self._changed:
                while not stream.over and not (stream.opened and self._queue.has_waiting):
                    await self._changed.wait()
                if stream.over:
                    return
                batch = self._queue.next_batch()
            yield session_service_pb2.AppendChunksRequest(batch=batch)

    def _begin(self, opened: session_service_pb2.AppendChunksResponse.Opened) -> None:
        self._streaming = self._connection.reach.reached = True
        self._queue.begin(opened)
        # The head was checked; what we append ourselves moves it on.
        self._opening.ClearField("expected_head")

    def _take_ack(self, message: session_service_pb2.AppendChunksResponse.Ack) -> None:
        self._queue.take_ack(message)
