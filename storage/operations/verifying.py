"""Reads everything of a session in order, page by page, for its verification.

Returns rows as they are stored; the caller reports invalid ones. Needs `Database.snapshot`, so that
all of them are of one moment.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from service.domain.operations.verifying.chain import RevisionRow
from service.domain.prism.amendments import Amendment, Op
from service.domain.tree.nodes import Node
from service.domain.values.json_values import restore
from service.domain.values.paths import Path, PathError
from storage.engine.database import Row, Transaction, first
from storage.engine.text_search import length_of
from storage.log.chunks import CHUNK_COLUMNS, stored_of
from storage.search import posting_lists
from storage.search.chunk_index import BATCH_END, WORDS_BYTES, WORDS_CHUNKS, batch_words
from storage.search.chunk_text import AS_TEXT
from storage.tree.views import NODE_COLUMNS, node_of

#: Chunks of a page; each has 256 KiB at most.
PAGE_CHUNKS = 64
#: Rows of a page of small rows.
PAGE_ROWS = 500
#: Amendments of a page: their values may be large.
PAGE_AMENDMENTS = 100
#: Differences of an index in one page.
PAGE_DIFFERENCES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRow:
    """A session's row."""

    session_key: UUID
    name: str
    head: int
    content_bytes: int
    indexed_position: int
    embedded_position: int
    embedding_model: str


async def _rows(
    tx: Transaction, query: str, values: Mapping[str, Any], *keys: str
) -> AsyncIterator[Row]:
    """Yields all rows of a query in pages of `limit`, each after the `keys` of the last row."""
    page = await tx.fetch(query, values, prepare=None)
    while page:
        for row in page:
            yield row
        if len(page) < values["limit"]:
            return
        values = {**values, **{key: getattr(page[-1], key) for key in keys}}
        page = await tx.fetch(query, values, prepare=None)


_SESSION = """
SELECT session_key, name, head, content_bytes, indexed_position, embedded_position,
    embedding_model
FROM session WHERE session_key = %(session)s
"""


async def read_session(tx: Transaction, session_key: UUID) -> SessionRow | None:
    """Returns the session; None when there is none."""
    rows = await tx.fetch(_SESSION, {"session": session_key}, prepare=None)
    row = first(rows)
    return None if row is None else SessionRow(**row._asdict())


_CHUNKS = f"""
SELECT c.digest, {CHUNK_COLUMNS} FROM chunk c
WHERE c.session_key = %(session)s AND c.position > %(position)s
ORDER BY c.position LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours


async def chunks(
    tx: Transaction, session_key: UUID, after: int = 0
) -> AsyncIterator[tuple[LoggedChunk, bytes]]:
    """Yields every chunk after a position, with its digest."""
    values = {"session": session_key, "position": after, "limit": PAGE_CHUNKS}
    async for row in _rows(tx, _CHUNKS, values, "position"):
        yield stored_of(row[1:]), bytes(row.digest)


async def has_sources(tx: Transaction, session_key: UUID, first: int, last: int) -> bool:
    """Returns whether a chunk at these positions, both included, is of a source."""
    rows = await tx.fetch(
        "SELECT EXISTS (SELECT FROM chunk WHERE session_key = %(session)s"
        " AND position BETWEEN %(first)s AND %(last)s AND source IS NOT NULL)",
        {"session": session_key, "first": first, "last": last},
        prepare=None,
    )
    return bool(rows[0][0])


async def producers(tx: Transaction, session_key: UUID) -> Mapping[str, int]:
    """Returns the last sequence of each producer of a session."""
    rows = await tx.fetch(
        "SELECT producer_id, last_sequence FROM producer WHERE session_key = %(session)s",
        {"session": session_key},
        prepare=None,
    )
    return {row.producer_id: row.last_sequence for row in rows}


async def memory_ids(tx: Transaction, session_key: UUID) -> Sequence[tuple[UUID, str]]:
    """Returns ids and names of a session's memories, by name."""
    rows = await tx.fetch(
        "SELECT memory_id, name FROM memory WHERE session_key = %(session)s ORDER BY name",
        {"session": session_key},
        prepare=None,
    )
    return [(row.memory_id, row.name) for row in rows]


_OF = "session_key = %(session)s AND memory_id = %(memory)s"
_REVISIONS = f"""
SELECT revision, parent_revision, from_position, to_position, kind, digest, restored_revision,
    undone, read_positions, set_aside, expired
FROM revision WHERE {_OF} AND revision > %(revision)s ORDER BY revision LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours


async def revisions(
    tx: Transaction, session_key: UUID, memory_id: UUID
) -> AsyncIterator[RevisionRow]:
    """Yields every revision of a memory."""
    values = {**_key(session_key, memory_id), "revision": -1, "limit": PAGE_ROWS}
    async for row in _rows(tx, _REVISIONS, values, "revision"):
        yield RevisionRow(**{**row._asdict(), "digest": bytes(row.digest)})


_AMENDMENTS = f"""
SELECT revision, ordinal, path, op, value FROM amendment
WHERE {_OF} AND (revision, ordinal) > (%(revision)s, %(ordinal)s)
ORDER BY revision, ordinal LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours


async def amendments(
    tx: Transaction, session_key: UUID, memory_id: UUID
) -> AsyncIterator[tuple[int, int, Amendment | None]]:
    """Yields every amendment by revision and ordinal; None for an invalid one."""
    values = {**_key(session_key, memory_id), "revision": -1, "ordinal": 0}
    values["limit"] = PAGE_AMENDMENTS
    async for row in _rows(tx, _AMENDMENTS, values, "revision", "ordinal"):
        yield row.revision, row.ordinal, _amendment(row)


def _amendment(row: Any) -> Amendment | None:
    try:
        return Amendment(path=Path.parse(row.path), op=Op(row.op), value=restore(row.value))
    except (PathError, ValueError):
        return None


async def saved(
    tx: Transaction, table: str, session_key: UUID, memory_id: UUID
) -> AsyncIterator[tuple[int, str]]:
    """Yields every row of `prism_base` or `prism_snapshot`, by revision.

    One at a time, since each may have a megabyte.
    """
    assert table in ("prism_base", "prism_snapshot"), "other tables have no states"
    query = f"""SELECT revision, value FROM {table}
        WHERE {_OF} AND revision > %(revision)s ORDER BY revision LIMIT %(limit)s"""  # noqa: S608 - ours
    values = {**_key(session_key, memory_id), "revision": -1, "limit": 1}
    async for row in _rows(tx, query, values, "revision"):
        yield row.revision, row.value


async def newest_value(
    tx: Transaction, session_key: UUID, memory_id: UUID
) -> tuple[int, str, int] | None:
    """Returns revision, canonical JSON and unsaved amendments of a PRISM memory's newest value."""
    rows = await tx.fetch(
        f"SELECT revision, value, unsaved_amendments FROM prism_value WHERE {_OF}",  # noqa: S608
        _key(session_key, memory_id),
        prepare=None,
    )
    row = first(rows)
    return None if row is None else (row.revision, row.value, row.unsaved_amendments)


_NODES = f"""
SELECT revision, {", ".join(NODE_COLUMNS)}
FROM tree_node WHERE {_OF} AND level = %(level)s AND number > %(number)s
ORDER BY number LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours


async def levels(tx: Transaction, session_key: UUID, memory_id: UUID) -> Sequence[int]:
    """Returns the levels of a tree, from the leaves up."""
    query = f"SELECT DISTINCT level FROM tree_node WHERE {_OF} ORDER BY level"  # noqa: S608 - ours
    rows = await tx.fetch(query, _key(session_key, memory_id), prepare=None)
    return [row.level for row in rows]


async def nodes(
    tx: Transaction, session_key: UUID, memory_id: UUID, level: int
) -> AsyncIterator[tuple[int, Node]]:
    """Yields every node of a level by number, with the revision that added it."""
    values = {**_key(session_key, memory_id), "level": level, "number": 0, "limit": PAGE_ROWS}
    async for row in _rows(tx, _NODES, values, "number"):
        yield row.revision, node_of(row)


async def has_words(
    tx: Transaction, session_key: UUID, memory_id: UUID, number: int, text: str
) -> bool:
    """Returns whether a leaf's words are those of `text`."""
    query = f"""SELECT words IS NOT DISTINCT FROM to_tsvector('simple', %(text)s) AS same
        FROM tree_node WHERE {_OF} AND level = 0 AND number = %(number)s"""  # noqa: S608 - ours
    values = {**_key(session_key, memory_id), "number": number, "text": text}
    return bool((await tx.fetch(query, values, prepare=None))[0][0])


def _key(session_key: UUID, memory_id: UUID) -> dict[str, Any]:
    return {"session": session_key, "memory": memory_id}


_WORDS = f"""
SELECT made.position, w.position IS NULL AS missing
FROM ({batch_words("%(upto)s")}) AS made
LEFT JOIN chunk_word w ON w.session_key = %(session)s AND w.position = made.position
WHERE w.position IS NULL OR w.words <> made.words OR w.length <> {length_of("made.words")}
ORDER BY made.position LIMIT {PAGE_DIFFERENCES}
"""  # noqa: S608 - all of it is ours


async def words(
    tx: Transaction, session_key: UUID, last: int
) -> AsyncIterator[tuple[int, Sequence[tuple[int, bool]]]]:
    """Yields the position reached, and the positions whose words differ, or are missing."""
    values: dict[str, Any] = {"session": session_key, "after": 0, "last": last}
    values |= {"chunks": WORDS_CHUNKS, "bytes": WORDS_BYTES}
    while values["after"] < last:
        upto = (await tx.fetch(BATCH_END, values, prepare=None))[0][0]
        if upto is None:
            # A gap of the log, which another check reports.
            upto = min(values["after"] + WORDS_CHUNKS, last)
        found = await tx.fetch(_WORDS, {**values, "upto": upto}, prepare=None)
        yield upto, [(row.position, row.missing) for row in found]
        values["after"] = upto


_BLOCKS = """
SELECT first_position, last_position, words, lag(last_position, 1, 0::bigint) OVER each AS before,
    (SELECT coalesce(sum(w.length), 0) FROM chunk_word w WHERE w.session_key = b.session_key
        AND w.position BETWEEN b.first_position AND b.last_position) AS length
FROM posting_block b WHERE session_key = %(session)s
WINDOW each AS (ORDER BY last_position) ORDER BY last_position
"""
_LISTS = f"""
SELECT count(*) FROM ({posting_lists.LISTS}) AS made
FULL JOIN (
    SELECT key, words, groups, places FROM posting_list
    WHERE session_key = %(session)s AND last_position = %(last)s
) AS kept ON kept.key = made.key
WHERE (kept.words, kept.groups, kept.places) IS DISTINCT FROM (made.words, made.groups, made.places)
"""  # noqa: S608 - all of it is ours


async def lists(
    tx: Transaction, session_key: UUID, last: int
) -> AsyncIterator[tuple[int, int, str]]:
    """Yields blocks of posting lists that differ from the words of their chunks, and how."""
    values: dict[str, Any] = {"session": session_key, "own": posting_lists.OWN_HOLDERS}
    for row in await tx.fetch(_BLOCKS, values, prepare=None):
        of = {**values, "first": row.first_position, "last": row.last_position}
        differing = (await tx.fetch(_LISTS, of, prepare=None))[0][0]
        if row.first_position != row.before + 1:
            yield row.first_position, row.last_position, f"the block before ends at {row.before}"
        if row.last_position > last:
            yield row.first_position, row.last_position, "some of its chunks have no words"
        if row.words != row.length:
            yield row.first_position, row.last_position, f"it counts {row.words} words"
        if differing:
            yield row.first_position, row.last_position, f"{differing} rows differ"


async def lacks_entries(tx: Transaction, session_key: UUID, memory_id: UUID) -> bool:
    """Returns whether a memory has revisions whose entries are still to be written."""
    query = f"SELECT entry_revision <> revision FROM memory WHERE {_OF}"  # noqa: S608 - ours
    return bool((await tx.fetch(query, _key(session_key, memory_id), prepare=None))[0][0])


_WRONG_WORDS = f"""
SELECT e.path
FROM unnest(%(entries)s::uuid[], %(texts)s::text[]) AS new (entry_id, text)
JOIN memory_entry e ON e.session_key = %(session)s AND e.memory_id = %(memory)s
    AND e.entry_id = new.entry_id
JOIN session s ON s.session_key = %(session)s
CROSS JOIN LATERAL (
    SELECT to_tsvector(s.language::regconfig, new.text) AS words OFFSET 0
) AS made
WHERE e.words <> made.words OR e.length <> {length_of("made.words")}
ORDER BY e.path LIMIT {PAGE_DIFFERENCES}
"""  # noqa: S608 - all of it is ours


async def wrong_words_of_entries(
    tx: Transaction, session_key: UUID, memory_id: UUID, texts: Sequence[tuple[UUID, str]]
) -> Sequence[str]:
    """Returns the paths of entries whose words are not those of their texts."""
    found: list[str] = []
    for begin in range(0, len(texts), PAGE_ROWS):
        page = texts[begin : begin + PAGE_ROWS]
        ids, said = [one for one, _ in page], [one for _, one in page]
        values = {**_key(session_key, memory_id), "entries": ids, "texts": said}
        found += [row.path for row in await tx.fetch(_WRONG_WORDS, values, prepare=None)]
    return found


_VECTORS = f"""
SELECT c.position, count(v.part) AS parts, {AS_TEXT} AS text,
    bool_and(v.model = %(model)s) AS of_model,
    bool_and(v.to_character <= char_length({AS_TEXT})) AS within,
    max(v.part) + 1 = count(v.part) AS dense,
    bool_and(abs((SELECT sum(one::float8 * one) FROM unnest(v.embedding) AS one) - 1) < 0.001)
        AS unit
FROM chunk c
LEFT JOIN chunk_vector v ON v.session_key = c.session_key AND v.position = c.position
WHERE c.session_key = %(session)s AND c.position > %(after)s AND c.position <= %(upto)s
    AND c.redaction_id IS NULL
GROUP BY c.session_key, c.position
HAVING count(v.part) = 0 OR NOT (
    bool_and(v.model = %(model)s) AND bool_and(v.to_character <= char_length({AS_TEXT}))
    AND max(v.part) + 1 = count(v.part)
    AND bool_and(abs((SELECT sum(one::float8 * one) FROM unnest(v.embedding) AS one) - 1) < 0.001))
ORDER BY c.position LIMIT {PAGE_DIFFERENCES}
"""  # noqa: S608 - all of it is ours


async def vectors(
    tx: Transaction, session_key: UUID, last: int, model: str
) -> AsyncIterator[Sequence[tuple[int, str]]]:
    """Yields the positions whose vectors differ, and how."""
    for after in range(0, last, PAGE_CHUNKS):
        values = {
            "session": session_key,
            "model": model,
            "after": after,
            "upto": min(after + PAGE_CHUNKS, last),
        }
        rows = await tx.fetch(_VECTORS, values, prepare=None)
        yield [(row.position, said) for row in rows if (said := _wrong_vector(row))]


def _wrong_vector(row: Any) -> str:
    if not row.parts:
        # A blank text has none.
        return "it has none" if row.text.strip() else ""
    if not row.of_model:
        return "they are of another model than the session's"
    if not row.dense:
        return "a part has none"
    if not row.within:
        return "one is of characters after the end of the text"
    return "one is not of length 1"


# Nodes of trees and vectors of states are never removed; other pieces have no rows of their own.
_CITATIONS = """
SELECT a.answer_id, p.position, p.node
FROM answer a
CROSS JOIN LATERAL jsonb_array_elements(a.citations) AS cited
CROSS JOIN LATERAL (
    SELECT (cited->>'position')::bigint AS position,
        substring(cited->>'node_id' FROM '^[0-9]{1,9}[.][0-9]{1,18}$') AS node
) AS p
LEFT JOIN chunk c ON c.session_key = a.session_key AND c.position = p.position
LEFT JOIN memory m ON m.session_key = a.session_key
    AND m.memory_id = coalesce(a.memory_id, (a.chosen->>'memory_id')::uuid)
LEFT JOIN tree_node n ON n.session_key = a.session_key
    AND n.memory_id = m.memory_id AND n.level = split_part(p.node, '.', 1)::integer
    AND n.number = split_part(p.node, '.', 2)::bigint
LEFT JOIN state_vector v ON v.session_key = a.session_key
    AND v.memory_id = m.memory_id AND v.level = split_part(p.node, '.', 1)::integer
    AND v.revision = split_part(p.node, '.', 2)::bigint
WHERE a.session_key = %(session)s AND a.answer_id > %(after)s AND a.answer_id <= %(upto)s
    AND (c.position IS NULL
         OR (p.node IS NOT NULL AND m.memory_id IS NOT NULL
             AND n.level IS NULL AND v.level IS NULL))
ORDER BY a.answer_id
"""


async def wrong_citations(
    tx: Transaction, session_key: UUID
) -> AsyncIterator[tuple[int, Sequence[tuple[UUID, int, str]]]]:
    """Yields how many answers were checked, and their citations of missing chunks or nodes.

    A citation is its answer, position and node.
    """
    values: dict[str, Any] = {"session": session_key, "after": UUID(int=0), "limit": PAGE_ROWS}
    while True:
        page = await tx.fetch(
            "SELECT answer_id FROM answer WHERE session_key = %(session)s"
            " AND answer_id > %(after)s ORDER BY answer_id LIMIT %(limit)s",
            values,
            prepare=None,
        )
        found = [row.answer_id for row in page]
        if not found:
            return
        rows = await tx.fetch(_CITATIONS, {**values, "upto": found[-1]}, prepare=None)
        yield len(found), [(row.answer_id, row.position, row.node or "") for row in rows]
        values["after"] = found[-1]


_REQUESTS = f"""
SELECT r.request_id, r.first_position, r.last_position FROM (
    SELECT request_id, first_position, last_position, digest,
        lag(last_position) OVER (ORDER BY first_position, last_position) AS before
    FROM request WHERE session_key = %(session)s AND method = 'Append'
) AS r
LEFT JOIN LATERAL (
    SELECT count(*) AS chunks, bool_and(c.producer_id = '') AS numbered_here,
        bool_and(c.redaction_id IS NULL) AS has_digests,
        sha256(string_agg(c.digest, ''::bytea ORDER BY c.position)) AS digest
    FROM chunk c WHERE c.session_key = %(session)s
        AND c.position BETWEEN r.first_position AND r.last_position
) AS held ON true
WHERE held.chunks <> r.last_position - r.first_position + 1 OR NOT held.numbered_here
    OR (held.has_digests AND held.digest IS DISTINCT FROM r.digest) OR r.before >= r.first_position
ORDER BY r.first_position LIMIT {PAGE_DIFFERENCES}
"""  # noqa: S608 - all of it is ours


async def wrong_requests(tx: Transaction, session_key: UUID) -> Sequence[tuple[str, int, int]]:
    """Returns the appends whose digest or positions differ from the chunks that they wrote."""
    rows = await tx.fetch(_REQUESTS, {"session": session_key}, prepare=None)
    return [(row.request_id, row.first_position, row.last_position) for row in rows]
