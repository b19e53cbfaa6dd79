"""Finding chunks: which ones, how far the index is, and reading what was found.

By their words they are found in `storage.search_words`, by their vectors in
`storage.search_vectors`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from psycopg.types.json import Jsonb

from service.domain.chunks import LoggedChunk
from storage.database import DirectTransaction
from storage.log import CHUNK_COLUMNS, logged_of
from storage.log_pages import CHUNK_BYTES

#: Distinct words of a query that count: its first ones.
MAX_WORDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlace:
    """What a search has to know before it begins."""

    #: Position of the newest chunk.
    head: int
    #: Up to here words are in the index, and vectors of `embedding_model`.
    indexed_position: int
    embedded_position: int
    embedding_model: str
    #: A configuration of PostgreSQL's text search.
    language: str
    #: Why the last try to write words failed, or else to embed; empty when neither did.
    failure: str
    #: Of the query, as the index has them: at most MAX_WORDS.
    words: tuple[str, ...]
    #: Up to here words are in posting lists.
    listed_position: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The chunks that are searched: all that fit everything that is set."""

    #: Both included.
    from_position: int
    to_position: int
    #: When they were committed: from `from_time` to before `to_time`.
    from_time: datetime | None = None
    to_time: datetime | None = None
    #: As `chunk.kind`; empty: all.
    kinds: tuple[str, ...] = ()
    #: Keys with their values.
    metadata: Mapping[str, str] = field(default_factory=dict)

    def conditions(self) -> str:
        """In SQL, of a chunk c, beside its position; empty when there are none."""
        parts = (
            (self.from_time is not None, "c.created_at >= %(from_time)s"),
            (self.to_time is not None, "c.created_at < %(to_time)s"),
            (bool(self.kinds), "c.kind = ANY(%(kinds)s)"),
            (bool(self.metadata), "c.metadata @> %(metadata)s"),
        )
        return " AND ".join(sql for used, sql in parts if used)

    def exists(self, table: str) -> str:
        """In SQL, beside other conditions: the same of the chunk of a row of `table`."""
        conditions = self.conditions()
        if not conditions:
            return ""
        return f"""AND EXISTS (SELECT FROM chunk c WHERE c.session_key = %(session)s
        AND c.position = {table}.position AND {conditions})"""

    def values(self) -> dict[str, object]:
        """Of the conditions, and of the positions."""
        return {
            "low": self.from_position,
            "high": self.to_position,
            "from_time": self.from_time,
            "to_time": self.to_time,
            "kinds": list(self.kinds),
            "metadata": Jsonb(dict(self.metadata)),
        }


_PLACE = f"""
SELECT s.head, s.indexed_position, s.embedded_position, s.embedding_model, s.language,
    coalesce(nullif(s.words_failure, ''), s.index_failure),
    ARRAY(SELECT lexeme FROM unnest(to_tsvector(s.language::regconfig, %(query)s))
          ORDER BY positions[1], lexeme LIMIT {MAX_WORDS}),
    (SELECT coalesce(max(last_position), 0) FROM posting_block b
     WHERE b.session_key = s.session_key)
FROM session s WHERE s.session_key = %(session)s
"""  # noqa: S608 - all of it is ours


async def read_place(tx: DirectTransaction, session_key: UUID, query: str) -> SearchPlace | None:
    """How far the index is, and the words of a query; None when there is no such session."""
    rows = await tx.read(_PLACE, {"session": session_key, "query": query}, keep=False)
    if not rows:
        return None
    head, indexed, embedded, model, language, failure, words, listed = rows[0]
    return SearchPlace(
        head=head,
        indexed_position=indexed,
        embedded_position=embedded,
        embedding_model=model,
        language=language,
        failure=failure,
        words=tuple(words),
        listed_position=listed,
    )


_CHUNKS = f"""
SELECT {CHUNK_COLUMNS} FROM (
    SELECT c.position, sum({CHUNK_BYTES}) OVER (ORDER BY wanted.rank) AS total, wanted.rank
    FROM unnest(%(positions)s::bigint[]) WITH ORDINALITY AS wanted (position, rank)
    JOIN chunk c ON c.session_key = %(session)s AND c.position = wanted.position
) AS sized
JOIN chunk c ON c.session_key = %(session)s AND c.position = sized.position
WHERE total <= %(bytes)s OR rank = 1
"""  # noqa: S608 - all of it is ours


async def read_chunks(
    tx: DirectTransaction, session_key: UUID, positions: Sequence[int], max_bytes: int
) -> Mapping[int, LoggedChunk]:
    """The first of these chunks that have `max_bytes` together, and at least one."""
    values = {"session": session_key, "positions": list(positions), "bytes": max_bytes}
    return {row[0]: logged_of(row) for row in await tx.read(_CHUNKS, values)}
