"""Chunks and filters of chunks."""

from datetime import datetime

from google.protobuf.message import Message

from palimpsest.v1 import chunks_pb2
from service.domain.log.chunks import ChunkKind
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import moment
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
