"""Reads the final state of one session from its tables.

As the superuser, whom row-level security hides nothing from; the value that a PRISM memory
had at a revision is asked of the service itself.
"""

from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from service.app.kinds import memories_of
from service.domain.tree.nodes import TextOffset
from service.domain.values.json_values import canonical
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from verification.chaos.history import (
    Final,
    FinalChunk,
    FinalMemory,
    FinalNode,
    FinalRevision,
    FinalSession,
    FinalVector,
    LedgerRow,
)
from verification.chaos.workload import SERIAL, chunk_text

Connection = psycopg.AsyncConnection[Any]


async def final_from(superuser_url: str, database: Database, session: str) -> Final:
    """Returns the session as it is, when no process writes any more."""
    key = session_key(DEFAULT_TENANT, session)
    async with await psycopg.AsyncConnection.connect(
        superuser_url, autocommit=True, row_factory=namedtuple_row
    ) as connection:
        head = await _rows(connection, "SELECT head FROM session WHERE session_key = %s", key)
        chunks = await _rows(
            connection,
            "SELECT position, producer_id, producer_sequence, text FROM chunk"
            " WHERE session_key = %s ORDER BY position",
            key,
        )
        rows = await _rows(
            connection, "SELECT * FROM memory WHERE session_key = %s ORDER BY name", key
        )
        memories = [await _memory(connection, database, session, row) for row in rows]
        calls = await _rows(connection, "SELECT reply FROM call WHERE session_key = %s", key)
    return Final(
        sessions=(
            FinalSession(
                name=session,
                head=head[0].head,
                chunks=[_chunk(row) for row in chunks],
                memories=tuple(memories),
            ),
        ),
        ledger=tuple(LedgerRow(session=session, reply=row.reply) for row in calls),
    )


async def _rows(connection: Connection, query: str, *values: object) -> list[Any]:
    return await (await connection.execute(query.encode(), values)).fetchall()


def _chunk(row: Any) -> FinalChunk:
    return FinalChunk(
        position=row.position,
        producer=row.producer_id,
        sequence=row.producer_sequence,
        is_intact=row.text == chunk_text(row.producer_id, row.producer_sequence),
    )


async def _memory(
    connection: Connection, database: Database, session: str, row: Any
) -> FinalMemory:
    key = (row.session_key, row.memory_id)
    nodes = await _rows(
        connection,
        "SELECT * FROM tree_node WHERE session_key = %s AND memory_id = %s ORDER BY level, number",
        *key,
    )
    vectors = await _rows(
        connection,
        "SELECT * FROM state_vector WHERE session_key = %s AND memory_id = %s ORDER BY revision",
        *key,
    )
    return FinalMemory(
        name=row.name,
        kind=row.kind,
        status=row.status,
        revision=row.revision,
        applied_position=row.applied_position,
        revisions=await _revisions(connection, database, session, row),
        nodes=tuple(_node(one) for one in nodes),
        vectors=tuple(
            FinalVector(
                revision=one.revision,
                level=one.level,
                after_position=one.after_position,
                from_position=one.from_position,
                to_position=one.to_position,
                children=tuple(one.children),
                serials=_serials(one.text),
            )
            for one in vectors
        ),
    )


async def _revisions(
    connection: Connection, database: Database, session: str, row: Any
) -> tuple[FinalRevision, ...]:
    key = (row.session_key, row.memory_id)
    revisions = await _rows(
        connection,
        "SELECT * FROM revision WHERE session_key = %s AND memory_id = %s"
        " ORDER BY revision, created_at",
        *key,
    )
    amendments = await _rows(
        connection,
        "SELECT * FROM amendment WHERE session_key = %s AND memory_id = %s"
        " ORDER BY revision, ordinal",
        *key,
    )
    brought: dict[int, list[tuple[str, str, str | None]]] = {}
    for one in amendments:
        value = None if one.op == "remove" else one.value
        brought.setdefault(one.revision, []).append((one.path, one.op, value))
    is_prism = row.kind == "prism"
    return tuple(
        [
            FinalRevision(
                revision=one.revision,
                parent=one.parent_revision,
                from_position=one.from_position,
                to_position=one.to_position,
                kind=one.kind,
                epoch=one.epoch,
                restored_revision=one.restored_revision,
                digest=one.digest.hex() if is_prism else "",
                amendments=tuple(brought.get(one.revision, ())),
                value=await _value(database, session, row.name, one.revision) if is_prism else None,
            )
            for one in revisions
        ]
    )


async def _value(database: Database, session: str, memory: str, revision: int) -> str | None:
    memories = memories_of(
        database, WakeUps(_lose), ProgressWatcher(database), b"token-key", Limits()
    )
    try:
        reading = await memories.read_revision(DEFAULT_TENANT, session, memory, revision)
    except Exception as error:
        # No memory has such a value: a revision that cannot be read equals none.
        return canonical(f"unreadable: {type(error).__name__}")
    return reading.value_json


async def _lose(_: object) -> None:
    """Drops wake-ups: nothing is written here, so none is needed."""


def _node(row: Any) -> FinalNode:
    end = TextOffset(row.end_position, row.end_offset)
    return FinalNode(
        level=row.level,
        index=row.number - 1,
        first_position=row.start_position,
        first_offset=row.start_offset,
        last_position=end.last_position,
        last_offset=end.offset,
        children=tuple(range(row.first_child - 1, row.first_child - 1 + row.children)),
        serials=_serials(row.summary),
        revision=row.revision,
    )


def _serials(text: str) -> tuple[int, ...]:
    return tuple(int(found) for found in SERIAL.findall(text))
