"""What is new of an answer: each listener hears all of it, once, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from service.domain.answers.reply_streaming import TextPiece
from service.domain.answers.trajectory import Event
from service.domain.values.work_items import WorkItem

#: Events, and pieces of text, of one answer that a look brings; the next look brings more.
LOOK_EVENTS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerUpdate:
    """What is new of an answer that is being made."""

    #: In order.
    events: Sequence[Event] = ()
    pieces: Sequence[TextPiece] = ()
    #: The answer has ended; nothing follows.
    settled: bool
    #: There may be more already than one look brings.
    more: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerBatch:
    """What a look brought for one listener."""

    events: Sequence[Event]
    pieces: Sequence[TextPiece]


#: Of an answer that is as it was.
NOTHING = ListenerBatch(events=(), pieces=())


@dataclass(eq=False, kw_only=True, slots=True)
class Listener:
    """A call that hears an answer, and what it has heard."""

    item: WorkItem
    #: Ordinals of the last event and the last piece that it heard.
    event: int = 0
    piece: int = 0
    #: Whether it listens to the text.
    hears_text: bool = field(default=False)

    def take(self, found: ListenerBatch, *, settled: bool) -> AnswerUpdate:
        """What it has not heard of what a look found."""
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
    """Those that follow the one that was heard last, without a gap."""
    for one in found:
        # A look that began before the last ones were taken shows these again. Of events
        # that are written at once one may be seen before those in front of it.
        if one.ordinal == heard + 1:
            heard = one.ordinal
            yield one


def _all_seen(found: Sequence[Event] | Sequence[TextPiece], heard: int) -> bool:
    # Behind a full look there may be more, also behind one that began before the last
    # were taken; behind a gap nothing can be sent.
    return len(found) < LOOK_EVENTS or found[0].ordinal > heard
