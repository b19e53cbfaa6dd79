"""Reads the state of a PRISM memory at any of its revisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from uuid import UUID

from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.tree import Schema
from service.domain.prism.spec import Encoding
from service.domain.values.errors import FailedPrecondition
from service.domain.values.json_values import restore
from service.domain.values.paths import Path
from service.domain.values.reasons import Reason
from storage.engine.database import Row, Transaction, first
from storage.memories import memories
from storage.memories.memories import StoredMemory

#: Parsed paths that a process keeps: a memory's amendments repeat them.
KEPT_PATHS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismRows:
    """The stored form of a PRISM memory at one revision."""

    #: Canonical JSON of a state at or before the revision.
    base: str
    #: The amendments since, by revision.
    amendments: Sequence[tuple[int, Sequence[Amendment]]]
    #: All chunks up to here are in it.
    applied_position: int

    def memory(self, schema: Schema) -> PrismMemory:
        """Returns the memory, without the past that prompts show."""
        return PrismMemory.load(
            schema, base_json=self.base, amendments=self.amendments, encoding=Encoding.IN_PLACE
        )


# SELECT: a value that the planner does not know, so that a plan is kept for all of them.
_BASE = """
    SELECT revision, value FROM prism_base
    WHERE session_key = %(session)s AND memory_id = %(memory)s
        AND revision <= (SELECT %(revision)s::bigint)
    ORDER BY revision DESC LIMIT 1"""

_SNAPSHOT = _BASE.replace("prism_base", "prism_snapshot")
_NEAREST = f"""
    SELECT revision, value FROM (
        ({_BASE}) UNION ALL ({_SNAPSHOT})
    ) AS saved ORDER BY revision DESC LIMIT 1"""  # noqa: S608 - all of it is ours

#: The revisions next to one that has expired which can be read, and the memory's name.
_KEPT = """
    SELECT jsonb_build_array(m.name, (
        SELECT k.revision FROM revision k WHERE k.session_key = m.session_key
            AND k.memory_id = m.memory_id AND k.revision < %(revision)s AND NOT k.expired
        ORDER BY k.revision DESC LIMIT 1
    ), (
        SELECT k.revision FROM revision k WHERE k.session_key = m.session_key
            AND k.memory_id = m.memory_id AND k.revision > %(revision)s AND NOT k.expired
        ORDER BY k.revision LIMIT 1
    )) FROM memory m WHERE m.session_key = %(session)s AND m.memory_id = %(memory)s"""
_LAST_THINNED = """
SELECT name, thinned_revision FROM memory
WHERE session_key = %(session)s AND memory_id = %(memory)s
"""
#: Reads the saved state, with ordinal 0, then the amendments since.
_STATE = """
WITH saved AS MATERIALIZED ({saved}),
reached AS (
    SELECT to_position, CASE WHEN expired THEN ({kept}) END AS kept FROM revision
    WHERE session_key = %(session)s AND memory_id = %(memory)s AND revision = %(revision)s
)
SELECT revision, 0 AS ordinal, NULL AS path, NULL AS op, value, to_position, kept
FROM saved, reached
UNION ALL
SELECT revision, ordinal, path, op, value, NULL, NULL FROM amendment
WHERE session_key = %(session)s AND memory_id = %(memory)s
    AND revision > (SELECT revision FROM saved) AND revision <= (SELECT %(revision)s::bigint)
ORDER BY 1, 2
"""
_VALUE_SIZES = """
SELECT memory_id, octet_length(value) AS bytes FROM prism_value
WHERE session_key = %(session)s AND memory_id = ANY(%(memories)s::uuid[])
"""
_SHOWN_STATE = _STATE.format(saved=_BASE, kept=_KEPT)
_NEAREST_STATE = _STATE.format(saved=_NEAREST, kept=_KEPT)


async def read_shown(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> PrismRows | None:
    """Returns the newest base and the amendments since, as prompts show them.

    None when there is no such revision. Raises FailedPrecondition when its state has expired, as
    all reads of this module.
    """
    return await _read(tx, _SHOWN_STATE, session_key, memory_id, at_revision)


async def read_for_prompts(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int, encoding: Encoding
) -> PrismRows | None:
    """Does as `read_shown`, or for the encoding in place as `read_nearest`."""
    query = _NEAREST_STATE if encoding is Encoding.IN_PLACE else _SHOWN_STATE
    return await _read(tx, query, session_key, memory_id, at_revision)


async def read_nearest(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> PrismRows | None:
    """Returns the same state from the closest base or snapshot."""
    return await _read(tx, _NEAREST_STATE, session_key, memory_id, at_revision)


async def get_nearest(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> PrismRows:
    """Does as `read_nearest`, for a revision that exists."""
    rows = await read_nearest(tx, session_key, memory_id, at_revision)
    assert rows is not None, "revisions have no gaps, and none goes away"
    return rows


async def value_sizes(
    tx: Transaction, session_key: UUID, memory_ids: Sequence[UUID]
) -> dict[UUID, int]:
    """Returns the bytes of UTF-8 of each memory's newest value as canonical JSON."""
    values = {"session": session_key, "memories": list(memory_ids)}
    return {row.memory_id: row.bytes for row in await tx.fetch(_VALUE_SIZES, values)}


async def _read(
    tx: Transaction, query: str, session_key: UUID, memory_id: UUID, at_revision: int
) -> PrismRows | None:
    values = _values(session_key, memory_id, at_revision)
    return _rows(await tx.fetch(query, values), at_revision)


async def read_past(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> tuple[StoredMemory, PrismRows | None] | None:
    """Returns the memory, and `read_nearest`, in one round trip; None without a memory."""
    values = _values(session_key, memory_id, at_revision)
    found, rows = await tx.pipeline((memories.READ_ROW, _NEAREST_STATE), values, snapshot=True)
    return (memories.from_row(found[0]), _rows(rows, at_revision)) if found else None


def _values(session_key: UUID, memory_id: UUID, at_revision: int) -> dict[str, object]:
    # No revision has the last bigint or more.
    at_revision = min(at_revision, 2**63 - 1)
    return {"session": session_key, "memory": memory_id, "revision": at_revision}


def _rows(rows: Sequence[Row], at_revision: int) -> PrismRows | None:
    if not rows or rows[0][1]:
        return None
    (_, _, _, _, base, reached, kept), *since = rows
    if kept is not None:
        raise history_expired(kept[0], at_revision, earlier=kept[1], later=kept[2])
    return PrismRows(
        base=base,
        amendments=[
            (revision, [_amendment(row) for row in batch])
            for revision, batch in groupby(since, key=_revision_of)
        ],
        applied_position=reached,
    )


def history_expired(memory: str, revision: int, *, earlier: int, later: int) -> FailedPrecondition:
    """Returns the refusal of a revision whose state has expired, with those next to it."""
    return FailedPrecondition(
        Reason.HISTORY_EXPIRED,
        f"the state of memory {memory!r} at revision {revision} has expired: read revision"
        f" {earlier} or {later}, which are the nearest that are kept",
        {
            "memory": memory,
            "revision": revision,
            "earlier_revision": earlier,
            "later_revision": later,
        },
    )


async def history_ended(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int
) -> FailedPrecondition:
    """Returns the refusal to list all changes after a revision: some of them have expired."""
    values = _values(session_key, memory_id, revision)
    ((name, last),) = await tx.fetch(_LAST_THINNED, values)
    return FailedPrecondition(
        Reason.HISTORY_EXPIRED,
        f"changes of memory {name!r} after revision {revision} have expired: read it at revision"
        f" {last} or later, and watch it from there",
        {"memory": name, "revision": revision, "later_revision": last},
    )


def _revision_of(row: Row) -> int:
    revision: int = row[0]
    return revision


def _amendment(row: Row) -> Amendment:
    _, _, path, op, value, *_ = row
    return Amendment(path=_path(path), op=Op(op), value=restore(value))


@lru_cache(maxsize=KEPT_PATHS)
def _path(text: str) -> Path:
    return Path.parse(text)


_AT_POSITION = """
SELECT revision, to_position FROM revision
WHERE session_key = %(session)s AND memory_id = %(memory)s
    AND to_position > from_position AND from_position <= %(position)s
ORDER BY from_position DESC LIMIT 1
"""


async def revision_at(
    tx: Transaction, session_key: UUID, memory_id: UUID, position: int, newest: int
) -> int:
    """Returns the newest revision that contains no chunk after `position`.

    `newest` is the memory's newest revision, which has read up to `position`.
    """
    values = {"session": session_key, "memory": memory_id, "position": position}
    step = first(await tx.fetch(_AT_POSITION, values, prepare=None))
    if step is None or step.to_position <= position:
        # No step read further, so no revision contains a later chunk.
        return newest
    before: int = step.revision - 1
    return before
