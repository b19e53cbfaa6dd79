"""Borders: where the next segment ends, given the text that is not cut yet."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from service.domain.access.trust import Trust
from service.domain.prompting.cutting import Cutter
from service.domain.prompting.tokens import TOKEN_BYTES

#: Between messages and steps, and what is beside them, and between texts that end as one.
JOINT = "\n"
#: The end of a sentence at the end of a chunk, and the beginning of another. Without a blank
#: between them they are seldom a text that was cut anywhere.
_ENDED = re.compile(r"[.!?…][\"'”’»)\]]*\Z")
_BEGUN = re.compile(r"[^\W_]|[\"'“‘«(\[#*]")
#: Share of a segment: one that has as much ends where the next block would have to be cut.
ENOUGH = 1 / 2
#: Share of the last segments by which a border of blocks may be off to be preferred.
NEAR = 1 / 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentPiece:
    """The text of a chunk, or what is left of it."""

    position: int
    #: Characters of the chunk's text (`Chunk.as_text`) before `text`.
    offset: int
    text: str
    #: A message, a step or a chunk with a heading, which is kept whole where it fits.
    whole: bool
    trust: Trust = Trust.TRUSTED

    def is_joint(self, after: "SegmentPiece", *, as_written: bool = False) -> bool:
        """Returns whether the next piece begins on a line of its own; see `joined`."""
        if as_written or self.whole or after.whole:
            return self.whole or after.whole
        begun = _BEGUN.match(after.text)
        if begun is None or begun[0].islower():
            return False
        # A number may have been cut at its point.
        is_number = begun[0].isdigit() and self.text[-2:-1].isdigit()
        return not is_number and _ENDED.search(self.text[-4:]) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class UncutText:
    """A piece that is not cut yet, or not to its end."""

    piece: SegmentPiece
    #: Bytes of the rest.
    size: int
    #: Characters of the text that are cut.
    at: int = 0

    def upto(self, end: int | None = None) -> SegmentPiece:
        """Returns the rest to a character of the text; None: all of it."""
        piece = self.piece
        return replace(piece, offset=piece.offset + self.at, text=piece.text[self.at : end])


@dataclass(frozen=True, order=True, slots=True)
class SegmentEnd:
    """Where a segment ends: after so many parts, and so many characters of the next."""

    parts: int
    characters: int = 0


@dataclass(frozen=True, slots=True)
class TextBlock:
    """What is kept together: a message or step, or a run of text without a joint."""

    #: Number of the first part.
    first: int
    whole: bool
    #: The texts of the parts, as far as the window reaches.
    texts: tuple[str, ...]
    #: Bytes: of a message or step all of them, of a run those in the window.
    size: int

    def cut(self, cut: Cutter, room: int) -> SegmentEnd:
        """Returns the end of its first piece, of at most `room` bytes."""
        left = cut("".join(self.texts), max(1, room // TOKEN_BYTES))
        if left < 1:
            raise ValueError("a cutter that cuts nothing off")
        for number, text in enumerate(self.texts, self.first):
            if left < len(text):
                return SegmentEnd(number, left)
            left -= len(text)
        return SegmentEnd(self.first + len(self.texts))

    def size_to(self, spot: SegmentEnd) -> int:
        """Bytes of it before a spot."""
        whole = self.texts[: spot.parts - self.first]
        begun = self.texts[len(whole)][: spot.characters] if spot.characters else ""
        return sum(len(text.encode()) for text in (*whole, begun))


def blocks(parts: Iterable[UncutText], window: int) -> Iterator[TextBlock]:
    """Yields the blocks of the parts that begin within the first `window` bytes."""
    run: list[str] = []
    first = size = 0
    before: SegmentPiece | None = None
    for number, part in enumerate(parts):
        if window <= 0:
            break
        if run and before is not None and before.is_joint(part.piece):
            yield TextBlock(first, False, tuple(run), size)
            run = []
        before = part.piece
        text, taken = _beginning(part, window)
        window -= part.size
        if part.piece.whole:
            yield TextBlock(number, True, (text,), part.size)
            continue
        if not run:
            first, size = number, 0
        run.append(text)
        size += taken
    if run:
        yield TextBlock(first, False, tuple(run), size)


def full_end(found: Iterable[TextBlock], limit: int, cut: Cutter) -> SegmentEnd:
    """Returns the end of a segment of at most `limit` bytes, as late as it may be.

    The blocks have more than that. A message or step that fits is not cut for it, however
    short the segment is without it.
    """
    used = 0
    for block in found:
        joint = len(JOINT) if used else 0
        if used + joint + block.size <= limit:
            used += joint + block.size
        elif used and (used >= ENOUGH * limit or (block.whole and block.size <= limit)):
            return SegmentEnd(block.first)
        else:
            return block.cut(cut, limit - used - joint)
    raise AssertionError("the blocks are no more than a segment")


def even_end(found: Sequence[TextBlock], limit: int, cut: Cutter) -> SegmentEnd | None:
    """Returns the end of the first of the last segments, so that they are about equal.

    None: what is left is one segment.
    """
    ends = list(_ends(found))
    total = ends[-1]
    if total <= limit:
        return None
    segments = -(-total // limit)
    aim, room_behind = total / segments, limit * (segments - 1)
    borders = [
        (abs(end - aim), SegmentEnd(after.first))
        for end, (_, after) in zip(ends, pairwise(found), strict=False)
        if total - room_behind <= end <= limit
    ]
    distance, nearest = min(borders, default=(total, None))
    if distance > NEAR * total:
        number = next(number for number, end in enumerate(ends) if end >= aim)
        used = ends[number - 1] + len(JOINT) if number else 0
        room = min(limit, int(aim * (1 + NEAR / 2))) - used
        spot = _inside(found[number], room, limit, cut)
        if spot and used + found[number].size_to(spot) >= total - room_behind:
            return spot
    return nearest or full_end(found, limit, cut)


def _inside(block: TextBlock, room: int, limit: int, cut: Cutter) -> SegmentEnd | None:
    """Returns where to cut a block; None for one that is kept whole, or without room."""
    if room < TOKEN_BYTES or (block.whole and block.size <= limit):
        return None
    return block.cut(cut, room)


def _ends(found: Iterable[TextBlock]) -> Iterator[int]:
    """Bytes to the end of each block, joints between them counted."""
    end = -len(JOINT)
    for block in found:
        end += len(JOINT) + block.size
        yield end


def _beginning(part: UncutText, most: int) -> tuple[str, int]:
    """Returns the first `most` bytes of a part in whole characters, and their number."""
    # A character has a byte or more.
    raw = part.piece.text[part.at : part.at + most].encode()
    if len(raw) > most:
        text = raw[:most].decode(errors="ignore")
        return text, len(text.encode())
    return raw.decode(), len(raw)
