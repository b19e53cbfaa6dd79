"""Looking back at a memory, watching it, and changing it by hand."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from palimpsest import _history as convert
from palimpsest._async._connection import Connection
from palimpsest._async._resource import Resource
from palimpsest._async._runtime import Interrupted, RpcError, is_cancelled, sleep
from palimpsest._convert import consistency, message_of, value_of
from palimpsest._errors import PalimpsestError, Unavailable
from palimpsest._history import (
    Amendment,
    Committed,
    Diff,
    Edit,
    Edited,
    Folded,
    ProvenanceEntry,
    Rejection,
    Revision,
)
from palimpsest._memories import MemoryInfo, memory
from palimpsest._transport import STREAM_BACKOFF_SECONDS, Backoff, may_pass
from palimpsest._values_common import ReadPoint
from palimpsest.v1 import common_pb2, memory_service_pb2

if TYPE_CHECKING:
    from palimpsest._async._memory import Memory
    from palimpsest._async._session import Session


class Provenance:
    """The value at a path, and the amendments that made it, newest first.

        why = await memory.provenance("$['opening_hours']")
        print(why.value)
        async for entry in why:
            print(entry.amendment.revision, [chunk.text for chunk in entry.chunks])

    Pages are read as needed; each loop begins at the newest entry. Amendments that a rollback
    undid are left out.
    """

    def __init__(
        self,
        connection: Connection,
        request: memory_service_pb2.GetProvenanceRequest,
        first: memory_service_pb2.GetProvenanceResponse,
    ) -> None:
        self._connection = connection
        self._request = request
        self._first = first
        #: The path as an RFC 9535 normalized path.
        self.path: str = first.path
        #: The revision that is explained, and the position that it has applied.
        self.read_point = value_of(ReadPoint, first.read_point)
        #: Whether the path has a value; if not, the entries say what removed it.
        self.exists: bool = first.HasField("value_json")
        #: The value.
        self.value: Any = json.loads(first.value_json) if self.exists else None

    async def __aiter__(self) -> AsyncIterator[ProvenanceEntry]:
        """Yields the entries."""
        for message in self._first.entries:
            yield value_of(ProvenanceEntry, message)
        if not self._first.next_page_token:
            return
        request = memory_service_pb2.GetProvenanceRequest()
        request.CopyFrom(self._request)
        request.page_token = self._first.next_page_token
        method = self._connection.memories.GetProvenance
        async for page in self._connection.pages(method, request):
            for message in page.entries:
                yield value_of(ProvenanceEntry, message)


class Watch:
    """Yields the revisions of a memory as they are committed, without an end.

        async with memory.watch() as watch:
            async for event in watch:
                print(event.revision.revision, event.amendments)

    After a lost connection it continues after the last event; `resume_token` does the same in
    another process.
    """

    def __init__(
        self,
        connection: Connection,
        request: memory_service_pb2.WatchMemoryRequest,
        give_up_seconds: float,
    ) -> None:
        self._connection = connection
        self._request = request
        self._give_up_seconds = give_up_seconds
        self._call: Any = None
        self._responses: AsyncIterator[memory_service_pb2.WatchMemoryResponse] | None = None
        self._closed = False
        self._backoff = Backoff(STREAM_BACKOFF_SECONDS)
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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Committed:
        """Returns the next revision.

        Raises NotFound, OutOfRange (the revision to begin after does not exist yet),
        InvalidArgument (a wrong token), and Unavailable when the service is lost for
        `give_up_seconds`. A call after a cancelled one misses nothing.
        """
        while not self._closed:
            event = await self._tried(self._open if self._responses is None else self._read)
            if event is not None:
                return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the watch and all waits for a revision. May be called from any thread."""
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
            # A cancelled read ends its stream.
            self._drop()
            if is_cancelled():
                raise
            # Not our task: it was `aclose`, or the whole connection was closed.
        return None

    async def _open(self) -> None:
        method = self._connection.memories.WatchMemory
        call = self._call = method(self._request, **self._connection.headers())
        if self._closed:
            # Closed by another thread, which saw no call to cancel.
            call.cancel()
        responses = aiter(call)
        self._reached(await self._next(responses))
        self._responses = responses

    async def _read(self) -> Committed:
        assert self._responses is not None, "it is open"
        response = await self._next(self._responses)
        event = value_of(Committed, response)
        self._reached(response)
        self._backoff.restart()
        return event

    async def _next(
        self, responses: AsyncIterator[memory_service_pb2.WatchMemoryResponse]
    ) -> memory_service_pb2.WatchMemoryResponse:
        try:
            return await anext(responses)
        except StopAsyncIteration:
            # The service ends a stream only with a reason: it is opened again.
            raise Unavailable("the service ended the watch without a reason") from None

    def _reached(self, response: memory_service_pb2.WatchMemoryResponse) -> None:
        self._connection.reach.reached = True
        self._request.resume_token = response.resume_token
        self._lost_at = None

    async def _pause(self, error: PalimpsestError) -> None:
        """Waits before the next try; raises `error` when it has lasted too long."""
        if self._closed:
            return
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        pause = self._backoff.pause_seconds(error)
        if now + pause > self._lost_at + self._connection.reach.try_seconds(self._give_up_seconds):
            raise error
        await sleep(pause)

    def _drop(self) -> None:
        call, self._call, self._responses = self._call, None, None
        if call is not None:
            call.cancel()


class MemoryHistory(Resource):
    """The part of `Memory` that is about its history and changes by hand."""

    def __init__(self, connection: Connection, session: "Session", id: str) -> None:
        super().__init__(connection, session.id, id)
        self.id = id
        self.session = session
        #: In every request about this memory.
        self._named: dict[str, Any] = {"session": session.id, "memory": id}

    def amendments(
        self,
        *,
        path: str = "",
        from_position: int = 0,
        to_position: int = 0,
        after: str = "",
        fully_applied: bool = False,
    ) -> AsyncIterator[Amendment]:
        """Yields the amendments that made the memory, oldest first.

        `path` limits them to those at or below it; `from_position` and `to_position`, both
        included, to steps over these positions (0: open). Freshness as in `get`.
        """
        request = memory_service_pb2.ListAmendmentsRequest(
            **self._named,
            page_size=1000,
            path_prefix=path,
            positions=common_pb2.PositionRange(first=from_position, last=to_position),
            consistency=consistency(after, fully_applied),
        )
        method = self._connection.memories.ListAmendments
        return self._connection.all_of(method, request, "amendments", partial(value_of, Amendment))

    def rejections(
        self, *, after: str = "", fully_applied: bool = False
    ) -> AsyncIterator[Rejection]:
        """Yields the model's proposals that the schema or a limit refused, oldest first.

        Freshness as in `get`.
        """
        request = memory_service_pb2.ListRejectionsRequest(
            **self._named, page_size=1000, consistency=consistency(after, fully_applied)
        )
        method = self._connection.memories.ListRejections
        return self._connection.all_of(method, request, "rejections", partial(value_of, Rejection))

    def revisions(self, *, after: str = "", fully_applied: bool = False) -> AsyncIterator[Revision]:
        """Yields every revision and what caused it, oldest first. Freshness as in `get`."""
        request = memory_service_pb2.ListRevisionsRequest(
            **self._named, page_size=1000, consistency=consistency(after, fully_applied)
        )
        method = self._connection.memories.ListRevisions
        return self._connection.all_of(method, request, "revisions", partial(value_of, Revision))

    async def provenance(
        self,
        path: str,
        *,
        revision: int | None = None,
        after: str = "",
        fully_applied: bool = False,
    ) -> Provenance:
        """Returns the value at a path; iterate over it for the amendments that made it.

        Freshness as in `get`. Raises InvalidArgument (PATH_INVALID), OutOfRange.
        """
        request = memory_service_pb2.GetProvenanceRequest(
            **self._named,
            path=path,
            revision=revision,
            consistency=consistency(after, fully_applied),
        )
        first = await self._connection.call(self._connection.memories.GetProvenance, request)
        return Provenance(self._connection, request, first)

    async def diff(
        self,
        *,
        revision: int | None = None,
        other: "Memory | str" = "",
        other_revision: int | None = None,
        after: str = "",
        fully_applied: bool = False,
    ) -> Diff:
        """Compares `revision`, the old side, with `other_revision` of this or another memory.

        None is the newest revision; another memory must be of the same session. Freshness, of
        both, as in `get`. Raises NotFound, OutOfRange.
        """
        request = memory_service_pb2.DiffMemoriesRequest(
            **self._named,
            revision=revision,
            other_memory=other if isinstance(other, str) else other.id,
            other_revision=other_revision,
            consistency=consistency(after, fully_applied),
            page_size=1000,
        )
        pages = self._connection.pages(self._connection.memories.DiffMemories, request)
        return convert.diff([page async for page in pages])

    def watch(
        self,
        *,
        after_revision: int | None = None,
        resume_token: str = "",
        give_up_seconds: float = 60.0,
    ) -> Watch:
        """Returns a watch of the revisions after `after_revision` (0: all), as they are committed.

        The default is after the newest; `resume_token` continues after an event of an earlier
        watch. The watch fails when the service is lost for `give_up_seconds`, sooner before the
        first contact (see `connect`).
        """
        if after_revision is not None and resume_token:
            raise ValueError("give after_revision or resume_token, not both")
        request = message_of(
            memory_service_pb2.WatchMemoryRequest,
            **self._named,
            after_revision=after_revision,
            resume_token=resume_token or None,
        )
        return Watch(self._connection, request, give_up_seconds)

    async def edit(
        self,
        edits: Iterable[Edit],
        *,
        expected_revision: int | None = None,
        comment: str = "",
        request_id: str = "",
    ) -> Edited:
        """Makes all edits, in order, as one revision; or none.

        `expected_revision` is what the newest revision must be. With a `request_id` a lost call
        is made again, and the same request later returns the first result. Raises
        InvalidArgument (EDIT_INVALID) naming the edit, Aborted (REVISION_CONFLICT) naming the
        current revision, ValueError for a value that is no JSON.
        """
        request = memory_service_pb2.EditMemoryRequest(
            **self._named,
            edits=[convert.edit_message(one) for one in edits],
            expected_revision=expected_revision,
            comment=comment,
            request_id=request_id,
        )
        method = self._connection.memories.EditMemory
        response = await self._connection.call(method, request, retry=bool(request_id))
        return convert.edited(response)

    async def rollback(
        self,
        revision: int,
        *,
        expected_revision: int | None = None,
        comment: str = "",
        request_id: str = "",
    ) -> MemoryInfo:
        """Restores an earlier revision, as a new revision. `request_id` as in `edit`.

        The log is not read again. Raises OutOfRange, Aborted (REVISION_CONFLICT).
        """
        request = memory_service_pb2.RollbackMemoryRequest(
            **self._named,
            revision=revision,
            expected_revision=expected_revision,
            comment=comment,
            request_id=request_id,
        )
        method = self._connection.memories.RollbackMemory
        return memory(await self._connection.call(method, request, retry=bool(request_id)))

    async def fold(self, *, request_id: str = "") -> Folded:
        """Writes the amendments into a new base; the value stays. `request_id` as in `edit`."""
        request = memory_service_pb2.FoldMemoryRequest(**self._named, request_id=request_id)
        method = self._connection.memories.FoldMemory
        return convert.folded(await self._connection.call(method, request))
