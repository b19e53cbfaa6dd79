"""Looking back at a memory, and watching it: every revision once, whatever the connection does."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

from palimpsest import _convert_memories as convert
from palimpsest._async._connection import Connection
from palimpsest._async._runtime import Interrupted, RpcError, is_cancelled, sleep
from palimpsest._errors import PalimpsestError, Unavailable
from palimpsest._transport import STREAM_BACKOFF_SECONDS, headers, may_pass, pause_seconds
from palimpsest._values_memories import Committed, ProvenanceEntry
from palimpsest.v1alpha1 import history_pb2, history_pb2_grpc


class Provenance:
    """What a path holds, and the amendments that made it, newest first.

        why = await memory.provenance("$['opening_hours']")
        print(why.value)
        async for entry in why:
            print(entry.amendment.revision, [chunk.text for chunk in entry.chunks])

    Entries come in pages, as they are needed; each loop begins at the newest. What a
    rollback undid is not among them.
    """

    def __init__(
        self,
        connection: Connection,
        request: history_pb2.GetProvenanceRequest,
        first: history_pb2.GetProvenanceResponse,
    ) -> None:
        self._connection = connection
        self._request = request
        self._first = first
        #: The path as an RFC 9535 normalized path.
        self.path: str = first.path
        #: The revision that is explained.
        self.revision: int = first.revision
        #: Whether the path holds anything; if not, the entries say what removed it.
        self.exists: bool = first.HasField("value_json")
        #: What it holds.
        self.value: Any = json.loads(first.value_json) if self.exists else None

    @classmethod
    async def _read(
        cls, connection: Connection, request: history_pb2.GetProvenanceRequest
    ) -> "Provenance":
        """Reads the first page."""
        stub = history_pb2_grpc.HistoryServiceStub(connection.channel)
        return cls(connection, request, await connection.call(stub.GetProvenance, request))

    async def __aiter__(self) -> AsyncIterator[ProvenanceEntry]:
        """Yields the entries."""
        for message in self._first.entries:
            yield convert.provenance_entry(message)
        if not self._first.next_page_token:
            return
        stub = history_pb2_grpc.HistoryServiceStub(self._connection.channel)
        request = history_pb2.GetProvenanceRequest()
        request.CopyFrom(self._request)
        request.page_token = self._first.next_page_token
        entries = self._connection.all_of(
            stub.GetProvenance, request, "entries", convert.provenance_entry
        )
        async for entry in entries:
            yield entry


class Watch:
    """The revisions of a memory, as they are committed; it has no end.

        async with memory.watch() as watch:
            async for event in watch:
                print(event.revision.revision, event.amendments)

    After a lost connection, or when a server stops, the next stream begins after the last
    event. `resume_token` does the same in another process.
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
        self._responses: AsyncIterator[history_pb2.WatchMemoryResponse] | None = None
        self._closed = False
        self._wait = STREAM_BACKOFF_SECONDS[0]
        #: When the service was lost, on the monotonic clock; None while it is there.
        self._lost_at: float | None = None

    @property
    def resume_token(self) -> str:
        """Continues after the last event; "" before the watch has begun."""
        return self._request.resume_token

    async def __aenter__(self) -> "Watch":
        """Begins: on return every further revision will be yielded. Raises as `__anext__`."""
        while self._responses is None and not self._closed:
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

    async def __anext__(self) -> Committed:
        """Returns the next revision.

        Raises NotFound, OutOfRange (the revision to begin after does not exist yet),
        InvalidArgument (a wrong token), and Unavailable when the service was away for
        `give_up_seconds`. It may be cancelled, and called again: nothing is missed.
        """
        while not self._closed:
            event = await self._tried(self._open if self._responses is None else self._read)
            if event is not None:
                return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the watch, from any thread; who waits for a revision gets none."""
        self._closed = True
        self._drop()

    async def _tried(self, work: Callable[[], Awaitable[Committed | None]]) -> Committed | None:
        """Returns what `work` returns; None when the stream was lost, after a pause."""
        try:
            return await work()
        except RpcError as error:
            self._drop()
            known = self._connection.reach.failure(error)
            if not may_pass(known, error.code()):
                raise known from error
            await self._pause(known)
        except Unavailable as error:
            self._drop()
            await self._pause(error)
        except Interrupted:
            # A read that is cancelled takes its stream with it.
            self._drop()
            if is_cancelled():
                raise
            # Not our task: it was `aclose`, or the whole connection was closed.
        return None

    async def _open(self) -> None:
        call = self._call = self._stub.WatchMemory(self._request, **headers())
        if self._closed:
            # By another thread, which saw no call to cancel.
            call.cancel()
        responses = aiter(call)
        self._reached(await self._next(responses))
        self._responses = responses

    async def _read(self) -> Committed:
        assert self._responses is not None, "it is open"
        response = await self._next(self._responses)
        event = convert.committed(response)
        self._reached(response)
        self._wait = STREAM_BACKOFF_SECONDS[0]
        return event

    async def _next(
        self, responses: AsyncIterator[history_pb2.WatchMemoryResponse]
    ) -> history_pb2.WatchMemoryResponse:
        try:
            return await anext(responses)
        except StopAsyncIteration:
            # The service ends a stream only with a reason: it is opened again.
            raise Unavailable("the service ended the watch without a reason") from None

    def _reached(self, response: history_pb2.WatchMemoryResponse) -> None:
        self._connection.reach.reached = True
        self._request.resume_token = response.resume_token
        self._lost_at = None

    async def _pause(self, error: PalimpsestError) -> None:
        """Waits before the next try; raises `error` when it has lasted too long."""
        if self._closed:
            return
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        pause = pause_seconds(self._wait, error)
        if now + pause > self._lost_at + self._connection.reach.try_seconds(self._give_up_seconds):
            raise error
        await sleep(pause)
        self._wait = min(self._wait * 2, STREAM_BACKOFF_SECONDS[1])

    def _drop(self) -> None:
        call, self._call, self._responses = self._call, None, None
        if call is not None:
            call.cancel()
