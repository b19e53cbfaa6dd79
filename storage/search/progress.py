"""How far the indexes of sessions are: what searches wait for."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from storage.engine.database import Transaction


class IndexProgress(NamedTuple):
    """How far the index of a session is."""

    incarnation: int
    #: Position of the newest chunk.
    head: int
    #: Up to here chunks have words, and vectors of `embedding_model`.
    indexed_position: int
    embedded_position: int
    embedding_model: str
    #: Why the last try to write words failed, or else to embed; empty when neither did.
    failure: str
    #: Another one is of another session, of the same name.
    created_at: datetime


# Each session by its key, whatever the planner thinks of their number.
_READ = """
SELECT w.session_key, s.incarnation, s.head, s.indexed_position, s.embedded_position,
    s.embedding_model, coalesce(nullif(s.words_failure, ''), s.index_failure), s.created_at
FROM unnest(%(sessions)s::uuid[]) AS w (session_key)
CROSS JOIN LATERAL (
    SELECT * FROM session WHERE session_key = w.session_key OFFSET 0
) AS s
"""


async def read_index_progress(tx: Transaction, keys: Sequence[UUID]) -> dict[UUID, IndexProgress]:
    """Returns how far the index of each of the sessions is, by its key; one round trip."""
    rows = await tx.fetch(_READ, {"sessions": list(keys)}, prepare=False)
    return {key: IndexProgress(*row) for key, *row in rows}
