"""Stores the texts of answers piece by piece, while models write them; reads what is new."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select

from service.domain.answers import answer_updates
from service.domain.answers.answer_updates import (
    Listener,
    ListenerBatch,
    TextPiece,
    following,
    text_of,
)
from storage.answers import trajectories
from storage.answers.trajectories import NEW_TEXTS, AnswerKey, Heard, rows_after
from storage.engine.database import Row, Transaction, value
from storage.memories import job_results
from storage.tables import answer, answer_text

#: Writes nothing after the end of an answer: its row is locked, so that it does not end meanwhile.
#: A worker that finds pieces of another has lost the answer, and writes nothing.
_APPEND = """
INSERT INTO answer_text (session_key, answer_id, ordinal, tenant_id, text, restarts)
SELECT a.session_key, a.answer_id, piece.ordinal, a.tenant_id, piece.text, piece.restarts
FROM (
    SELECT session_key, answer_id, tenant_id FROM answer
    WHERE session_key = %(session_key)s AND answer_id = %(answer_id)s
        AND status IN ('pending', 'abandoned')
    FOR SHARE
) AS a
CROSS JOIN unnest(%(ordinals)s::int[], %(texts)s::text[], %(restarts)s::boolean[])
    AS piece (ordinal, text, restarts)
ON CONFLICT DO NOTHING
"""


async def append(tx: Transaction, key: AnswerKey, pieces: Sequence[TextPiece]) -> bool:
    """Writes pieces after the stored ones.

    False when the answer has ended, or another worker wrote one of them; then the caller rolls back
    and writes no more.
    """
    values = {
        "session_key": key[0],
        "answer_id": key[1],
        "ordinals": [piece.ordinal for piece in pieces],
        "texts": [piece.text for piece in pieces],
        "restarts": [piece.restarts for piece in pieces],
    }
    written = await tx.execute(_APPEND, values, prepare=None)
    tx.changed.add(key[1])
    return written == len(pieces)


async def read(tx: Transaction, key: AnswerKey) -> Sequence[TextPiece]:
    """Returns all pieces of an answer, in order."""
    statement = (
        select(answer_text.c.ordinal, answer_text.c.text, answer_text.c.restarts)
        .where(answer_text.c.session_key == key[0], answer_text.c.answer_id == key[1])
        .order_by(answer_text.c.ordinal)
    )
    rows = await tx.fetch(statement)
    return [_piece(row) for row in rows]


async def complete(tx: Transaction, key: AnswerKey, text: str) -> None:
    """Writes the rest of an answer's whole text, in the transaction that completes it."""
    statement = (
        select(answer.c.status)
        .where(answer.c.session_key == key[0], answer.c.answer_id == key[1])
        .with_for_update(key_share=True)
    )
    # From here on no other worker writes: what is read now is all.
    if value(await tx.fetch(statement)) not in job_results.OPEN:
        return
    written = await read(tx, key)
    last = written[-1].ordinal if written else 0
    rest = following(last, text_of(written), text)
    if rest:
        await append(tx, key, rest)


async def read_new(
    tx: Transaction, heard: Collection[Heard], limit: int
) -> Mapping[Heard, Sequence[TextPiece]]:
    """Returns the first `limit` pieces after each position, by one query."""
    return {
        key: [_piece(row) for row in rows]
        for key, rows in (await rows_after(tx, NEW_TEXTS, heard, limit)).items()
    }


def _piece(row: Row) -> TextPiece:
    return TextPiece(ordinal=row.ordinal, text=row.text, restarts=row.restarts)


async def read_news(
    tx: Transaction, listeners: Collection[Listener]
) -> Mapping[Listener, ListenerBatch]:
    """Returns what is new for each listener, with one query for events and one for pieces."""
    # Their positions may move while this reads.
    wanted = {one: _key_at(one, one.event) for one in listeners}
    written = {one: _key_at(one, one.piece) for one in listeners if one.hears_text}
    events = await trajectories.read_new(tx, set(wanted.values()), answer_updates.LOOK_EVENTS)
    pieces: Mapping[Heard, Sequence[TextPiece]] = {}
    if written:
        pieces = await read_new(tx, set(written.values()), answer_updates.LOOK_EVENTS)
    return {
        one: ListenerBatch(
            events=events.get(heard, ()),
            pieces=pieces.get(written[one], ()) if one in written else (),
        )
        for one, heard in wanted.items()
    }


def _key_at(listener: Listener, ordinal: int) -> Heard:
    return listener.item.session_key, listener.item.item_id, ordinal
