"""Segmenting: a log that grows, in segments that depend on what it holds alone.

The next segment is cut from the text that follows the last one, as soon as a fixed
look-ahead past the longest segment is there, and from no more than that. So what was cut is
never cut anew, the same log is cut the same way however it came, and what is left at the end
is never a small segment.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.domain.access.trust import Trust, least_trust
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.domain.prompting.cutting import LOOK_AHEAD, Cutter
from service.domain.prompting.tokens import TOKEN_BYTES, estimate_tokens
from service.domain.tree.borders import (
    JOINT,
    SegmentEnd,
    SegmentPiece,
    UncutText,
    blocks,
    even_end,
    full_end,
)
from service.domain.tree.nodes import TextOffset


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A segment: a piece of the log, as a model reads it."""

    #: From here …
    start: TextOffset
    #: … to before here.
    end: TextOffset
    text: str
    #: Tokens of the text, by `estimate_tokens`.
    tokens: int
    #: The least trusted level of what is in it.
    trust: Trust = Trust.TRUSTED


def piece_of(logged: LoggedChunk, offset: int = 0) -> SegmentPiece:
    """Returns the text of a chunk from `offset` on."""
    return SegmentPiece(
        position=logged.position,
        offset=offset,
        text=logged.chunk.as_text()[offset:],
        whole=logged.chunk.kind is not ChunkKind.TEXT or logged.chunk.has_heading(),
        trust=logged.trust if logged.is_read else Trust.TRUSTED,
    )


def joined(pieces: Iterable[SegmentPiece], *, as_written: bool = False) -> str:
    """Joins consecutive pieces as a model reads them.

    Text goes on as it was written, whatever chunks it came in, unless a sentence ends with its
    chunk and no blank follows; messages and steps have lines of their own. With `as_written` text
    goes on in any case, as in leaves of version 0.1.
    """
    parts: list[str] = []
    before: SegmentPiece | None = None
    for piece in pieces:
        if before is not None and before.is_joint(piece, as_written=as_written):
            parts.append(JOINT)
        parts.append(piece.text)
        before = piece
    return "".join(parts)


class Segmenter:
    """Cuts the text of a log from one offset on."""

    def __init__(self, segment_tokens: int, cut: Cutter, start: TextOffset) -> None:
        self._limit = segment_tokens * TOKEN_BYTES
        self._window = self._limit + int(self._limit * LOOK_AHEAD)
        self._cut = cut
        self._start = start
        #: Where the next piece begins.
        self._end = start
        self._parts: deque[UncutText] = deque()
        #: Bytes of the parts.
        self._size = 0

    @property
    def start(self) -> TextOffset:
        """Where the text begins that is not cut yet: the tail."""
        return self._start

    def feed(self, pieces: Iterable[SegmentPiece]) -> list[Cut]:
        """Returns the segments that are complete with the next pieces of the log.

        The first piece ever begins at `start`, each other one where the last ended; else
        ValueError.
        """
        cuts: list[Cut] = []
        for piece in pieces:
            self._hold(piece)
            while self._size >= self._window:
                found = blocks(self._parts, self._window)
                cuts.append(self._take(full_end(found, self._limit, self._cut)))
        return cuts

    def finish(self) -> list[Cut]:
        """Returns what is left, in segments of about the same size; none when there is no text."""
        cuts: list[Cut] = []
        while self._size:
            found = list(blocks(self._parts, self._window))
            end = even_end(found, self._limit, self._cut) or SegmentEnd(len(self._parts))
            cuts.append(self._take(end))
        return cuts

    def _hold(self, piece: SegmentPiece) -> None:
        if TextOffset(piece.position, piece.offset) != self._end:
            raise ValueError(
                f"a piece at position {piece.position}, offset {piece.offset}, where the text goes "
                f"on at position {self._end.position}, offset {self._end.offset}"
            )
        self._end = TextOffset(piece.position + 1)
        size = len(piece.text.encode())
        self._parts.append(UncutText(piece=piece, size=size))
        self._size += size

    def _take(self, end: SegmentEnd) -> Cut:
        taken = [self._parts.popleft().upto() for _ in range(end.parts)]
        offset = TextOffset(taken[-1].position + 1) if taken else self._start
        if end.characters:
            part = self._parts[0]
            begun = part.upto(part.at + end.characters)
            size = part.size - len(begun.text.encode())
            self._parts[0] = replace(part, at=part.at + end.characters, size=size)
            taken.append(begun)
            offset = TextOffset(begun.position, begun.offset + end.characters)
        self._size -= sum(len(piece.text.encode()) for piece in taken)
        text = joined(taken)
        cut = Cut(
            start=self._start,
            end=offset,
            text=text,
            tokens=estimate_tokens(text),
            trust=least_trust(piece.trust for piece in taken),
        )
        self._start = offset
        return cut
