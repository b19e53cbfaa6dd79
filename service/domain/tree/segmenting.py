"""Segmenting: a log that grows, in segments that depend on what it holds alone.

The next segment is cut from the text that follows the last one, as soon as a fixed
look-ahead past the longest segment is there. What was cut is never cut anew, and the same
log is cut the same way however it came.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from service.domain.chunks import LoggedChunk
from service.domain.tree.nodes import Place

#: Characters of the first piece of a text, at its best border; the piece has at most the
#: tokens given (`estimate_tokens`). 1 or more for a text that is not empty.
Cutter = Callable[[str, int], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The text of a chunk, or what is left of it."""

    position: int
    #: Characters of the chunk's text (`Chunk.as_text`) before `text`.
    offset: int
    text: str
    #: A message or a step, which is kept whole where it fits.
    whole: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A segment: a piece of the log, as a model reads it."""

    #: From here …
    start: Place
    #: … to before here.
    end: Place
    text: str
    #: Tokens of the text, by `estimate_tokens`.
    tokens: int


def piece_of(logged: LoggedChunk, offset: int = 0) -> Piece:
    """The text of a chunk from `offset` on."""
    raise NotImplementedError


class Segmenter:
    """Cuts the text of a log from one place on."""

    def __init__(self, segment_tokens: int, cut: Cutter, start: Place) -> None:
        self._start = start

    @property
    def start(self) -> Place:
        """Where the text begins that is not cut yet: the tail."""
        return self._start

    def feed(self, pieces: Iterable[Piece]) -> list[Cut]:
        """The segments that are complete with the next pieces of the log.

        The first piece ever begins at `start`, each other one where the last ended; else
        ValueError.
        """
        raise NotImplementedError

    def finish(self) -> list[Cut]:
        """What is left, in segments of about the same size; none when there is no text."""
        raise NotImplementedError
