"""Packing: a log, decomposed into pieces (algorithm 1, line 3).

Chunks stay whole where they fit. One that is longer than a piece is cut, and each part
knows where it stands in its chunk, so that what is cited can be found.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from service.domain.answers.browse.pieces import (
    UNVERIFIED_NOTE,
    BrowsePiece,
    ChunkPart,
    Frame,
    shown,
)
from service.domain.prompting.cutting import TOKEN_CHARACTERS, Cutter
from service.domain.prompting.fitting import Count

#: What is left to try of a limit by which the cutter took too much.
_LESS = 2 / 3
#: Of "(unverified source)", with most vocabularies.
_LABEL_TOKENS = 8


class PiecePacker:
    """Packs a log into pieces, in order, each of at most `tokens` by `count`."""

    def __init__(self, tokens: int, *, count: Count, cut: Cutter) -> None:
        self._tokens = tokens
        self._count = count
        self._cut = cut
        self._number = 0
        #: The parts of the piece that is being packed, and their tokens.
        self._parts: list[ChunkPart] = []
        self._size = 0
        #: Whether one of them is not verified, of which the prompt has a note.
        self._has_note = False

    def feed(
        self, texts: Iterable[tuple[int, str]], unverified: Collection[int] = ()
    ) -> list[Frame]:
        """Returns the pieces that are complete with the next chunks of the log.

        `texts` are position and text (`Chunk.as_text`) of each. Empty ones are in no piece.
        """
        frames: list[Frame] = []
        for position, text in texts:
            is_unverified = position in unverified
            # The note that their prompts have, and the label.
            note = self._note_tokens if is_unverified else 0
            most = max(self._tokens - note, 1)
            for one in _parts(position, text, most, self._count, self._cut):
                part = replace(one, is_unverified=is_unverified)
                added = _tokens(part, self._count)
                if self._size + added + (0 if self._has_note else note) > self._tokens:
                    frames += self.finish()
                if is_unverified and not self._has_note:
                    self._has_note, self._size = True, self._size + note
                self._parts.append(part)
                self._size += added
        return frames

    @cached_property
    def _note_tokens(self) -> int:
        return self._count(UNVERIFIED_NOTE) + _LABEL_TOKENS

    def finish(self) -> list[Frame]:
        """Returns the piece that is begun, if there is one."""
        if not self._parts:
            return []
        self._number += 1
        frame = _frame(self._number, self._parts, self._size)
        self._parts, self._size, self._has_note = [], 0, False
        return [frame]


def piece_of(
    frame: Frame, texts: Iterable[tuple[int, str]], unverified: Collection[int] = ()
) -> BrowsePiece:
    """Returns a piece with its text. `texts` are those of the frame's chunks, in order."""
    parts = (
        replace(part_of(frame, position, text), is_unverified=position in unverified)
        for position, text in texts
    )
    return BrowsePiece(frame=frame, parts=tuple(part for part in parts if part.text))


def part_of(frame: Frame, position: int, text: str) -> ChunkPart:
    """Returns what of a chunk belongs to a piece."""
    start = frame.from_character if position == frame.from_position else 0
    end = frame.to_character if position == frame.to_position else len(text)
    return ChunkPart(position=position, from_character=start, text=text[start:end])


def _frame(number: int, parts: list[ChunkPart], tokens: int) -> Frame:
    return Frame(
        number=number,
        from_position=parts[0].position,
        to_position=parts[-1].position,
        from_character=parts[0].from_character,
        to_character=parts[-1].to_character,
        tokens=tokens,
    )


def _tokens(part: ChunkPart, count: Count) -> int:
    return count(shown([part]) + "\n")


def _parts(position: int, text: str, tokens: int, count: Count, cut: Cutter) -> Iterator[ChunkPart]:
    start = 0
    while start < len(text):
        end = _end(position, text, start, tokens, count, cut)
        yield ChunkPart(position=position, from_character=start, text=text[start:end])
        start = end


def _end(position: int, text: str, start: int, tokens: int, count: Count, cut: Cutter) -> int:
    """Returns the end of the part that begins at `start`, which has at least one character."""

    def fits(length: int) -> bool:
        part = ChunkPart(position=position, from_character=start, text=text[start : start + length])
        return _tokens(part, count) <= tokens

    left = len(text) - start
    # No more is looked at than a part can have: a chunk may be long.
    most = tokens * TOKEN_CHARACTERS
    if left <= most and fits(left):
        return len(text)
    window, limit = text[start : start + most], tokens
    while limit:
        length = min(max(cut(window, limit), 1), len(window))
        if fits(length):
            return start + length
        limit = int(limit * _LESS)
    length = len(window)
    while length > 1 and not fits(length):
        length //= 2
    return start + max(length, 1)
