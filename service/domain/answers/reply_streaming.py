"""The text of an answer as it is streamed: pieces that follow each other, or begin anew.

What of an unfinished reply is the answer's text, the reader of the reply says
(`ModelRequest.find_text`). What it makes of the whole reply may differ.
"""

from collections.abc import Iterable
from dataclasses import dataclass

#: Characters of a piece at most: with four bytes each, 4 KiB.
PIECE_CHARACTERS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """A piece of an answer's text, as it is streamed while it is written."""

    #: 1, 2, 3 … within the answer.
    ordinal: int
    #: What follows the pieces before it; at most PIECE_CHARACTERS.
    text: str
    #: What was streamed before is void: the text begins with this piece.
    restarts: bool = False


def text_of(pieces: Iterable[TextPiece]) -> str:
    """Returns the text of pieces in their order."""
    streamed: list[str] = []
    for piece in pieces:
        if piece.restarts:
            streamed.clear()
        streamed.append(piece.text)
    return "".join(streamed)


def following(last: int, streamed: str, wanted: str) -> tuple[TextPiece, ...]:
    """Returns the pieces after the `last` one that turn `streamed` into `wanted`."""
    if wanted == streamed:
        return ()
    restarts = not wanted.startswith(streamed)
    rest = wanted if restarts else wanted[len(streamed) :]
    parts = [rest[at : at + PIECE_CHARACTERS] for at in range(0, len(rest), PIECE_CHARACTERS)]
    return tuple(
        TextPiece(ordinal=last + number, text=part, restarts=restarts and number == 1)
        for number, part in enumerate(parts or [""], 1)
    )
