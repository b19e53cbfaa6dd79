"""Reads the log as browsing does: in pieces, without keeping the text of all of them.

Of a log with more than `Limits.max_browsed_bytes` its beginning and its end are decomposed,
half of the bytes each: the front and the end are what a text that does not fit is left with in
the paper's comparisons too. What is between is reached by retrieval alone. A chunk there that
it names becomes a piece of its own, with its surroundings.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile, zip_longest
from typing import Any, Protocol

from service.domain.answers.browse.packing import PiecePacker, part_of, piece_of
from service.domain.answers.browse.pieces import (
    BrowsePiece,
    Frame,
    RankPieces,
    ReadPiece,
    Span,
)
from service.domain.prompting.flows import Fetch
from service.domain.search.ranking import fitting
from service.llm.offloading import beside
from service.usecases.answers.readers.log_range import LogRange
from storage.log import ends
from storage.log.ranges import Range

#: Chunks that one search names at most.
MAX_HITS = 1000
#: Chunks that a piece between the ends has in front of the one that it was made for.
CHUNKS_BEFORE = 4
#: Pieces between the ends are numbered after all others: so many numbers for each chunk.
NUMBERS_PER_CHUNK = 10_000

#: Begins to pack a log.
Pack = Callable[[], PiecePacker]


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseHit:
    """A chunk that retrieval names, and where in its text what fits begins."""

    position: int
    #: Where it begins in `Chunk.as_text()`, in characters; None for a whole chunk.
    from_character: int | None


class Ranks(Protocol):
    """Retrieval over the chunks that browsing may read."""

    async def rank(self, query: str, *, limit: int, rerank: bool) -> Sequence[BrowseHit]:
        """Returns up to `limit` chunks that fit, best first."""


class BrowsedLog:
    """Looks up what browsing asks for. Changes nothing, and may be called in parallel."""

    def __init__(
        self,
        held: LogRange,
        pack: Pack,
        frames: Sequence[Frame],
        ranks: Ranks,
        ranked: Sequence[tuple[int, ...]] = (),
        left_out: tuple[int, int] | None = None,
    ) -> None:
        """`ranked` are the replies to the first look-ups for pieces that fit, if they were
        given before: by now retrieval might know more, and find others."""
        #: In the order of the log, numbered from 1.
        self.frames = frames
        #: The first and the last chunk between the ends; None: the pieces have all of the log.
        self.left_out = left_out
        self._held = held
        self._pack = pack
        self._ranks = ranks
        self._ranked = iter(ranked)
        self._ends = [(frame.to_position, frame.to_character) for frame in frames]
        #: Pieces between the ends that retrieval has named, by number.
        self._between: dict[int, Frame] = {}
        #: Serializes reads of pieces: however many are asked for at once, an answer takes one
        #: connection, since a worker has fewer than its answers could ask for pieces.
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        held: LogRange,
        pack: Pack,
        ranks: Ranks,
        ranked: Sequence[tuple[int, ...]] = (),
        *,
        max_bytes: int,
        left_out: tuple[int, int] | None = None,
    ) -> "BrowsedLog":
        """Decomposes the log into the pieces of `pack`: the same whenever it is opened.

        They are counted in a thread, one page of texts at a time. `max_bytes` is the most that
        is decomposed; `left_out` is what was left out when it was opened before.
        """
        left_out = left_out or await _between_the_ends(held, max_bytes)
        if left_out is None:
            frames = await _packed(held, pack, 0, held.up_to)
        else:
            begin = await _packed(held, pack, 0, left_out[0] - 1)
            end = await _packed(held, pack, left_out[1], held.up_to)
            after = (replace(one, number=one.number + len(begin)) for one in end)
            frames = (*begin, *after)
        return cls(held, pack, frames, ranks, ranked, left_out)

    async def fetch(self, ask: Fetch) -> Any:
        """Returns what browsing asks for, as `service.domain.answers.browse.pieces` defines it."""
        match ask:
            case ReadPiece():
                return await self._read(self._frame(ask.number))
            case RankPieces():
                known = next(self._ranked, None)
                return await (self._best(ask) if known is None else self._known(known))
        raise TypeError(f"a log is not asked for {type(ask).__name__}")

    def frame_of(self, position: int, from_character: int) -> Frame:
        """Returns the piece that has a character of a chunk; between the ends a named one."""
        if self._is_between(position):
            for frame in self._between.values():
                if _begins(frame) <= (position, from_character) < _ends(frame):
                    return frame
        at = min(bisect_right(self._ends, (position, from_character)), len(self.frames) - 1)
        # What is after a chunk's last character still belongs to the last of its pieces.
        while at and self.frames[at].from_position > position:
            at -= 1
        return self.frames[at]

    async def true_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Returns the spans at which the log has their text, in their order."""
        texts: dict[int, str] = {}
        for position in sorted({span.position for span in spans}):
            async for page in self._held.texts(position - 1, position):
                texts |= page
        return [span for span in spans if _is_there(span, texts.get(span.position, ""))]

    def _is_between(self, position: int) -> bool:
        return self.left_out is not None and self.left_out[0] <= position <= self.left_out[1]

    def _frame(self, number: int) -> Frame:
        """Returns a piece by its number. Raises ValueError if there is none."""
        if 1 <= number <= len(self.frames):
            return self.frames[number - 1]
        if number not in self._between:
            raise ValueError(f"there is no piece {number}")
        return self._between[number]

    async def _known(self, numbers: Sequence[int]) -> tuple[Frame, ...]:
        """Returns the pieces of these numbers that the log has."""
        for number in numbers:
            at, _ = divmod(number - len(self.frames) - 1, NUMBERS_PER_CHUNK)
            if number > len(self.frames) and self.left_out is not None:
                await self._about(self.left_out[0] + at)
        known = (n for n in numbers if 1 <= n <= len(self.frames) or n in self._between)
        return tuple(self._frame(number) for number in known)

    async def _about(self, position: int) -> Sequence[Frame]:
        """Makes the pieces that have a chunk between the ends; several of a long one."""
        if not self._is_between(position):
            return ()
        assert self.left_out is not None, "there is something between the ends"
        first, last = self.left_out
        packer, packed, unverified = self._pack(), list[Frame](), set[int]()
        after = max(first, position - CHUNKS_BEFORE) - 1
        async for page in self._held.texts(after, last, unverified):
            packed += await beside(_packed_up_to, packer, page, position, unverified)
            if packed and packed[-1].to_position > position:
                break
        else:
            packed += packer.finish()
        holding = (one for one in packed if one.from_position <= position <= one.to_position)
        before = len(self.frames) + (position - first) * NUMBERS_PER_CHUNK
        frames = [
            replace(frame, number=before + part)
            for part, frame in enumerate(islice(holding, NUMBERS_PER_CHUNK), 1)
        ]
        self._between |= {frame.number: frame for frame in frames}
        return frames

    async def _read(self, frame: Frame) -> BrowsePiece:
        texts, unverified = list[tuple[int, str]](), set[int]()
        after, upto = frame.from_position - 1, frame.to_position
        async with self._turn:
            async for page in self._held.texts(after, upto, unverified):
                texts += page
        return piece_of(frame, texts, unverified)

    async def _best(self, ask: RankPieces) -> tuple[Frame, ...]:
        """Returns the pieces of the chunks that fit best; a piece ranks as its best chunk."""
        chunks = self._held.up_to
        if self.left_out is not None:
            chunks -= self.left_out[1] - self.left_out[0] + 1
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

    def _pieces_of(self, hits: Iterable[BrowseHit]) -> set[tuple[bool, int]]:
        """Returns the distinct pieces of hits; between the ends each chunk counts as one."""
        return {
            (True, hit.position)
            if self._is_between(hit.position)
            else (False, self.frame_of(hit.position, hit.from_character or 0).number)
            for hit in hits
        }

    async def _placed(self, ask: RankPieces, hits: Iterable[BrowseHit]) -> tuple[Frame, ...]:
        """Returns the pieces of hits, best first, as many as are asked for.

        Of a long chunk that fits as a whole its best piece; the others that have words of
        the query come after the pieces of all hits.
        """
        found: dict[int, Frame] = {}
        others: list[Sequence[Frame]] = []
        for hit in hits:
            if len(found) >= ask.count:
                break
            frames = await self._frames_of(hit, found.values())
            if len(frames) > 1:
                best, *rest = await self._best_of(ask.query, hit.position, frames)
                others.append(rest)
            elif frames:
                best = frames[0]
            else:
                continue
            found.setdefault(best.number, best)
        for frame in chain.from_iterable(zip_longest(*others)):
            if frame is not None:
                found.setdefault(frame.number, frame)
        return tuple(islice(found.values(), ask.count))

    async def _frames_of(self, hit: BrowseHit, found: Iterable[Frame]) -> Sequence[Frame]:
        """Returns the pieces that may have what fits; none if it is in one that is found."""
        if self._is_between(hit.position):
            if any(one.from_position < hit.position < one.to_position for one in found):
                return ()
            frames = await self._about(hit.position)
            at = (hit.position, hit.from_character or 0)
            holding = [one for one in frames if _begins(one) <= at < _ends(one)]
            return frames if hit.from_character is None else holding
        first = self.frame_of(hit.position, hit.from_character or 0)
        if hit.from_character is not None:
            return (first,)
        further = islice(self.frames, first.number, None)
        return (first, *takewhile(lambda frame: frame.from_position == hit.position, further))

    async def _best_of(self, query: str, position: int, frames: Sequence[Frame]) -> Sequence[Frame]:
        """Returns the pieces of a long chunk that have words of a query, best first."""
        async for ((_, text),) in self._held.texts(position - 1, position):
            parts = [part_of(frame, position, text).text for frame in frames]
            # It may have megabytes.
            order = await beside(fitting, query, parts)
            return [frames[number] for number in order or (0,)]
        raise AssertionError("retrieval names chunks that are there")


async def _between_the_ends(held: LogRange, max_bytes: int) -> tuple[int, int] | None:
    """Returns what of a log with more than `max_bytes` is between its ends of half of that."""
    if not held.up_to:
        return None
    async with held.database.transaction(held.tenant_id, name="answer") as tx:
        key = held.session_key
        within = held.within() or Range(from_position=1, to_position=held.up_to)
        if await ends.newest(tx, key, within, max_bytes) < within.from_position:
            return None
        begin = await ends.first(tx, key, within, max_bytes // 2)
        rest = replace(within, from_position=begin + 1)
        end = await ends.newest(tx, key, rest, max_bytes // 2)
    return (begin + 1, end) if begin < end else None


async def _packed(held: LogRange, pack: Pack, after: int, up_to: int) -> tuple[Frame, ...]:
    """Returns the pieces of a part of the log; they are counted in a thread, page by page."""
    packer, frames, unverified = pack(), list[Frame](), set[int]()
    async for page in held.texts(after, up_to, unverified):
        frames += await beside(packer.feed, page, unverified)
    return (*frames, *packer.finish())


def _packed_up_to(
    packer: PiecePacker,
    texts: Iterable[tuple[int, str]],
    position: int,
    unverified: Collection[int],
) -> Sequence[Frame]:
    """Packs texts until a piece ends after `position`."""
    frames: list[Frame] = []
    for one in texts:
        frames += packer.feed([one], unverified)
        if frames and frames[-1].to_position > position:
            break
    return frames


def _begins(frame: Frame) -> tuple[int, int]:
    return frame.from_position, frame.from_character


def _ends(frame: Frame) -> tuple[int, int]:
    return frame.to_position, frame.to_character


def _is_there(span: Span, text: str) -> bool:
    return bool(span.text) and text[span.from_character : span.to_character] == span.text
