"""Writes state vectors with their revisions, and reads them as of any revision."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import case, insert, select

from service.domain.state.vectors import State, StateVector, VectorLevels, VectorSource
from storage.engine.claims import Claim, change_locked
from storage.engine.clocks import CLOCK
from storage.engine.database import Transaction, first, value
from storage.memories.revisions import NewRevision, advance
from storage.tables import memory, revision, state_levels, state_vector

_FIELDS = tuple(StateVector.__dataclass_fields__)
_VECTOR = tuple(state_vector.c[name] for name in _FIELDS)

#: The columns of a vector for `vector_of`, where its table is called v.
VECTOR_COLUMNS = ", ".join(f"v.{column.name}" for column in _VECTOR)


def vector_of(row: Sequence[Any]) -> StateVector:
    """Returns a vector from a row of VECTOR_COLUMNS."""
    fields = dict(zip(_FIELDS, row, strict=True))
    lists = {name: tuple(fields[name]) for name in ("children", "appended")}
    return StateVector(**{**fields, **lists, "made": VectorSource(fields["made"])})


async def add_first(tx: Transaction, session_key: UUID, memory_id: UUID, task: StateVector) -> None:
    """Writes the vector of a new memory: M_1, the task prompt."""
    keys = {"session_key": session_key, "memory_id": memory_id, "tenant_id": tx.tenant_id}
    await _add(tx, keys, task, VectorLevels())


async def commit(
    tx: Transaction,
    held: Claim,
    new: NewRevision,
    levels: VectorLevels,
    vector: StateVector | None,
    *,
    has_work: bool | None,
) -> bool:
    """Writes a state memory's next revision; returns whether there is work.

    `levels` are those after it, and `vector` is its new one: None for a rollback, which restores
    old ones. Raises Fenced as `revisions.advance` does.
    """
    has_more = await advance(tx, held, new, has_work=has_work)
    keys = {
        "session_key": held.session_key,
        "memory_id": held.memory_id,
        "tenant_id": tx.tenant_id,
    }
    assert vector is None or vector.revision == held.revision + 1, "it belongs to another one"
    await _add(tx, keys, vector, levels, held.revision + 1)
    return has_more


async def _add(
    tx: Transaction,
    keys: dict[str, Any],
    vector: StateVector | None,
    levels: VectorLevels,
    number: int = 0,
) -> None:
    await tx.execute(insert(state_levels).values(**keys, revision=number, runs=levels.to_json()))
    if vector is None:
        return
    lists = {"children": list(vector.children), "appended": list(vector.appended)}
    await tx.execute(
        insert(state_vector).values(**keys, **asdict(vector) | lists | {"made": vector.made.value})
    )


async def read_state(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> State | None:
    """Returns the vectors in use at a revision; None when there is no such revision."""
    statement = select(state_levels.c.runs, revision.c.to_position).join(
        revision,
        (revision.c.session_key == state_levels.c.session_key)
        & (revision.c.memory_id == state_levels.c.memory_id)
        & (revision.c.revision == state_levels.c.revision),
    )
    found = first(
        await tx.fetch(
            statement.where(
                state_levels.c.session_key == session_key,
                state_levels.c.memory_id == memory_id,
                state_levels.c.revision == at_revision,
            )
        )
    )
    if found is None:
        return None
    levels = VectorLevels.from_json(found.runs)
    vectors = await read_vectors(tx, session_key, memory_id, levels.stack())
    return State.of(at_revision, found.to_position, levels, {one.revision: one for one in vectors})


async def read_levels(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> VectorLevels | None:
    """Returns which vectors are in use at a revision; None without a row."""
    statement = select(state_levels.c.runs).where(
        state_levels.c.session_key == session_key,
        state_levels.c.memory_id == memory_id,
        state_levels.c.revision == at_revision,
    )
    runs = value(await tx.fetch(statement))
    return None if runs is None else VectorLevels.from_json(runs)


async def read_vectors(
    tx: Transaction, session_key: UUID, memory_id: UUID, revisions: Sequence[int]
) -> Sequence[StateVector]:
    """Returns the vectors that these revisions added, in order."""
    statement = (
        select(*_VECTOR)
        .where(
            state_vector.c.session_key == session_key,
            state_vector.c.memory_id == memory_id,
            state_vector.c.revision.in_(revisions),
        )
        .order_by(state_vector.c.revision)
    )
    return [vector_of(row) for row in await tx.fetch(statement)]


# One more than have so many bytes together, which shows whether others follow.
_PAGE = f"""
SELECT {VECTOR_COLUMNS}, v.created_at
FROM (
    SELECT revision, sum(octet_length(text)) OVER (
        ORDER BY revision ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
    ) AS before FROM state_vector
    WHERE session_key = %(session)s AND memory_id = %(memory)s AND revision > %(after)s
        AND (%(level)s = 0 OR level = %(level)s)
    ORDER BY revision LIMIT %(limit)s
) AS sized
CROSS JOIN LATERAL (
    -- One by one: a join would be planned for a few vectors, and be quadratic.
    SELECT * FROM state_vector
    WHERE session_key = %(session)s AND memory_id = %(memory)s AND revision = sized.revision
    OFFSET 0
) AS v
WHERE coalesce(sized.before, 0) < %(bytes)s
ORDER BY v.revision
"""  # noqa: S608 - all of it is ours


async def list_page(
    tx: Transaction,
    key: tuple[UUID, UUID],
    *,
    level: int,
    after_revision: int,
    limit: int,
    max_bytes: int,
) -> Sequence[tuple[StateVector, datetime]]:
    """Returns up to `limit` vectors after a revision, and when each was committed.

    `after_revision` -1 begins at M_1; level 0 means all. Only the first with `max_bytes` of text
    together, and one more.
    """
    values = {
        "session": key[0],
        "memory": key[1],
        "after": after_revision,
        "level": level,
        "limit": limit,
        "bytes": max_bytes,
    }
    rows = await tx.fetch(_PAGE, values, prepare=None)
    return [(vector_of(row[:-1]), row[-1]) for row in rows]


async def rouse(tx: Transaction, held: Claim) -> None:
    """Wakes a memory whose vectors were changed by hand, even if it is idle."""
    ready_at = case((memory.c.resting, CLOCK.c.at), else_=memory.c.ready_at)
    await change_locked(tx, held, has_work=True, resting=False, ready_at=ready_at)
