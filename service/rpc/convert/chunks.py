"""Chunks and filters of chunks."""

from datetime import datetime

from google.protobuf.message import Message

from palimpsest.v1 import chunks_pb2
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import moment, write_timestamp
from service.settings.config import Limits
from service.usecases.log.chunk_filter import ChunkFilter

_KINDS_OF = {
    chunks_pb2.CHUNK_KIND_TEXT: ChunkKind.TEXT,
    chunks_pb2.CHUNK_KIND_MESSAGE: ChunkKind.MESSAGE,
    chunks_pb2.CHUNK_KIND_AGENT_STEP: ChunkKind.STEP,
}
_IDS = ("threads", "excluded_threads", "sources")


def chunk_filter(message: chunks_pb2.ChunkFilter, limits: Limits) -> ChunkFilter:
    """Returns which chunks a client wants. Raises InvalidInput for more ids than the limit."""
    for name in _IDS:
        count = len(getattr(message, name))
        if count > limits.max_filter_ids:
            raise InvalidInput(
                Reason.FIELD_INVALID,
                f"filter.{name} has {count} ids; the limit is {limits.max_filter_ids}",
                field=f"filter.{name}",
            )
    return ChunkFilter(
        from_position=message.positions.first,
        to_position=message.positions.last,
        from_time=_time(message.created, "start"),
        to_time=_time(message.created, "end"),
        kinds=frozenset(_KINDS_OF[kind] for kind in message.kinds),
        metadata=dict(message.metadata),
        threads=frozenset(message.threads),
        excluded_threads=frozenset(message.excluded_threads),
        sources=frozenset(message.sources),
        occurred_after=_time(message.occurred, "start"),
        occurred_before=_time(message.occurred, "end"),
    )


def _time(message: Message, field: str) -> datetime | None:
    return moment(getattr(message, field)) if message.HasField(field) else None


def chunk(logged: LoggedChunk) -> chunks_pb2.Chunk:
    """Returns a chunk of the log."""
    message = chunks_pb2.Chunk()
    write_chunk(logged, message)
    return message


def write_chunk(logged: LoggedChunk, message: chunks_pb2.Chunk) -> None:
    """Writes a chunk of the log into a message that has nothing yet."""
    message.position = logged.position
    message.producer_id = logged.producer_id
    message.producer_sequence = logged.producer_sequence
    write_timestamp(logged.created_at, message.created_at)
    chunk = logged.chunk
    if chunk.metadata:
        message.metadata.update(chunk.metadata)
    if chunk.has_heading():
        message.thread = chunk.thread
        message.source = chunk.source
        if chunk.occurred_at is not None:
            write_timestamp(chunk.occurred_at, message.occurred_at)
    if chunk.kind is ChunkKind.STEP:
        step = message.agent_step
        step.observation = chunk.observation
        step.thought = chunk.thought
        step.action = chunk.action
        # One that does not say it is read with its observation first.
        step.observed_first = chunk.observed_first is not False
        step.SetInParent()
    elif chunk.kind is ChunkKind.MESSAGE:
        message.message.role = chunk.role
        message.message.text = chunk.text
    else:
        message.text = chunk.text
