"""Appending without a producer: one call, from any number of processes."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from palimpsest import convert, values
from palimpsest.connection import MAX_SENT_BYTES, Connection
from palimpsest.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PalimpsestError,
)
from palimpsest.producer import BATCH_CHUNKS
from palimpsest.v1 import log_pb2

#: How long an append is tried while the service cannot be reached, or is full.
APPEND_SECONDS = 60.0
#: What says for certain that nothing is stored by this request. Behind all else one of its tries
#: may have been stored and not told.
_REFUSED = (Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound)


async def append(
    connection: Connection,
    stub: Any,
    session: str,
    chunks: Sequence[log_pb2.Chunk],
    *,
    request_id: str | None,
    expected_head: int | None,
    timeout: float,
) -> values.Appended:
    """Appends the chunks by `stub`, all or none, once however often it has to be tried.

    An error behind which it may be stored names the request in its metadata.
    """
    request = log_pb2.AppendRequest(
        session=session,
        expected_head=expected_head,
        request_id=uuid4().hex if request_id is None else request_id,
        chunks=[log_pb2.ProducedChunk(chunk=one, digest=convert.digest(one)) for one in chunks],
    )
    _check_size(request)
    try:
        response = await connection.call(stub.Append, request, timeout=timeout, broken=True)
    except _REFUSED:
        raise
    except PalimpsestError as error:
        raise _unknown(error, request.request_id) from error
    return values.Appended(
        first_position=response.first_position,
        position=response.ack.through_position,
        token=response.ack.token,
        request_id=request.request_id,
    )


def _check_size(request: log_pb2.AppendRequest) -> None:
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
