"""A session itself, and its log: appending to it, reading it, searching it."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Unpack

from palimpsest._async._connection import Connection
from palimpsest._async._producer import Producer
from palimpsest._async._resource import Resource
from palimpsest._convert import consistency, message_of, value_of
from palimpsest._convert_chunks import (
    REFUSED,
    Appendable,
    append_request,
    chunk,
    chunk_filter,
    may_be_stored,
)
from palimpsest._errors import AlreadyExists, OutOfRange, PalimpsestError, reworded
from palimpsest._operations import Forgotten, forgotten
from palimpsest._search import (
    MemorySearchResult,
    SearchIndex,
    SearchMode,
    SearchResult,
    memory_search_result,
    search_result,
)
from palimpsest._transport import APPEND_SECONDS
from palimpsest._values_log import (
    Appended,
    Chunk,
    ChunkFilterOptions,
    ChunkLabels,
    Retention,
    SessionInfo,
)
from palimpsest.v1 import session_service_pb2

#: Chunks of a page; the service gives no more.
PAGE_CHUNKS = 1000
#: The ends of a range, as the service names them.
_ENDS = ("first", "last")


class SessionLog(Resource):
    """The part of `Session` that is about the session itself and its log."""

    def __init__(self, connection: Connection, id: str) -> None:
        super().__init__(connection, id)
        self.id = id

    async def create(
        self,
        *,
        exist_ok: bool = False,
        language: str = "",
        metadata: Mapping[str, str] | None = None,
        default_memory: bool | None = None,
        retention: Retention | None = None,
        request_id: str = "",
    ) -> None:
        """Creates the session. See `Client.create_session`."""
        made = "general" if default_memory else "none"
        request = message_of(
            session_service_pb2.CreateSessionRequest,
            session=message_of(
                session_service_pb2.Session,
                id=self.id,
                language=language,
                metadata=metadata,
                default_memory=None if default_memory is None else made,
                retention=retention,
            ),
            request_id=request_id,
        )
        method = self._connection.sessions.CreateSession
        try:
            await self._connection.call(method, request, retry=exist_ok or bool(request_id))
        except AlreadyExists as error:
            if not exist_ok or error.reason != "SESSION_EXISTS":
                raise
            existing = (await self.info()).language if language else language
            if existing != language:
                raise reworded(
                    error,
                    f"session {self.id!r} is there already, and its language is {existing!r},"
                    f" not {language!r}: leave the language out, or choose another id",
                ) from error

    async def info(self) -> SessionInfo:
        """Reads the session. Raises NotFound."""
        request = session_service_pb2.GetSessionRequest(session=self.id)
        method = self._connection.sessions.GetSession
        return value_of(SessionInfo, await self._connection.call(method, request))

    async def update(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        etag: str = "",
        request_id: str = "",
    ) -> SessionInfo:
        """Replaces what is given: the metadata, at most 16 keys and values of your own; how long
        data is kept.

        With the `etag` of an `info`, only if the session has not been updated since. Raises
        NotFound, InvalidArgument, Aborted (ETAG_MISMATCH), TypeError, ValueError.
        """
        fields = {"metadata": metadata, "retention": retention}
        given = [name for name, value in fields.items() if value is not None]
        if not given:
            raise ValueError("give metadata or retention: an update without either does nothing")
        request = message_of(
            session_service_pb2.UpdateSessionRequest,
            session=message_of(session_service_pb2.Session, id=self.id, etag=etag, **fields),
            update_mask={"paths": given},
            request_id=request_id,
        )
        # A second try would find the etag of the first one's update.
        again = not etag or bool(request_id)
        method = self._connection.sessions.UpdateSession
        return value_of(SessionInfo, await self._connection.call(method, request, retry=again))

    async def delete(
        self,
        *,
        missing_ok: bool = False,
        include_imports: bool = False,
        reason: str = "",
        request_id: str = "",
    ) -> None:
        """Deletes the session. See `Client.delete_session`."""
        request = message_of(
            session_service_pb2.DeleteSessionRequest,
            session=self.id,
            allow_missing=missing_ok,
            include_imports=include_imports,
            reason=reason,
            request_id=request_id,
        )
        # A second try would find nothing.
        again = missing_ok or bool(request_id)
        await self._connection.call(self._connection.sessions.DeleteSession, request, retry=again)

    async def append(
        self,
        items: Appendable | Iterable[Appendable],
        *,
        request_id: str | None = None,
        expected_head: int | None = None,
        timeout: float | None = None,
        **labels: Unpack[ChunkLabels],
    ) -> Appended:
        """Appends one or several texts, messages or steps; they are durable when it returns.

        Any number of processes and tasks may append at once. A message is {"role": …,
        "content": …}; a step of an agent has "observation", "thought" or "action", and may have
        "observed_first". All are stored, or none: 256 at most, of 1 MiB together. `labels` are
        the `thread`, `source`, `occurred_at` and `metadata` of all of them; an item that is a
        mapping or a `Chunk` may have its own.

        The append is tried for `timeout` seconds (60) and stored once. A `request_id` of 1 to
        128 characters keeps that true over restarts of the program: the same content under the
        same id is stored once for ever. `expected_head` is the position that the log must end at.

        Raises TypeError, ValueError, InvalidArgument, NotFound, AlreadyExists
        (REQUEST_CONTENT_CHANGED), Aborted (HEAD_MISMATCH); and ResourceExhausted,
        DeadlineExceeded or Unavailable, whose metadata has the `request_id` to append with again.
        """
        request = append_request(self.id, items, labels, request_id, expected_head)
        try:
            method = self._connection.sessions.Append
            response = await self._connection.call(
                method, request, timeout=timeout, default=APPEND_SECONDS, broken=True
            )
        except REFUSED:
            raise
        except PalimpsestError as error:
            raise may_be_stored(error, request.request_id) from error
        return value_of(Appended, response, request_id=request.request_id)

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int = 0,
        expected_head: int | None = None,
        give_up_seconds: float = 60.0,
    ) -> Producer:
        """Returns a producer, for long streams from one process; open it with `async with`.

        `producer_id` is its lasting name within the session; no two processes may use one name
        at once. A higher `epoch` fences older streams off. The producer fails when the service
        is lost, or accepts nothing, for `give_up_seconds`; sooner before the first contact (see
        `connect`).
        """
        opening = session_service_pb2.AppendChunksRequest.Open(
            session=self.id, producer_id=producer_id, epoch=epoch, expected_head=expected_head
        )
        return Producer(self._connection, opening, give_up_seconds)

    async def chunks(
        self,
        *,
        from_position: int = 1,
        to_position: int | None = None,
        **options: Unpack[ChunkFilterOptions],
    ) -> AsyncIterator[Chunk]:
        """Yields the log from a position, up to `to_position` if it is given.

        `options` are those of `palimpsest.ChunkFilterOptions`, such as `threads` and
        `occurred_since`. Raises NotFound, InvalidArgument, TypeError, ValueError.
        """
        if to_position is not None and to_position < max(from_position, 1):
            return
        wanted = chunk_filter(from_position=from_position, to_position=to_position or 0, **options)
        request = message_of(
            session_service_pb2.ListChunksRequest,
            session=self.id,
            filter=wanted,
            page_size=PAGE_CHUNKS,
        )
        async for page in self._connection.pages(self._connection.sessions.ListChunks, request):
            for message in page.chunks:
                yield chunk(message)

    async def chunk(self, position: int) -> Chunk:
        """Returns a chunk, such as one that a citation names. Raises NotFound, OutOfRange."""
        request = message_of(
            session_service_pb2.ListChunksRequest,
            session=self.id,
            filter=chunk_filter(from_position=max(position, 0), to_position=max(position, 0)),
            page_size=1,
        )
        page = await self._connection.call(self._connection.sessions.ListChunks, request)
        if position < 1 or not page.chunks:
            raise OutOfRange(
                f"session {self.id!r} has no chunk at position {position}: its log ends at"
                f" {page.head}",
                metadata={"position": str(position), "head": str(page.head)},
            )
        return chunk(page.chunks[0])

    async def search(
        self,
        query: str,
        *,
        limit: int = 0,
        mode: SearchMode = "auto",
        from_position: int = 0,
        to_position: int = 0,
        rerank: bool = False,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
        **options: Unpack[ChunkFilterOptions],
    ) -> SearchResult:
        """Finds the chunks that match a query best: words, not an expression.

        Returns at most `limit` chunks (0 means 10, 100 are the most), and fewer if they are
        long. `from_position`, `to_position` and `options` limit the search; `options` are those
        of `palimpsest.ChunkFilterOptions`, such as `threads`, `sources` and `occurred_since`.
        With `rerank` a model orders the best.

        New chunks are indexed in the background. The search waits, up to `timeout`, until the
        log is indexed up to the token `after`, or with `fully_applied` as a whole: words, and
        vectors if the search uses them.

        Raises NotFound, InvalidArgument, TypeError, ValueError, FailedPrecondition
        (VECTORS_UNAVAILABLE, RERANK_FAILED), Unavailable (EMBEDDING_FAILED), DeadlineExceeded
        (NOT_APPLIED_IN_TIME), ResourceExhausted.
        """
        request = message_of(
            session_service_pb2.SearchChunksRequest,
            session=self.id,
            query=query,
            limit=limit,
            mode=mode,
            filter=chunk_filter(from_position=from_position, to_position=to_position, **options),
            rerank=rerank,
            consistency=consistency(after, fully_applied),
        )
        # With a model in it, it costs: not repeated.
        response = await self._connection.call(
            self._connection.sessions.SearchChunks, request, timeout=timeout, retry=not rerank
        )
        return search_result(response)

    async def search_memories(
        self,
        query: str,
        *,
        limit: int = 0,
        mode: SearchMode = "auto",
        memories: Collection[str] = (),
        path_prefix: str = "",
        from_position: int = 0,
        to_position: int = 0,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
        **options: Unpack[ChunkFilterOptions],
    ) -> MemorySearchResult:
        """Finds the entries of the session's memories that match a query best.

        An entry is a value or a short record of a PRISM memory, a summary of a tree, or a vector
        of a state that is in use. Returns at most `limit` (0 means 10, 100 are the most). Only
        entries of `memories`, by their ids, unless there are none; only those at `path_prefix` or
        below it. `from_position`, `to_position` and `options`, as of `search`, keep the entries
        that rest on a chunk that matches them.

        With the token `after`, or `fully_applied`, waits up to `timeout` until each memory that is
        searched has applied as much.

        Raises NotFound, InvalidArgument, TypeError, ValueError, FailedPrecondition
        (VECTORS_UNAVAILABLE, MEMORY_STALLED), Unavailable (EMBEDDING_FAILED), DeadlineExceeded
        (NOT_APPLIED_IN_TIME), ResourceExhausted.
        """
        wanted = session_service_pb2.MemoryEntryFilter
        chunks = chunk_filter(from_position=from_position, to_position=to_position, **options)
        request = message_of(
            session_service_pb2.SearchMemoriesRequest,
            session=self.id,
            query=query,
            limit=limit,
            mode=mode,
            filter=message_of(
                wanted,
                memories=memories,
                path_prefix=path_prefix,
                # One that is set excludes what rests on no chunk.
                chunks=chunks if chunks.ByteSize() else None,
            ),
            consistency=consistency(after, fully_applied),
        )
        method = self._connection.sessions.SearchMemories
        response = await self._connection.call(method, request, timeout=timeout)
        return memory_search_result(response)

    async def forget(
        self,
        *,
        positions: Collection[int | tuple[int, int]] = (),
        thread: str = "",
        source: str = "",
        text: str = "",
        case_sensitive: bool = False,
        keep_out: bool | None = None,
        reason: str = "",
        dry_run: bool = False,
        include_imports: bool = False,
        request_id: str = "",
        timeout: float | None = None,
    ) -> Forgotten:
        """Removes the content of chunks, and everything derived from it, for good.

            forgotten = await session.forget(text="+1 555 0100", reason="asked for by the user")

        Exactly one of `positions` (single ones, or first and last), `thread`, `source` and `text`
        says which. A `text` means all chunks that contain it, in any part and any case unless
        `case_sensitive`. Positions stay, as tombstones with `Chunk.redaction`. Memories go back
        to before they read the chunks, and read the log on from there. Edits by hand since then are
        undone: `Forgotten.undone_edits` lists them, also with `dry_run`.

        With `keep_out`, the default for a `text`, the same content appended anew becomes a
        tombstone at once; a `text` also when no chunk has it now. With `dry_run` nothing is
        removed. `reason` must not repeat what is to be forgotten. With `include_imports` the same
        is forgotten first in the tenant's sessions that were imported from this one.
        `Client.operation(forgotten.operation.id)` waits until nothing derived is left.

        Raises NotFound, InvalidArgument (TOO_MANY_CHUNKS), ValueError.
        """
        if sum(map(bool, (positions, thread, source, text))) != 1:
            raise ValueError("exactly one of positions, thread, source and text says which chunks")
        ranges = [
            dict.fromkeys(_ENDS, one)
            if isinstance(one, int)
            else dict(zip(_ENDS, one, strict=True))
            for one in positions
        ]
        request = message_of(
            session_service_pb2.RedactChunksRequest,
            session=self.id,
            positions={"ranges": ranges} if ranges else None,
            thread=thread or None,
            source=source or None,
            text=text or None,
            case_sensitive=case_sensitive,
            keep_out=keep_out,
            reason=reason,
            validate_only=dry_run,
            include_imports=include_imports,
            request_id=request_id,
        )
        method = self._connection.sessions.RedactChunks
        return forgotten(await self._connection.call(method, request, timeout=timeout))

    async def search_index(self) -> SearchIndex:
        """Returns how much of the log has words and vectors in the index. Raises NotFound."""
        request = session_service_pb2.GetSearchIndexRequest(session=self.id)
        response = await self._connection.call(self._connection.sessions.GetSearchIndex, request)
        return value_of(SearchIndex, response)
