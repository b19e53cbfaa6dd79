"""The log: chunks and filters of chunks."""

from datetime import datetime
from typing import Literal

from palimpsest.v1 import chunks_pb2, common_pb2
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import moment, write_timestamp
from service.settings.config import Limits
from service.usecases.log.chunk_filter import ChunkFilter

_KINDS = {
    chunks_pb2.CHUNK_KIND_TEXT: ChunkKind.TEXT,
    chunks_pb2.CHUNK_KIND_MESSAGE: ChunkKind.MESSAGE,
    chunks_pb2.CHUNK_KIND_AGENT_STEP: ChunkKind.STEP,
}
_FILTERED_IDS = ("threads", "excluded_threads", "sources")


def chunk(logged: LoggedChunk) -> chunks_pb2.Chunk:
    """Returns a chunk of the log."""
    message = chunks_pb2.Chunk()
    write_chunk(logged, message)
    return message


def write_chunk(logged: LoggedChunk, message: chunks_pb2.Chunk) -> None:
    """Writes a chunk of the log into a message that is empty: no message is copied."""
    message.position = logged.position
    message.producer_id = logged.producer_id
    message.producer_sequence = logged.producer_sequence
    write_timestamp(logged.created_at, message.created_at)
    held = logged.chunk
    if held.metadata:
        message.metadata.update(held.metadata)
    if held.has_heading():
        message.thread = held.thread
        message.source = held.source
        if held.occurred_at is not None:
            write_timestamp(held.occurred_at, message.occurred_at)
    if held.kind is ChunkKind.STEP:
        step = message.agent_step
        step.observation = held.observation
        step.thought = held.thought
        step.action = held.action
        # What does not say is read with the observation first.
        step.observed_first = held.observed_first is not False
    elif held.kind is ChunkKind.MESSAGE:
        message.message.role = held.role
        message.message.text = held.text
    else:
        message.text = held.text


def chunk_filter(message: chunks_pb2.ChunkFilter, limits: Limits) -> ChunkFilter:
    """Returns which chunks a client wants. Raises InvalidInput for more ids than the limit."""
    for name in _FILTERED_IDS:
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
        from_time=_end(message.created, "start"),
        to_time=_end(message.created, "end"),
        kinds=frozenset(_KINDS[kind] for kind in message.kinds),
        metadata=dict(message.metadata),
        threads=frozenset(message.threads),
        excluded_threads=frozenset(message.excluded_threads),
        sources=frozenset(message.sources),
        occurred_after=_end(message.occurred, "start"),
        occurred_before=_end(message.occurred, "end"),
    )


def _end(times: common_pb2.TimeRange, name: Literal["start", "end"]) -> datetime | None:
    return moment(getattr(times, name)) if times.HasField(name) else None
