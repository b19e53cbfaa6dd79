"""Finds entries of memories by their words (BM25) and by their vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from service.domain.access.trust import Trust
from service.domain.search.entries import Entry
from storage.access import source_trust
from storage.access.source_trust import ReadRange
from storage.engine.database import Row, Transaction
from storage.log.ranges import Range
from storage.search.words import BACK, occurrences, score_of, word_values

#: Entries whose vectors are compared, one by one; those of further ones are not.
COMPARED_ENTRIES = 50_000
#: A filter looks at so many of the chunks that an entry rests on: the newest ones.
FILTERED_CHUNKS = 1000
#: Most entries have more bytes of path and value. Where they have fewer, so many times as many
#: entries are read again.
SMALL_ENTRY_BYTES = 40
MORE_ENTRIES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRange:
    """The entries to search: those that fulfil all conditions that are set."""

    #: None: of all memories of the session.
    memory_ids: Sequence[UUID] | None = None
    #: What the path begins with, as it is stored. Of a PRISM memory also what an entry has within.
    path_prefix: str = ""
    #: One of the chunks that it rests on fulfils these; None: it may rest on none.
    chunks: Range | None = None
    #: All of the chunks that it rests on are at least so trusted; None: whatever they are.
    min_trust: Trust | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundEntry:
    """An entry that one way of searching found."""

    memory_id: UUID
    entry: Entry
    #: The revision that wrote what it says.
    revision: int
    #: The chunks that it rests on; both 0: none.
    first_position: int
    last_position: int
    #: BM25, or the cosine of the angle.
    score: float
    #: That of the least trusted chunk that it rests on, where it was read.
    trust: Trust = Trust.TRUSTED

    @property
    def key(self) -> tuple[UUID, UUID]:
        """Its key within the session."""
        return self.memory_id, self.entry.entry_id


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedMemory:
    """A memory that was searched."""

    memory_id: UUID
    name: str
    kind: str
    #: Its entries are those of this revision.
    revision: int
    #: All chunks up to here are in that revision.
    applied_position: int
    #: The memory has later revisions, whose entries are still to be written; some may be there.
    is_behind: bool
    #: A tree is closed once everything up to here is in it; None when that was not requested.
    seal_position: int | None

    @property
    def is_closed(self) -> bool:
        """Whether what comes after `applied_position` will never be in it."""
        return self.seal_position is not None and self.applied_position >= self.seal_position


_COLUMNS = """e.memory_id, e.path, e.part, e.value, e.revision, e.first_position, e.last_position"""


async def read_entries(
    tx: Transaction,
    session_key: UUID,
    words: Sequence[str],
    vector: Sequence[float] | None,
    model: str,
    within: EntryRange,
    depth: int,
) -> tuple[Sequence[FoundEntry], Sequence[FoundEntry]]:
    """Returns the `depth` best entries by words, and by a vector of `model` of length 1.

    One round trip. Documents and their frequencies are those of `within`.
    """
    values: dict[str, Any] = {
        "session": session_key,
        "memories": None if within.memory_ids is None else list(within.memory_ids),
        "prefix": within.path_prefix,
        "below": within.path_prefix if within.path_prefix.startswith("$") else "",
        "depth": depth,
        "model": model,
        **(within.chunks.values() if within.chunks is not None else {}),
        **word_values(words),
    }
    queries = [_by_words(len(words), within)] if words else []
    if vector is not None:
        values["vector"] = f"[{','.join(map(repr, map(float, vector)))}]"
        queries.append(_by_vector(len(vector), within))
    if not queries:
        return (), ()
    found = await tx.pipeline(queries, values, snapshot=True, prepare=False)
    by_words = _found(found.pop(0)) if words else ()
    return by_words, _found(found[0]) if found else ()


def _found(rows: Sequence[Row]) -> Sequence[FoundEntry]:
    return [
        FoundEntry(
            memory_id=memory_id,
            entry=Entry(path=path, part=part, value=value),
            revision=revision,
            first_position=first,
            last_position=last,
            score=score,
        )
        for memory_id, path, part, value, revision, first, last, score in rows
    ]


def _from(within: EntryRange) -> str:
    """Returns SQL after FROM for the entries e of a range; further conditions follow."""
    # Through the memory, since those of a deleted one are hidden by it alone.
    return f"""memory m JOIN memory_entry e
        ON e.session_key = m.session_key AND e.memory_id = m.memory_id
    WHERE m.session_key = %(session)s AND e.session_key = %(session)s
        AND (%(memories)s::uuid[] IS NULL OR m.memory_id = ANY(%(memories)s::uuid[]))
        AND (starts_with(e.path, %(prefix)s) OR starts_with(%(below)s, e.path))
        {_rests(within)} {_is_trusted(within)}"""


def _is_trusted(within: EntryRange) -> str:
    if within.min_trust is None:
        return ""
    return f"""AND NOT EXISTS (SELECT FROM chunk c, revision r
            WHERE c.session_key = %(session)s AND r.session_key = %(session)s
                AND r.memory_id = e.memory_id AND r.revision = e.revision
                AND c.position BETWEEN e.first_position AND e.last_position
                AND CASE {source_trust.of_chunk()}
                    WHEN 'blocked' THEN NOT {source_trust.is_unread("r", "m")}
                    ELSE NOT {source_trust.at_least(within.min_trust)} END)"""


def _rests(within: EntryRange) -> str:
    if within.chunks is None:
        return ""
    conditions = within.chunks.conditions()
    return f"""AND EXISTS (SELECT FROM (
            SELECT * FROM chunk c
            WHERE c.session_key = %(session)s AND c.position
                BETWEEN greatest(e.first_position, e.last_position - {FILTERED_CHUNKS - 1}, %(low)s)
                AND least(e.last_position, %(high)s)
            ORDER BY c.position
        ) AS c {f"WHERE {conditions}" if conditions else ""})"""  # noqa: S608 - all of it is ours


def _by_words(count: int, within: EntryRange) -> str:
    held = ", ".join(f"count(*) FILTER (WHERE n{at} > 0) AS h{at}" for at in range(count))
    known = ", ".join(f"h{at}" for at in range(count))
    weights = ", ".join(
        f"ln(1 + (entries - h{at} + 0.5) / (h{at} + 0.5))::float8 AS w{at}" for at in range(count)
    )
    return f"""
WITH entry AS MATERIALIZED (
    SELECT e.memory_id, e.entry_id, e.path, e.part, e.length,
        CASE WHEN e.words @@ %(any_word)s::tsquery THEN e.words END AS words
    FROM {_from(within)}
),
measured AS MATERIALIZED (
    SELECT count(*)::float8 AS entries, coalesce(sum(length), 0)::float8 AS words FROM entry
),
holder AS MATERIALIZED (
    SELECT memory_id, entry_id, path, part, length::float8 AS length,
        {occurrences("words", count)}
    FROM entry WHERE words IS NOT NULL
),
weighing AS MATERIALIZED (
    SELECT greatest(words, 1) / greatest(entries, 1) AS mean, {weights}
    FROM (
        SELECT entries, words, {known} FROM measured, (SELECT {held} FROM holder) AS counted
    ) AS known
)
SELECT {_COLUMNS}, best.score
FROM (
    SELECT memory_id, entry_id, path, part, {score_of(count)} AS score
    FROM (SELECT holder.*, {BACK} AS back, weighing.* FROM holder, weighing) AS ranked
    ORDER BY score DESC, memory_id, path, part LIMIT %(depth)s
) AS best
JOIN memory_entry e ON e.session_key = %(session)s AND e.memory_id = best.memory_id
    AND e.entry_id = best.entry_id
ORDER BY best.score DESC, e.memory_id, e.path, e.part
"""  # noqa: S608 - all of it is ours


def _by_vector(size: int, within: EntryRange) -> str:
    return f"""
SELECT {_COLUMNS}, 1 - (e.embedding::vector({size}) <=> %(vector)s::vector({size})) AS score
FROM (
    SELECT e.* FROM {_from(within)}
        AND e.model = %(model)s AND array_length(e.embedding, 1) = {size}
    LIMIT {COMPARED_ENTRIES}
) AS e
ORDER BY score DESC, e.memory_id, e.path, e.part LIMIT %(depth)s
"""  # noqa: S608 - all of it is ours


_MEMORIES = """
SELECT m.memory_id, m.name, m.kind, m.entry_revision AS revision, coalesce((
        SELECT r.to_position FROM revision r
        WHERE r.session_key = %(session)s AND r.memory_id = m.memory_id
            AND r.revision = m.entry_revision
    ), 0) AS applied_position,
    m.entry_revision <> m.revision AS is_behind, m.seal_position
FROM memory m WHERE m.session_key = %(session)s
ORDER BY m.name COLLATE "C"
"""


async def read_searched(tx: Transaction, session_key: UUID) -> Sequence[SearchedMemory]:
    """Returns the memories of a session by name, with how far their entries are."""
    rows = await tx.fetch(_MEMORIES, {"session": session_key}, prepare=False)
    return [SearchedMemory(**row._asdict()) for row in rows]


# In the order of an index, so that it reads no more than it may return: the memories are selected
# first, since a join would have all entries sorted.
_NEWEST = f"""
SELECT {_COLUMNS}, 0.0::float8 FROM (
    SELECT e.*, sum(octet_length(e.path) + octet_length(e.value)) OVER upto AS total
    FROM (
        SELECT {_COLUMNS} FROM memory_entry e
        WHERE e.session_key = %(session)s AND e.memory_id = ANY(ARRAY(
            SELECT m.memory_id FROM memory m
            WHERE m.session_key = %(session)s AND m.memory_id = ANY(%(memories)s::uuid[])
        ))
        ORDER BY e.revision DESC, e.memory_id, e.path, e.part LIMIT %(most)s
    ) AS e
    WINDOW upto AS (
        ORDER BY e.revision DESC, e.memory_id, e.path, e.part ROWS UNBOUNDED PRECEDING
    )
) AS e
WHERE e.total - octet_length(e.path) - octet_length(e.value) <= %(bytes)s
ORDER BY e.revision DESC, e.memory_id, e.path, e.part
"""  # noqa: S608 - all of it is ours


async def with_trust(
    tx: Transaction, session_key: UUID, found: Sequence[FoundEntry]
) -> Sequence[FoundEntry]:
    """Adds how much the chunks are trusted that entries rest on."""
    ranges = [
        ReadRange(
            memory_id=one.memory_id,
            revision=one.revision,
            after=max(one.first_position - 1, 0),
            upto=one.last_position,
        )
        for one in found
    ]
    levels = await source_trust.least_of_ranges(tx, session_key, ranges)
    return [
        one if levels[within] is Trust.TRUSTED else replace(one, trust=levels[within])
        for one, within in zip(found, ranges, strict=True)
    ]


async def read_newest_entries(
    tx: Transaction, session_key: UUID, memory_ids: Sequence[UUID], max_bytes: int
) -> tuple[Sequence[FoundEntry], bool]:
    """Returns the entries that were written last, and whether these are all of the memories.

    As many as have `max_bytes` of paths and values together. They have no score.
    """
    values = {"session": session_key, "memories": list(memory_ids), "bytes": max_bytes}
    most = max_bytes // SMALL_ENTRY_BYTES + 1
    while True:
        found = _found(await tx.fetch(_NEWEST, {**values, "most": most}, prepare=False))
        sizes = (len(one.entry.path.encode()) + len(one.entry.value.encode()) for one in found)
        if sum(sizes) > max_bytes:
            return found[:-1], False
        if len(found) < most:
            return found, True
        most *= MORE_ENTRIES
