"""The unacked chunks of a producer: batches, credits and sequences."""

import re
from collections import deque
from dataclasses import dataclass

from palimpsest._convert_chunks import BATCH_CHUNKS, ack, check, digest, size_bytes
from palimpsest._errors import InvalidArgument, PalimpsestError, reworded
from palimpsest._transport import MAX_SENT_BYTES, trace_of, traceparent
from palimpsest._values_log import Ack
from palimpsest.v1 import chunks_pb2, session_service_pb2

_Response = session_service_pb2.AppendChunksResponse

#: Bytes of a batch, metadata included. The service accepts no more content; with its metadata it
#: must fit a message.
BATCH_BYTES = 1024 * 1024
#: A chunk of another sampled trace begins a new batch if the batch has so many chunks already,
#: or if fewer chunks wait. Otherwise it joins the batch: a message for each chunk costs too much.
TRACE_CHUNKS = 32
#: Limits a chunk, in bytes, so that it fits a message together with the fields around it.
MAX_CHUNK_BYTES = MAX_SENT_BYTES - 1024
#: The chunk of a batch that a refusal names.
_CHUNK = re.compile(r"^(?:batch\.)?chunks\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class _Sent:
    chunk: chunks_pb2.Chunk
    size_bytes: int
    #: The span that appended it, as a header names it; empty: none.
    traceparent: str = ""


class SendQueue:
    """The unacked chunks of a producer, in order; lost ones are sent again.

    It has no lock: `Producer` guards it.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Sent] = deque()
        self._under_way: deque[_Sent] = deque()
        self._bytes = 0
        self._credits = _Response.Credits(chunks=1, bytes=1)
        self._next_sequence = 1
        #: The newest ack of this run; None before the first.
        self.last_ack: Ack | None = None
        #: All chunks up to this sequence are durable.
        self.acked_sequence = 0
        #: Whether a stream was opened.
        self.opened = False

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest chunk; 0 when there is none."""
        return self._next_sequence - 1

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether everything is acked."""
        return not self._waiting and not self._under_way

    @property
    def is_full(self) -> bool:
        """Whether a whole batch waits."""
        return len(self._waiting) >= BATCH_CHUNKS

    def check(self, chunk: chunks_pb2.Chunk) -> int:
        """Returns how much credit the chunk takes. Raises InvalidArgument for a bad chunk."""
        number, whole = self._next_sequence, chunk.ByteSize()
        if whole > MAX_CHUNK_BYTES:
            # gRPC would end the whole stream without a reason.
            raise InvalidArgument(
                f"a chunk has {whole} bytes; no message holds more than {MAX_CHUNK_BYTES} of one",
                reason="CHUNK_TOO_LARGE",
                metadata={
                    "producer_sequence": str(number),
                    "bytes": str(whole),
                    "limit_bytes": str(MAX_CHUNK_BYTES),
                },
            )
        check(chunk, f"append {number}", {"producer_sequence": str(number)})
        return size_bytes(chunk)

    def has_credit(self, size: int) -> bool:
        """Returns whether a chunk of this size may be put now."""
        count = len(self._waiting) + len(self._under_way)
        if count == 0:
            return True
        return count < self._credits.chunks and self._bytes + size <= self._credits.bytes

    def put(self, chunk: chunks_pb2.Chunk, size: int) -> int:
        """Adds a chunk; returns its sequence."""
        chunk.digest = digest(chunk)
        chunk.producer_sequence = self._next_sequence
        self._next_sequence += 1
        self._waiting.append(_Sent(chunk, size, traceparent()))
        self._bytes += size
        return chunk.producer_sequence

    def next_batch(self) -> session_service_pb2.AppendChunksRequest.Batch:
        """Returns what to send next."""
        batch: list[chunks_pb2.Chunk] = []
        # The trace of the newest chunk if it is sampled, and the first sampled one.
        newest = parent = ""
        size = 0
        # More than the credit may wait, if a server returned with less.
        most = min(BATCH_CHUNKS, max(self._credits.chunks, 1))
        while self._waiting and len(batch) < most:
            size += self._waiting[0].size_bytes
            trace = trace_of(self._waiting[0].traceparent)
            is_apart = len(batch) >= TRACE_CHUNKS or len(self._waiting) < TRACE_CHUNKS
            if batch and (size > BATCH_BYTES or (trace != newest and is_apart)):
                break
            newest = trace
            sent = self._waiting.popleft()
            if not trace_of(parent):
                parent = sent.traceparent or parent
            self._under_way.append(sent)
            batch.append(sent.chunk)
        return session_service_pb2.AppendChunksRequest.Batch(chunks=batch, traceparent=parent)

    def begin(self, opened: session_service_pb2.AppendChunksResponse.Opened) -> None:
        """Begins a stream, which sends unacked chunks again."""
        self._credits = opened.credits
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()
        durable = opened.last_producer_sequence
        # Unacked chunks are sent again even if their numbers are durable: that writes nothing,
        # repeats the lost ack, and is refused if another process sent other content.
        if not self.opened:
            self.acked_sequence = durable
            self._next_sequence = durable + 1
            self.opened = True

    def take_ack(self, message: session_service_pb2.AppendChunksResponse.Ack) -> None:
        """Forgets durable chunks."""
        self.last_ack = ack(message)
        self.acked_sequence = message.through_producer_sequence
        while self._under_way:
            if self._under_way[0].chunk.producer_sequence > self.acked_sequence:
                break
            self._bytes -= self._under_way.popleft().size_bytes

    def refusal(self, error: PalimpsestError) -> PalimpsestError:
        """Returns a refusal with the number of the append that it names, if any."""
        number = error.metadata.get("producer_sequence")
        found = next((one for one in map(_CHUNK.search, error.fields) if one), None)
        if number is None and found and self._under_way:
            # All batches before the refused one are acked.
            number = str(self._under_way[0].chunk.producer_sequence + int(found[1]))
        if number is None:
            return error
        return reworded(
            error,
            f"append {number} was refused: {error}. It has ended this producer; what was"
            f" appended up to {self.acked_sequence} is durable",
            producer_sequence=number,
        )
