# Generated from palimpsest/_async by `make sync`; do not edit.
"""A session's log: appending to it, reading it."""

from collections.abc import Iterable, Iterator
from typing import Unpack
from uuid import uuid4

from palimpsest._convert import message_of, positions
from palimpsest._convert_chunks import Appendable, chunk, chunk_filter, chunks_of, digest
from palimpsest._errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PalimpsestError,
)
from palimpsest._sync._producer import BATCH_CHUNKS, Producer
from palimpsest._sync._session_base import SessionBase
from palimpsest._transport import APPEND_SECONDS, MAX_SENT_BYTES
from palimpsest._values_log import Appended, Chunk, ChunkFilterOptions, ChunkLabels
from palimpsest.v1 import session_service_pb2

#: Chunks of a page; the service gives no more.
PAGE_CHUNKS = 1000
#: What says for certain that a request stored nothing. After all other errors one of its tries
#: may have been stored without a reply.
_REFUSED = (Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound)


class SessionLog(SessionBase):
    """What `Session` has of its log."""

    def append(
        self,
        items: Appendable | Iterable[Appendable],
        *,
        request_id: str | None = None,
        expected_head: int | None = None,
        timeout: float | None = None,
        **labels: Unpack[ChunkLabels],
    ) -> Appended:
        """Appends a text, a message or a step, or several of them; durable when it returns.

        From any number of processes and tasks at once. A message is {"role": …, "content": …},
        a step of an agent has "observation", "thought" or "action", and "observed_first" where
        that is so. All are stored, or none: 256 at most, of 1 MiB together. `labels` are
        `thread`, `source`, `occurred_at` and `metadata`, of all of them; an item, as a mapping
        or a `Chunk`, may have its own.

        It is tried for `timeout` seconds (60) and stored once. `request_id`, 1 to 128
        characters, keeps that true over a restart of the program: the same content under the
        same id is stored once for ever. `expected_head` is the position that the log must end at.

        Raises TypeError, ValueError or InvalidArgument for what cannot be appended, NotFound,
        AlreadyExists (REQUEST_CONTENT_CHANGED), Aborted (HEAD_MISMATCH); and ResourceExhausted,
        DeadlineExceeded or Unavailable, whose metadata has the `request_id` to try on with.
        """
        chunks = chunks_of(items, **labels)
        for one in chunks:
            one.digest = digest(one)
        request = session_service_pb2.AppendRequest(
            session=self.id,
            expected_head=expected_head,
            request_id=uuid4().hex if request_id is None else request_id,
            chunks=chunks,
        )
        _check_size(request)
        try:
            method = self._connection.sessions.Append
            response = self._connection.call(
                method, request, timeout=timeout, default=APPEND_SECONDS, broken=True
            )
        except _REFUSED:
            raise
        except PalimpsestError as error:
            raise _unknown(error, request.request_id) from error
        appended = positions(response)
        assert appended is not None, "what was appended has positions"
        return Appended(
            positions=appended, read_token=response.read_token, request_id=request.request_id
        )

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int = 0,
        expected_head: int | None = None,
        give_up_seconds: float = 60.0,
    ) -> Producer:
        """Returns a producer, for long streams from one process; open it with `with`.

        `producer_id` is its lasting name within the session, and of no other process that
        lives at the same time; `append` needs none. A higher `epoch` fences its older
        streams off. It fails when the service went away, or took nothing, for
        `give_up_seconds`; sooner when it was never reached (see `connect`).
        """
        return Producer(
            self._connection,
            self.id,
            producer_id,
            epoch=epoch,
            expected_head=expected_head,
            give_up_seconds=give_up_seconds,
        )

    def chunks(
        self,
        *,
        from_position: int = 1,
        to_position: int | None = None,
        **options: Unpack[ChunkFilterOptions],
    ) -> Iterator[Chunk]:
        """Yields the log from a position, up to `to_position` if one is given.

        `options` are those of `palimpsest.ChunkFilterOptions`, such as `threads` and
        `occurred_since`; what is not given excludes none. No more is read than that.
        Raises NotFound, InvalidArgument; TypeError and ValueError for what cannot be sent.
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
        for page in self._connection.pages(self._connection.sessions.ListChunks, request):
            for message in page.chunks:
                yield chunk(message)

    def chunk(self, position: int) -> Chunk:
        """Returns a chunk with its metadata, where a citation points for example.

        Raises NotFound, OutOfRange for a position that the log does not have.
        """
        request = message_of(
            session_service_pb2.ListChunksRequest,
            session=self.id,
            filter=chunk_filter(from_position=max(position, 0), to_position=max(position, 0)),
            page_size=1,
        )
        page = self._connection.call(self._connection.sessions.ListChunks, request)
        if position < 1 or not page.chunks:
            raise OutOfRange(
                f"session {self.id!r} has no chunk at position {position}: its log ends at"
                f" {page.head}",
                metadata={"position": str(position), "head": str(page.head)},
            )
        return chunk(page.chunks[0])


def _check_size(request: session_service_pb2.AppendRequest) -> None:
    """Raises InvalidArgument for what no service takes in one call."""
    if not request.request_id:
        raise ValueError("a request_id must not be empty; None has one made")
    count, size = len(request.chunks), request.ByteSize()
    if count > BATCH_CHUNKS or size > MAX_SENT_BYTES:
        raise InvalidArgument(
            f"{count} chunks of {size} bytes are too many for one append, which stores all or none:"
            f" {BATCH_CHUNKS} chunks of {MAX_SENT_BYTES} bytes are the most."
            " Append them in parts, or use session.producer(...), which does so by itself",
            reason="BATCH_TOO_LARGE",
            metadata={"chunks": str(count), "limit_chunks": str(BATCH_CHUNKS)},
        )


def _unknown(error: PalimpsestError, request_id: str) -> PalimpsestError:
    return type(error)(
        f"{error}; it may be stored: append the same again with request_id={request_id!r},"
        " which stores it once",
        reason=error.reason,
        metadata={**error.metadata, "request_id": request_id},
        fields=error.fields,
        retry_seconds=error.retry_seconds,
    )
