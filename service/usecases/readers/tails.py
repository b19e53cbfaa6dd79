"""Tails: the text that no node of a tree, or vector, covers yet, cut as its segments will be.

A memory that has stalled, or that is new to a long log, may have hundreds of megabytes of it. A
navigation has the newest that fit, and says what it leaves out.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.chunks import LoggedChunk
from service.domain.splitting import Cutter
from service.domain.tree.nodes import Place
from service.domain.tree.segmenting import Cut, Piece, Segmenter, piece_of
from service.usecases.feeding import in_thread
from service.usecases.readers.log_range import PAGE_BYTES, PAGE_CHUNKS, LogRange
from storage import log, log_ends
from storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The text behind the last node or vector, in pieces."""

    cuts: Sequence[Cut]
    #: The first and the last chunk that were left out of it; None: none was.
    left_out: tuple[int, int] | None = None


async def read_tail(
    held: LogRange,
    start: Place,
    *,
    segment_tokens: int,
    cutter: Cutter,
    max_bytes: int,
    left_out: tuple[int, int] | None = None,
) -> Tail:
    """The text of a log from `start` on: of more than `max_bytes` the newest chunks.

    It is cut in a thread, one page of chunks at a time. `left_out` is what was left out when it
    was read before.
    """
    if left_out is None:
        async with held.database.transaction(held.tenant_id, name="answer") as tx:
            after = start.position - 1
            behind = await log_ends.newest(tx, held.session_key, after, held.up_to, max_bytes)
        left_out = (start.position, behind) if behind > after else None
    if left_out is not None:
        start = Place(left_out[1] + 1)
    segmenter = Segmenter(segment_tokens, cutter, start)
    cuts = await in_thread(
        _pages(held, start), lambda pieces: [*segmenter.feed(pieces), *segmenter.finish()]
    )
    return Tail(cuts=cuts, left_out=left_out)


async def pieces_between(
    tx: Transaction, session_key: UUID, start: Place, end: Place
) -> Sequence[Piece]:
    """The text under a node, from `start` to before `end`, chunk by chunk."""
    pieces: list[Piece] = []
    after = start.position - 1
    while after < end.last_position:
        wanted = (after, min(after + PAGE_CHUNKS, end.last_position))
        found = await log.read_ranges(tx, session_key, [wanted], PAGE_BYTES)
        pieces += (_before(_from(start, one), end) for one in found[after])
        after = pieces[-1].position
    return pieces


async def _pages(held: LogRange, start: Place) -> AsyncIterator[Sequence[Piece]]:
    async for page in held.pages(start.position - 1):
        yield [_from(start, one) for one in page]


def _from(start: Place, logged: LoggedChunk) -> Piece:
    return piece_of(logged, start.offset if logged.position == start.position else 0)


def _before(piece: Piece, end: Place) -> Piece:
    """What of a piece stands before a place."""
    if piece.position < end.position:
        return piece
    return replace(piece, text=piece.text[: end.offset - piece.offset])
