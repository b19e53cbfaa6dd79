"""Stores what each revision of a counter has counted."""

import hashlib
from uuid import UUID

from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories import revisions
from storage.memories.revisions import NewRevision

#: What is applied to a database, by its owner, before it has counters.
MIGRATION = """
ALTER TABLE memory DROP CONSTRAINT memory_kind;
ALTER TABLE memory ADD CONSTRAINT memory_kind
    CHECK (kind IN ('prism', 'tree', 'state', 'counter'));
CREATE TABLE counter_value (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    chunks bigint NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT counter_value_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision ON DELETE CASCADE
);
ALTER TABLE counter_value ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY counter_value_of_tenant ON counter_value TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON counter_value TO palimpsest_app;
"""

_ADD = """
INSERT INTO counter_value (session_key, memory_id, revision, tenant_id, chunks)
VALUES (%(session)s, %(memory)s, %(revision)s, %(tenant)s, %(chunks)s)
"""
_READ = """
SELECT chunks FROM counter_value
WHERE session_key = %(session)s AND memory_id = %(memory)s AND revision = %(revision)s
"""


def digest(chunks: int) -> bytes:
    """Returns the digest of a count."""
    return hashlib.sha256(str(chunks).encode()).digest()


async def add(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int, chunks: int
) -> None:
    """Writes what a revision has counted."""
    values = {"session": session_key, "memory": memory_id, "revision": revision}
    await tx.execute(_ADD, {**values, "tenant": tx.tenant_id, "chunks": chunks})


async def read(tx: Transaction, session_key: UUID, memory_id: UUID, revision: int) -> int | None:
    """Returns what a revision has counted; None when there is no such revision."""
    values = {"session": session_key, "memory": memory_id, "revision": revision}
    rows = await tx.fetch(_READ, values)
    return int(rows[0][0]) if rows else None


async def commit(tx: Transaction, held: Claim, new: NewRevision, chunks: int) -> bool:
    """Writes the next revision; returns whether there is more to do. Raises Fenced."""
    has_work = await revisions.advance(tx, held, new, has_work=True)
    await add(tx, held.session_key, held.memory_id, held.revision + 1, chunks)
    return has_work
