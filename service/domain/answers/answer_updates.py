"""Streams updates of an answer: each listener receives all of them, once, in order.

The text comes in pieces that follow each other, or begin anew. The reader of an unfinished reply
says what of it is the answer's text (`ModelRequest.find_text`), and may read the whole otherwise.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from service.domain.answers.trajectory import Event
from service.domain.values.work_items import WorkItem

#: Characters of a piece at most: with four bytes each, 4 KiB.
PIECE_CHARACTERS = 1024
#: Events, and pieces of text, of one answer that one read returns at most.
LOOK_EVENTS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """A piece of an answer's text, as it is streamed while it is written."""

    #: 1, 2, 3 … within the answer.
    ordinal: int
    #: What follows the pieces before it; at most PIECE_CHARACTERS.
    text: str
    #: What was streamed before is void: the text begins with this piece.
    restarts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerUpdate:
    """New events and text of an answer that is being made."""

    #: In order.
    events: Sequence[Event] = ()
    pieces: Sequence[TextPiece] = ()
    #: The answer has ended; nothing follows.
    settled: bool
    #: Whether more than one read returns may be there already.
    more: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerBatch:
    """Events and pieces of text that one read found."""

    events: Sequence[Event]
    pieces: Sequence[TextPiece]


#: Nothing is new.
NOTHING = ListenerBatch(events=(), pieces=())


@dataclass(eq=False, kw_only=True, slots=True)
class Listener:
    """A call that streams an answer, and how far it is."""

    item: WorkItem
    #: Ordinals of the last event and the last piece that it received.
    event: int = 0
    piece: int = 0
    #: Whether it receives the text.
    hears_text: bool = field(default=False)

    def take(self, found: ListenerBatch, *, settled: bool) -> AnswerUpdate:
        """Returns what is new to this listener of what a read found."""
        events = tuple(_in_order(found.events, self.event))
        pieces = tuple(_in_order(found.pieces, self.piece))
        self.event += len(events)
        self.piece += len(pieces)
        all_seen = _all_seen(found.events, self.event) and _all_seen(found.pieces, self.piece)
        return AnswerUpdate(
            events=events, pieces=pieces, settled=settled and all_seen, more=not all_seen
        )


_Ordered = TypeVar("_Ordered", Event, TextPiece)


def _in_order(found: Sequence[_Ordered], heard: int) -> Iterator[_Ordered]:
    """Yields those that follow the last one that was received, without a gap."""
    for one in found:
        # A read that began before the last ones were taken finds these again. Of events
        # that are written at once, a later one may be visible first.
        if one.ordinal == heard + 1:
            heard = one.ordinal
            yield one


def _all_seen(found: Sequence[Event] | Sequence[TextPiece], heard: int) -> bool:
    # After a full read there may be more, even if it began before the last ones were taken.
    # After a gap nothing can be sent.
    return len(found) < LOOK_EVENTS or found[0].ordinal > heard


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
