"""Chunks, between the proto and our values."""

from palimpsest.v1 import chunks_pb2
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.rpc.convert.common import write_timestamp


def chunk(logged: LoggedChunk) -> chunks_pb2.Chunk:
    """Returns a chunk of the log."""
    message = chunks_pb2.Chunk()
    write_chunk(logged, message)
    return message


def write_chunk(logged: LoggedChunk, message: chunks_pb2.Chunk) -> None:
    """Writes a chunk of the log into a message that is empty."""
    content = logged.chunk
    message.position = logged.position
    message.producer_id = logged.producer_id
    message.producer_sequence = logged.producer_sequence
    write_timestamp(logged.created_at, message.created_at)
    if content.metadata:
        message.metadata.update(content.metadata)
    if content.has_heading():
        message.thread = content.thread
        message.source = content.source
        if content.occurred_at is not None:
            write_timestamp(content.occurred_at, message.occurred_at)
    if content.kind is ChunkKind.STEP:
        step = message.agent_step
        # The field has presence: it says the kind also where all that is set is a default.
        step.SetInParent()
        step.observation = content.observation
        step.thought = content.thought
        step.action = content.action
        # Steps that were appended before a client could say are read observation first.
        step.observed_first = content.observed_first is not False
    elif content.kind is ChunkKind.MESSAGE:
        message.message.role = content.role
        message.message.text = content.text
    else:
        message.text = content.text
