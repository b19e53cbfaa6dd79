"""Reads the progress of sessions' indexes, for which searches wait."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from storage.engine.database import Transaction


class IndexProgress(NamedTuple):
    """The progress of a session's index."""

    incarnation: int
    #: Position of the newest chunk.
    head: int
    #: Chunks up to here have words, and vectors of `embedding_model`.
    indexed_position: int
    embedded_position: int
    embedding_model: str
    #: Why the last try to write words, or else to embed, failed; empty when neither did.
    failure: str
    #: Differs for a later session of the same name.
    created_at: datetime


# Each session by its key, whatever number the planner expects.
_READ = """
SELECT w.session_key, s.incarnation, s.head, s.indexed_position, s.embedded_position,
    s.embedding_model, coalesce(nullif(s.words_failure, ''), s.index_failure), s.created_at
FROM unnest(%(sessions)s::uuid[]) AS w (session_key)
CROSS JOIN LATERAL (
    SELECT * FROM session WHERE session_key = w.session_key OFFSET 0
) AS s
"""


async def read_index_progress(tx: Transaction, keys: Sequence[UUID]) -> dict[UUID, IndexProgress]:
    """Returns the progress of the sessions' indexes, by their keys; one round trip."""
    rows = await tx.fetch(_READ, {"sessions": list(keys)}, prepare=False)
    return {key: IndexProgress(*row) for key, *row in rows}
