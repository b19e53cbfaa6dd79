"""Stores the texts of answers piece by piece, while models write them."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select

from service.domain.answers.answer_updates import TextPiece, following, text_of
from storage.answers.trajectories import AnswerKey, Heard, heard_values
from storage.engine.database import Transaction, value
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
    return [TextPiece(ordinal=row.ordinal, text=row.text, restarts=row.restarts) for row in rows]


async def settle(tx: Transaction, key: AnswerKey, text: str) -> None:
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


_NEW = """
SELECT heard.session_key, heard.answer_id, heard.after,
    told.ordinal, told.text, told.restarts
FROM unnest(%(sessions)s::uuid[], %(answers)s::uuid[], %(after)s::int[])
    AS heard (session_key, answer_id, after)
CROSS JOIN LATERAL (
    SELECT ordinal, text, restarts
    FROM answer_text AS t
    WHERE t.session_key = heard.session_key AND t.answer_id = heard.answer_id
        AND t.ordinal > heard.after
    ORDER BY ordinal
    LIMIT %(limit)s
) AS told
ORDER BY heard.session_key, heard.answer_id, heard.after, told.ordinal
"""


async def read_new(
    tx: Transaction, heard: Collection[Heard], limit: int
) -> Mapping[Heard, Sequence[TextPiece]]:
    """Returns the first `limit` pieces after each position, by one query."""
    found: dict[Heard, list[TextPiece]] = {}
    for row in await tx.fetch(_NEW, heard_values(heard, limit), prepare=None):
        piece = TextPiece(ordinal=row.ordinal, text=row.text, restarts=row.restarts)
        found.setdefault((row.session_key, row.answer_id, row.after), []).append(piece)
    return found
