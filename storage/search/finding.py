"""Prepares searches, reads the chunks that they found, and the progress of indexes.

`storage.search.words` finds chunks by their words, `storage.search.vectors` by their vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from storage.access.source_trust import HAS_RULES
from storage.engine.database import Transaction, first
from storage.log.chunks import CHUNK_COLUMNS, FOUND_COLUMNS, logged_of
from storage.log.pages import CHUNK_BYTES
from storage.log.ranges import OF_THREADS, Range, of_threads

#: Distinct words of a query that count: of more, the longest, which are the rarest as a rule. The
#: first ones of a long question are what is to be done, and the last ones of code are its common
#: words.
MAX_WORDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlace:
    """The progress of a session's index, and what else a search must know before it begins."""

    #: Position of the newest chunk.
    head: int
    #: The index has words up to here, and vectors of `embedding_model`.
    indexed_position: int
    embedded_position: int
    embedding_model: str
    #: A configuration of PostgreSQL's text search.
    language: str
    #: Why the last try to write words, or else to embed, failed; empty when neither did.
    failure: str
    #: The query's words in the form of the index, at most MAX_WORDS.
    words: tuple[str, ...]
    #: Words up to here are in posting lists.
    listed_position: int = 0
    #: The session's.
    incarnation: int = 1
    #: Some of the session's sources may be less than trusted.
    has_rules: bool = False
    #: Why vectors cannot be searched; empty when they can. The database does not know it.
    vectors_unavailable: str = ""


_PLACE = f"""
SELECT s.head, s.indexed_position, s.embedded_position, s.embedding_model, s.language,
    coalesce(nullif(s.words_failure, ''), s.index_failure) AS failure,
    ARRAY(SELECT lexeme FROM (
              SELECT lexeme, positions[1] AS at
              FROM unnest(to_tsvector(s.language::regconfig, %(query)s))
              ORDER BY char_length(lexeme) DESC, at, lexeme LIMIT {MAX_WORDS}
          ) AS kept ORDER BY at, lexeme) AS words,
    (SELECT coalesce(max(last_position), 0) FROM posting_block b
     WHERE b.session_key = s.session_key) AS listed_position,
    s.incarnation, {HAS_RULES} AS has_rules
FROM session s WHERE s.session_key = %(session)s
"""  # noqa: S608 - all of it is ours


async def read_place(tx: Transaction, session_key: UUID, query: str) -> SearchPlace | None:
    """Returns the progress of the index, and a query's words; None without a session."""
    values = {"session": session_key, "query": query}
    row = first(await tx.fetch(_PLACE, values, prepare=False))
    return None if row is None else SearchPlace(**{**row._asdict(), "words": tuple(row.words)})


#: Chunks of threads that are looked up one by one; with more, a search goes by words first.
THREAD_CHUNKS = 20_000


async def with_positions(tx: Transaction, session_key: UUID, within: Range) -> Range:
    """Adds the positions of its threads' chunks to a range, where these are few."""
    threads = within.indexed_threads()
    if not threads:
        return within
    each = THREAD_CHUNKS // len(threads)
    values = {"session": session_key, **within.values(), "each": each}
    positions, last = of_threads(
        await tx.fetch(OF_THREADS, values, prepare=False), each, within.to_position
    )
    return replace(within, positions=positions) if last == within.to_position else within


# Each by its key, whatever length the planner expects: only the index of the key has the order.
_CHUNKS = f"""
SELECT {FOUND_COLUMNS} FROM (
    SELECT wanted.position, wanted.rank,
        sum(c.bytes) OVER (PARTITION BY c.bytes > %(large)s ORDER BY wanted.rank) AS total
    FROM unnest(%(positions)s::bigint[]) WITH ORDINALITY AS wanted (position, rank), LATERAL (
        SELECT {CHUNK_BYTES} AS bytes FROM chunk c
        WHERE c.session_key = %(session)s
            AND c.position BETWEEN wanted.position AND wanted.position
            AND c.redaction_id IS NULL
        ORDER BY c.position LIMIT 1
    ) AS c
) AS sized, LATERAL (
    SELECT {CHUNK_COLUMNS} FROM chunk c
    WHERE c.session_key = %(session)s AND c.position BETWEEN sized.position AND sized.position
    ORDER BY c.position LIMIT 1
) AS c
WHERE total <= %(bytes)s OR rank = 1
"""  # noqa: S608 - all of it is ours


_NONE_LARGE = 2**62


async def read_chunks(
    tx: Transaction,
    session_key: UUID,
    positions: Sequence[int],
    max_bytes: int,
    large_bytes: int | None = None,
) -> Mapping[int, LoggedChunk]:
    """Returns the first of these chunks that have `max_bytes` together, and at least one.

    Redacted ones are left out.

    With `large_bytes` larger chunks count by themselves, up to as many bytes again, so that one
    of them does not keep out all that follow.
    """
    values = {
        "session": session_key,
        "positions": list(positions),
        "bytes": max_bytes,
        "large": _NONE_LARGE if large_bytes is None else large_bytes,
    }
    return {row[0]: logged_of(row) for row in await tx.fetch(_CHUNKS, values, prepare=False)}


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
_PROGRESS = """
SELECT w.session_key, s.incarnation, s.head, s.indexed_position, s.embedded_position,
    s.embedding_model, coalesce(nullif(s.words_failure, ''), s.index_failure), s.created_at
FROM unnest(%(sessions)s::uuid[]) AS w (session_key)
CROSS JOIN LATERAL (
    SELECT * FROM session WHERE session_key = w.session_key OFFSET 0
) AS s
"""


async def read_index_progress(tx: Transaction, keys: Sequence[UUID]) -> dict[UUID, IndexProgress]:
    """Returns the progress of the sessions' indexes, by their keys; one round trip."""
    rows = await tx.fetch(_PROGRESS, {"sessions": list(keys)}, prepare=False)
    return {key: IndexProgress(*row) for key, *row in rows}
