"""The log as browsing reads it: pieces, without holding the text of all of them."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile, zip_longest
from typing import Any, Protocol
from uuid import UUID

from service.domain.dciso.lookups import RankPieces, ReadPiece
from service.domain.dciso.pieces import Frame, Part, Piece, Span
from service.domain.flows import LookUp
from service.domain.ranking import fitting
from service.usecases.feeding import in_thread
from storage import log
from storage.database import Database

#: Chunks that one look at the log brings at most, and bytes of their content; a longer
#: chunk comes by itself.
PAGE_CHUNKS = 512
PAGE_BYTES = 1024 * 1024
#: Chunks that one search names at most.
MAX_HITS = 1000

#: Positions and texts of chunks, in order.
Texts = Iterable[tuple[int, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A chunk that retrieval names, and where in its text what fits begins."""

    position: int
    #: Of `Chunk.as_text()`, in characters; None when it is the chunk as a whole.
    from_character: int | None


class Ranks(Protocol):
    """Retrieval over the chunks that browsing may read."""

    async def rank(self, query: str, *, limit: int, rerank: bool) -> Sequence[Hit]:
        """Up to `limit` chunks that fit, best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRange:
    """A session's log up to a position."""

    database: Database
    tenant_id: UUID
    session_key: UUID
    #: The last position that counts; 0: there is nothing.
    up_to: int

    async def pages(
        self, after: int = 0, up_to: int | None = None
    ) -> AsyncIterator[Sequence[tuple[int, str]]]:
        """The texts at positions (after, up_to], as many at a time as a page has."""
        last = self.up_to if up_to is None else min(up_to, self.up_to)
        while after < last:
            wanted = (after, min(after + PAGE_CHUNKS, last))
            async with self.database.transaction(self.tenant_id) as tx:
                found = await log.read_ranges(tx, self.session_key, [wanted], PAGE_BYTES)
            page = [(one.position, one.chunk.as_text()) for one in found[after]]
            yield page
            after = page[-1][0]


class BrowsedLog:
    """What browsing looks up. It changes nothing and may be asked in parallel."""

    def __init__(
        self,
        held: LogRange,
        frames: Sequence[Frame],
        ranks: Ranks,
        ranked: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """`ranked` are the replies to the first look-ups for pieces that fit, if they were
        given before: by now retrieval might know more, and find others."""
        #: In the order of the log.
        self.frames = frames
        self._held = held
        self._ranks = ranks
        self._ranked = iter(ranked)
        self._ends = [(frame.to_position, frame.to_character) for frame in frames]

    @classmethod
    async def open(
        cls,
        held: LogRange,
        pack: Callable[[Texts], Iterator[Frame]],
        ranks: Ranks,
        ranked: Sequence[tuple[int, ...]] = (),
    ) -> "BrowsedLog":
        """The pieces that `pack` makes of the log: the same whenever it is opened.

        They are counted in a thread, one page of texts at a time.
        """
        frames: tuple[Frame, ...] = await in_thread(held.pages(), lambda texts: tuple(pack(texts)))
        return cls(held, frames, ranks, ranked)

    async def look_up(self, ask: LookUp) -> Any:
        """What browsing wants to know, as `service.domain.dciso.lookups` says it."""
        match ask:
            case ReadPiece():
                return await self._read(self.frames[ask.number - 1])
            case RankPieces():
                known = next(self._ranked, None)
                return await self._best(ask) if known is None else known
        raise TypeError(f"a log is not asked for {type(ask).__name__}")

    def frame_of(self, position: int, from_character: int) -> Frame:
        """The piece that has a character of a chunk."""
        at = min(bisect_right(self._ends, (position, from_character)), len(self.frames) - 1)
        # What is behind a chunk's last character still belongs to the last of its pieces.
        while at and self.frames[at].from_position > position:
            at -= 1
        return self.frames[at]

    async def true_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Those of the spans at which the log has their text, in their order."""
        texts: dict[int, str] = {}
        for position in sorted({span.position for span in spans}):
            async for page in self._held.pages(position - 1, position):
                texts |= page
        return [span for span in spans if _is_there(span, texts.get(span.position, ""))]

    async def _read(self, frame: Frame) -> Piece:
        parts: list[Part] = []
        async for page in self._held.pages(frame.from_position - 1, frame.to_position):
            parts += (part for one in page if (part := _part_of(frame, *one)).text)
        return Piece(frame=frame, parts=tuple(parts))

    async def _best(self, ask: RankPieces) -> tuple[int, ...]:
        """The pieces of the chunks that fit best: its best chunk speaks for a piece."""
        chunks = self._held.up_to
        # Were the hits spread evenly; where they are not, more are looked for.
        limit = min(ask.count * -(-chunks // max(len(self.frames), 1)), MAX_HITS)
        while True:
            hits = await self._ranks.rank(ask.query, limit=limit, rerank=False)
            pieces = self._pieces_of(hits)
            if len(pieces) >= ask.count or len(hits) < limit or limit >= MAX_HITS:
                break
            limit = min(limit * 2, MAX_HITS)
        if ask.rerank and pieces:
            # Asked for last and once, since it costs a model call.
            hits = await self._ranks.rank(ask.query, limit=limit, rerank=True)
        return await self._placed(ask, hits)

    def _pieces_of(self, hits: Iterable[Hit]) -> set[int]:
        return {self.frame_of(hit.position, hit.from_character or 0).number for hit in hits}

    async def _placed(self, ask: RankPieces, hits: Iterable[Hit]) -> tuple[int, ...]:
        """The pieces of hits, best first, as many as are asked for.

        Of a long chunk that fits as a whole its best piece; the others that have words of
        the query come behind the pieces of all hits.
        """
        found: dict[int, None] = {}
        others: list[Sequence[int]] = []
        for hit in hits:
            if len(found) >= ask.count:
                break
            frames = self._frames_of(hit)
            if len(frames) > 1:
                best, *rest = await self._best_of(ask.query, hit.position, frames)
                others.append(rest)
            else:
                best = frames[0].number
            found.setdefault(best)
        for alike in zip_longest(*others):
            found |= dict.fromkeys(number for number in alike if number is not None)
        return tuple(found)[: ask.count]

    def _frames_of(self, hit: Hit) -> Sequence[Frame]:
        """The pieces that may hold what fits."""
        first = self.frame_of(hit.position, hit.from_character or 0)
        if hit.from_character is not None:
            return (first,)
        further = islice(self.frames, first.number, None)
        return (first, *takewhile(lambda frame: frame.from_position == hit.position, further))

    async def _best_of(self, query: str, position: int, frames: Sequence[Frame]) -> Sequence[int]:
        """Of the pieces of a long chunk those that have words of a query, best first."""
        async for ((_, text),) in self._held.pages(position - 1, position):
            parts = [_part_of(frame, position, text).text for frame in frames]
            # It may have megabytes.
            order = await asyncio.to_thread(fitting, query, parts)
            return [frames[number].number for number in order or (0,)]
        raise AssertionError("retrieval names chunks that are there")


def _part_of(frame: Frame, position: int, text: str) -> Part:
    """What of a chunk belongs to a piece."""
    end = frame.to_character if position == frame.to_position else len(text)
    start = frame.from_character if position == frame.from_position else 0
    return Part(position=position, from_character=start, text=text[start:end])


def _is_there(span: Span, text: str) -> bool:
    return bool(span.text) and text[span.from_character : span.to_character] == span.text
