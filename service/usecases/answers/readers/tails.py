"""Tails: the text that no node of a tree, or vector, covers yet, cut as its segments will be.

A memory that has stalled, or that is new to a long log, may have hundreds of megabytes of it. A
navigation has the newest that fit, and says what it leaves out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from service.domain.tree.borders import SegmentPiece
from service.domain.tree.nodes import TextOffset
from service.domain.tree.segmenting import Cut, Segmenter, piece_of
from service.llm.offloading import beside
from service.llm.splitter import first_piece
from service.usecases.answers.readers.log_range import PAGE_BYTES, PAGE_CHUNKS, LogRange
from storage.engine.database import Transaction
from storage.log import chunks, ends
from storage.log.ranges import Range


@dataclass(frozen=True, kw_only=True, slots=True)
class TailCuts:
    """The text after the last node or vector, in pieces."""

    cuts: Sequence[Cut]
    #: The first and the last chunk that were left out of it; None: none was.
    left_out: tuple[int, int] | None = None

    @property
    def named(self) -> Mapping[str, Cut]:
        """Returns the pieces by the ids that navigations know."""
        return {f"t.{number}": cut for number, cut in enumerate(self.cuts, 1)}


async def read_tail(
    held: LogRange,
    start: TextOffset,
    *,
    segment_tokens: int,
    max_bytes: int,
    left_out: tuple[int, int] | None = None,
) -> TailCuts:
    """Reads the text of a log from `start` on: of more than `max_bytes` the newest chunks.

    It is cut in a thread, one page of chunks at a time. `left_out` is what was left out when it
    was read before.
    """
    if left_out is None:
        async with held.database.transaction(held.tenant_id, name="answer") as tx:
            after = start.position - 1
            log = Range(from_position=start.position, to_position=held.up_to)
            last = await ends.newest(tx, held.session_key, log, max_bytes)
        left_out = (start.position, last) if last > after else None
    if left_out is not None:
        start = TextOffset(left_out[1] + 1)
    segmenter = Segmenter(segment_tokens, first_piece, start)
    cuts: list[Cut] = []
    async for page in held.pages(start.position - 1):
        cuts += await beside(lambda page: segmenter.feed(_from(start, one) for one in page), page)
    cuts += await beside(segmenter.finish)
    return TailCuts(cuts=cuts, left_out=left_out)


async def pieces_between(
    tx: Transaction, session_key: UUID, start: TextOffset, end: TextOffset
) -> Sequence[SegmentPiece]:
    """Reads the text under a node, from `start` to before `end`, chunk by chunk."""
    pieces: list[SegmentPiece] = []
    after = start.position - 1
    while after < end.last_position:
        wanted = (after, min(after + PAGE_CHUNKS, end.last_position))
        found = await chunks.read_ranges(tx, session_key, [wanted], PAGE_BYTES)
        pieces += (_before(_from(start, one), end) for one in found[after])
        after = pieces[-1].position
    return pieces


def _from(start: TextOffset, logged: LoggedChunk) -> SegmentPiece:
    return piece_of(logged, start.offset if logged.position == start.position else 0)


def _before(piece: SegmentPiece, end: TextOffset) -> SegmentPiece:
    """Returns what of a piece is before an offset."""
    if piece.position < end.position:
        return piece
    return replace(piece, text=piece.text[: end.offset - piece.offset])
