"""Converts chunks, and filters of chunks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Literal
from uuid import UUID

from palimpsest.v1 import chunks_pb2, common_pb2
from service.domain.access.trust import Trust
from service.domain.log.appending import SubmittedChunk
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.log.redactions import Redaction, RedactionCause
from service.domain.memories.long_operations import OperationId
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import (
    moment,
    numbers_of,
    trust_number,
    trust_of,
    write_timestamp,
)
from service.settings.config import Limits
from service.usecases.log.chunk_filter import ChunkFilter

_KINDS = {
    chunks_pb2.CHUNK_KIND_TEXT: ChunkKind.TEXT,
    chunks_pb2.CHUNK_KIND_MESSAGE: ChunkKind.MESSAGE,
    chunks_pb2.CHUNK_KIND_AGENT_STEP: ChunkKind.STEP,
}
#: By the name of the field that is set.
_KIND_OF_CONTENT = {
    None: ChunkKind.TEXT,
    "text": ChunkKind.TEXT,
    "message": ChunkKind.MESSAGE,
    "agent_step": ChunkKind.STEP,
}
_CAUSES = numbers_of(RedactionCause, chunks_pb2.Redaction.Cause, "CAUSE_")
_FILTERED_IDS = ("threads", "excluded_threads", "sources")


def submitted_chunks(
    messages: Sequence[chunks_pb2.Chunk], limits: Limits, *, numbered: bool, of: str = ""
) -> tuple[SubmittedChunk, ...]:
    """Returns a batch, checked against what the proto's rules cannot say. Raises InvalidInput.

    Chunks of a producer are `numbered`; otherwise none may have a sequence. `of`: the path of
    the message whose field they are.
    """
    field = f"{of}chunks"
    if len(messages) > limits.max_batch_chunks:
        raise InvalidInput(
            Reason.BATCH_TOO_LARGE,
            f"{len(messages)} chunks in a batch; the limit is {limits.max_batch_chunks}",
            {"chunks": len(messages), "limit_chunks": limits.max_batch_chunks},
            field=field,
        )
    for index, message in enumerate(messages):
        if (message.producer_sequence > 0) != numbered:
            name = f"{field}[{index}].producer_sequence"
            why = (
                "must be 1 or more"
                if numbered
                else "must be unset: the server numbers the chunks; producers use AppendChunks"
            )
            raise InvalidInput(Reason.FIELD_INVALID, f"{name}: {why}", field=name)
    chunks = tuple(
        _submitted(message, index, f"{field}[{index}]", limits.max_chunk_bytes)
        for index, message in enumerate(messages)
    )
    # The limit is one of texts; the size of a message bounds metadata as well.
    total = sum(chunk.size_bytes - chunk.chunk.metadata_bytes() for chunk in chunks)
    if total > limits.max_batch_bytes:
        raise InvalidInput(
            Reason.BATCH_TOO_LARGE,
            f"{total} bytes in a batch; the limit is {limits.max_batch_bytes}",
            {"bytes": total, "limit_bytes": limits.max_batch_bytes},
            field=field,
        )
    return chunks


def _submitted(
    message: chunks_pb2.Chunk, index: int, field: str, max_chunk_bytes: int
) -> SubmittedChunk:
    chunk = content(message)
    # Which one it is: a sequence has only what a producer sends.
    which: dict[str, object] = {"chunk": index}
    if message.producer_sequence:
        which["producer_sequence"] = message.producer_sequence
    if chunk.is_empty():
        raise InvalidInput(Reason.CHUNK_EMPTY, f"{field} has no text", which, field=field)
    size = chunk.content_bytes()
    if size > max_chunk_bytes:
        raise InvalidInput(
            Reason.CHUNK_TOO_LARGE,
            f"{field} has {size} bytes; the limit is {max_chunk_bytes}",
            {**which, "bytes": size, "limit_bytes": max_chunk_bytes},
            field=field,
        )
    if any("\0" in part for part in chunk.parts) or any(
        "\0" in key + value for key, value in chunk.metadata.items()
    ):
        raise InvalidInput(Reason.FIELD_INVALID, f"{field} has a NUL character", which, field=field)
    digest = chunk.digest()
    if message.digest and message.digest != digest:
        raise InvalidInput(
            Reason.DIGEST_MISMATCH,
            f"the digest of {field} is not that of its content",
            which,
            field=f"{field}.digest",
        )
    return SubmittedChunk(
        sequence=message.producer_sequence,
        chunk=chunk,
        digest=digest,
        size_bytes=size + chunk.metadata_bytes(),
    )


def content(message: chunks_pb2.Chunk) -> Chunk:
    """Returns what a chunk holds, without its place in the log."""
    field = message.WhichOneof("content")
    turn, step = message.message, message.agent_step
    return Chunk(
        kind=_KIND_OF_CONTENT[field],
        text=turn.text if field == "message" else message.text,
        role=turn.role,
        observation=step.observation,
        thought=step.thought,
        action=step.action,
        observed_first=step.observed_first,
        thread=message.thread,
        source=message.source,
        occurred_at=moment(message.occurred_at) if message.HasField("occurred_at") else None,
        metadata=dict(message.metadata) if message.metadata else {},
    )


def chunk(
    logged: LoggedChunk, redactions: Mapping[UUID, Redaction] = MappingProxyType({})
) -> chunks_pb2.Chunk:
    """Returns a chunk of the log; a tombstone with its redaction, where that is given."""
    message = chunks_pb2.Chunk()
    write_chunk(logged, message)
    if logged.redaction_id is not None and logged.redaction_id in redactions:
        write_redaction(redactions[logged.redaction_id], message.redaction)
    return message


def write_redaction(redaction: Redaction, message: chunks_pb2.Redaction) -> None:
    """Writes a redaction into a message, but for what was removed."""
    if redaction.cause is RedactionCause.REDACTED:
        key, number = redaction.session_key, redaction.redaction_id
        message.operation = str(OperationId(session_key=key, operation_id=number))
    message.cause = _CAUSES[redaction.cause]
    message.principal = redaction.principal
    message.reason = redaction.reason
    message.chunks = redaction.chunks
    write_timestamp(redaction.created_at, message.redacted_at)


def ranges_of(positions: Sequence[int]) -> Sequence[common_pb2.PositionRange]:
    """Returns positions in ascending order as ranges."""
    found: list[common_pb2.PositionRange] = []
    for position in positions:
        if found and found[-1].last == position - 1:
            found[-1].last = position
        else:
            found.append(common_pb2.PositionRange(first=position, last=position))
    return found


def write_chunk(logged: LoggedChunk, message: chunks_pb2.Chunk) -> None:
    """Writes a chunk of the log into a message that is empty: no message is copied."""
    message.position = logged.position
    message.producer_id = logged.producer_id
    message.producer_sequence = logged.producer_sequence
    write_timestamp(logged.created_at, message.created_at)
    if logged.trust is not Trust.TRUSTED:
        message.trust = trust_number(logged.trust)
    held = logged.chunk
    if logged.redaction_id is not None:
        message.redaction.SetInParent()
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
        kinds=tuple(_KINDS[kind] for kind in message.kinds),
        metadata=dict(message.metadata),
        threads=tuple(message.threads),
        excluded_threads=tuple(message.excluded_threads),
        sources=tuple(message.sources),
        occurred_after=_end(message.occurred, "start"),
        occurred_before=_end(message.occurred, "end"),
        min_trust=trust_of(message.min_trust),
    )


def _end(times: common_pb2.TimeRange, name: Literal["start", "end"]) -> datetime | None:
    return moment(getattr(times, name)) if times.HasField(name) else None
