"""Chunks as a log has them."""

from datetime import UTC, datetime

from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk

START = datetime(2026, 1, 1, tzinfo=UTC)


def logged(position: int, text: str) -> LoggedChunk:
    """Returns a text at a position."""
    return logged_chunk(position, Chunk(kind=ChunkKind.TEXT, text=text))


def logged_chunk(position: int, chunk: Chunk, created_at: datetime = START) -> LoggedChunk:
    """Returns a chunk at a position, by the only producer there is."""
    return LoggedChunk(
        position=position,
        chunk=chunk,
        producer_id="p",
        producer_sequence=position,
        created_at=created_at,
    )
