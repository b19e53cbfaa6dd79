"""Filters of chunks, from their messages."""

from datetime import UTC, datetime

from palimpsest.v1alpha1 import chunks_pb2
from service.domain.log.chunks import ChunkKind
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.settings.config import Limits
from service.usecases.log.chunk_filter import ChunkFilter

_KINDS_OF = {
    chunks_pb2.CHUNK_KIND_TEXT: ChunkKind.TEXT,
    chunks_pb2.CHUNK_KIND_MESSAGE: ChunkKind.MESSAGE,
    chunks_pb2.CHUNK_KIND_STEP: ChunkKind.STEP,
}
_IDS = ("threads", "excluded_threads", "sources")


def chunk_filter(message: chunks_pb2.ChunkFilter, limits: Limits) -> ChunkFilter:
    """Returns what a client wants. Raises InvalidInput for more ids than the limit."""
    for name in _IDS:
        count = len(getattr(message, name))
        if count > limits.max_filter_ids:
            raise InvalidInput(
                Reason.FIELD_INVALID,
                f"filter.{name} has {count} ids; the limit is {limits.max_filter_ids}",
                field=f"filter.{name}",
            )
    return ChunkFilter(
        from_position=message.from_position,
        to_position=message.to_position,
        from_time=_time(message, "from_time"),
        to_time=_time(message, "to_time"),
        kinds=frozenset(_KINDS_OF[kind] for kind in message.kinds),
        metadata=dict(message.metadata),
        threads=frozenset(message.threads),
        excluded_threads=frozenset(message.excluded_threads),
        sources=frozenset(message.sources),
        occurred_after=_time(message, "occurred_after"),
        occurred_before=_time(message, "occurred_before"),
    )


def _time(message: chunks_pb2.ChunkFilter, field: str) -> datetime | None:
    if not message.HasField(field):  # type: ignore[arg-type]  # one of its times
        return None
    found: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    return found
