"""Watching a memory: every revision once, in order, whatever becomes of the connection."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from grpc import aio

from palimpsest import convert, tracing, values
from palimpsest.connection import Connection, may_pass, pause_seconds, raise_status
from palimpsest.errors import PalimpsestError
from palimpsest.v1 import history_pb2, history_pb2_grpc

#: Wait before the second try to connect; doubles up to the second value.
BACKOFF_SECONDS = (0.05, 5.0)


class Watch:
    """The revisions of a memory, as they are committed; it has no end.

        async with memory.watch() as watch:
            async for event in watch:
                print(event.revision.revision, event.amendments)

    A lost connection, or a server that stops, is gone around: the next stream begins
    behind the last event. `resume_token` does the same in another process.
    """

    def __init__(
        self,
        connection: Connection,
        session: str,
        memory: str,
        *,
        after_revision: int | None,
        resume_token: str,
        give_up_seconds: float,
    ) -> None:
        if after_revision is not None and resume_token:
            raise ValueError("give after_revision or resume_token, not both")
        self._connection = connection
        self._stub = history_pb2_grpc.HistoryServiceStub(connection.channel)
        self._request = history_pb2.WatchMemoryRequest(session=session, memory=memory)
        if after_revision is not None:
            self._request.after_revision = after_revision
        elif resume_token:
            self._request.resume_token = resume_token
        self._give_up_seconds = give_up_seconds
        self._call: Any = None
        self._closed = False
        self._wait = BACKOFF_SECONDS[0]
        #: When the service was lost, in the loop's time; None while it is there.
        self._lost_at: float | None = None

    @property
    def resume_token(self) -> str:
        """Goes on behind what was told last; "" before the watch has begun."""
        return self._request.resume_token

    async def __aenter__(self) -> "Watch":
        """Begins: on return every further revision will be told. Raises as `__anext__`."""
        while self._call is None and not self._closed:
            await self._tried(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> values.Committed:
        """The next revision.

        Raises NotFound, OutOfRange (the revision to begin behind does not exist yet),
        InvalidArgument (a wrong token), and Unavailable when the service was away for
        `give_up_seconds`. It may be cancelled, and called again: nothing is missed.
        """
        while not self._closed:
            told = await self._tried(self._read if self._call is not None else self._open)
            if told is not None:
                return told
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the watch; whoever waits for a revision gets none."""
        self._closed = True
        self._drop()

    async def _tried(
        self, work: Callable[[], Awaitable[values.Committed | None]]
    ) -> values.Committed | None:
        """What `work` brings; None when the stream was lost, after a pause."""
        try:
            return await work()
        except aio.AioRpcError as error:
            self._drop()
            known = self._connection.reach.failure(error)
            if not may_pass(known, error.code()):
                raise known from error
            await self._pause(known)
        except asyncio.CancelledError:
            # A read that is cancelled takes its stream with it.
            self._drop()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled us: it was `aclose`, or the whole connection was closed.
        return None

    async def _open(self) -> None:
        self._call = self._stub.WatchMemory(self._request, **tracing.options())
        started = await self._call.read()
        if started is aio.EOF:
            await raise_status(self._call)
        self._reached(started.resume_token)

    async def _read(self) -> values.Committed:
        response = await self._call.read()
        if response is aio.EOF:
            await raise_status(self._call)
        told = convert.committed(response)
        self._reached(response.resume_token)
        self._wait = BACKOFF_SECONDS[0]
        return told

    def _reached(self, token: str) -> None:
        self._connection.reach.reached = True
        self._request.resume_token = token
        self._lost_at = None

    async def _pause(self, error: PalimpsestError) -> None:
        """Waits before the next try; raises `error` when it has lasted too long."""
        now = asyncio.get_running_loop().time()
        self._lost_at = now if self._lost_at is None else self._lost_at
        pause = pause_seconds(self._wait, error)
        if now + pause > self._lost_at + self._connection.reach.try_seconds(self._give_up_seconds):
            raise error
        await asyncio.sleep(pause)
        self._wait = min(self._wait * 2, BACKOFF_SECONDS[1])

    def _drop(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
