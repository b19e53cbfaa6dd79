"""Chunks of the log."""

from palimpsest.v1 import chunks_pb2
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.rpc.convert.common import write_timestamp


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
