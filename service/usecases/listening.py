"""Listening to answers that are being made: each listener hears all of one, once, in order."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from service.domain.telling import TextPiece
from service.domain.trajectory import (
    Event,
)
from service.domain.work import WorkItem
from storage import answer_texts, trajectories
from storage.database import Transaction

#: Events, and pieces of text, of one answer that a look brings; the next look brings more.
LOOK_EVENTS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What is new of an answer that is being made."""

    #: In order.
    events: Sequence[Event] = ()
    pieces: Sequence[TextPiece] = ()
    #: The answer has ended; nothing follows.
    settled: bool
    #: There may be more already than one look brings.
    more: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a look brought for one listener."""

    events: Sequence[Event]
    pieces: Sequence[TextPiece]


#: Of an answer that is as it was.
NOTHING = Found(events=(), pieces=())


@dataclass(eq=False, kw_only=True, slots=True)
class Listener:
    """A call that hears an answer, and what it has heard."""

    item: WorkItem
    #: Ordinals of the last event and the last piece that it heard.
    event: int = 0
    piece: int = 0
    #: Whether it listens to the text.
    hears_text: bool = field(default=False)

    def take(self, found: Found, *, settled: bool) -> Told:
        """What it has not heard of what a look found."""
        events = tuple(_in_order(found.events, self.event))
        pieces = tuple(_in_order(found.pieces, self.piece))
        self.event += len(events)
        self.piece += len(pieces)
        all_seen = _all_seen(found.events, self.event) and _all_seen(found.pieces, self.piece)
        return Told(events=events, pieces=pieces, settled=settled and all_seen, more=not all_seen)


async def look(tx: Transaction, listeners: Collection[Listener]) -> Mapping[Listener, Found]:
    """What there is for each of the listeners: one query for events, one for texts."""
    # They go on hearing while this is read.
    told = {one: _heard(one, one.event) for one in listeners}
    written = {one: _heard(one, one.piece) for one in listeners if one.hears_text}
    events = await trajectories.read_new(tx, set(told.values()), LOOK_EVENTS)
    pieces: Mapping[trajectories.Heard, Sequence[TextPiece]] = {}
    if written:
        pieces = await answer_texts.read_new(tx, set(written.values()), LOOK_EVENTS)
    return {
        one: Found(
            events=events.get(heard, ()),
            pieces=pieces.get(written[one], ()) if one in written else (),
        )
        for one, heard in told.items()
    }


def _heard(listener: Listener, ordinal: int) -> trajectories.Heard:
    return listener.item.session_key, listener.item.item_id, ordinal


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
    # were taken; behind a gap nothing can be told.
    return len(found) < LOOK_EVENTS or found[0].ordinal > heard
