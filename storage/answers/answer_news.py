"""Reads new events and pieces of text of running answers, for their listeners."""

from collections.abc import Collection, Mapping, Sequence

from service.domain.answers import answer_updates
from service.domain.answers.answer_updates import Listener, ListenerBatch, TextPiece
from storage.answers import texts, trajectories
from storage.engine.database import Transaction


async def read_new(
    tx: Transaction, listeners: Collection[Listener]
) -> Mapping[Listener, ListenerBatch]:
    """Returns the news of each listener, with one query for events and one for texts."""
    # Their positions may move while this reads.
    wanted = {one: _heard(one, one.event) for one in listeners}
    written = {one: _heard(one, one.piece) for one in listeners if one.hears_text}
    events = await trajectories.read_new(tx, set(wanted.values()), answer_updates.LOOK_EVENTS)
    pieces: Mapping[trajectories.Heard, Sequence[TextPiece]] = {}
    if written:
        pieces = await texts.read_new(tx, set(written.values()), answer_updates.LOOK_EVENTS)
    return {
        one: ListenerBatch(
            events=events.get(heard, ()),
            pieces=pieces.get(written[one], ()) if one in written else (),
        )
        for one, heard in wanted.items()
    }


def _heard(listener: Listener, ordinal: int) -> trajectories.Heard:
    return listener.item.session_key, listener.item.item_id, ordinal
