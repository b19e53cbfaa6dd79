"""Stores requests for schema drafts, and their results."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select

from service.domain.values.work_items import WorkKind
from storage.engine.database import Transaction, first
from storage.memories import job_results
from storage.tables import schema_draft, session


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSchemaDraft:
    """A draft's row."""

    session_key: UUID
    draft_id: UUID
    session_name: str
    domain: str
    example_query: str
    #: The model that wrote it; before that the requested one, maybe empty.
    model: str
    #: "pending", "complete" or "failed".
    status: str
    #: Class source; empty unless complete.
    source: str
    #: Replies of the model that it needed; 0 unless complete.
    replies: int
    failure: str
    #: Failed tries of the work.
    attempts: int
    created_at: datetime
    #: The session's.
    incarnation: int


def occasion(draft_id: UUID) -> str:
    """Returns the occasion of a draft's model calls, as the ledger names it."""
    return f"schema:{draft_id}"


_CREATE = """
INSERT INTO schema_draft (session_key, draft_id, tenant_id, domain, example_query, model)
SELECT %(session_key)s::uuid, %(draft_id)s::uuid, %(tenant_id)s::uuid, %(domain)s::text,
    %(example_query)s::text, %(model)s::text
WHERE %(max_pending)s::int IS NULL
    OR count_pending_schema_draft(%(tenant_id)s::uuid, %(max_pending)s::int)
        < %(max_pending)s::int
RETURNING true
"""


async def create(
    tx: Transaction,
    *,
    session_key: UUID,
    draft_id: UUID,
    domain: str,
    example_query: str,
    model: str,
    max_pending: int | None = None,
) -> bool:
    """Stores a request for a schema. False when `max_pending` of the tenant's are pending."""
    values = {
        "session_key": session_key,
        "draft_id": draft_id,
        "tenant_id": tx.tenant_id,
        "domain": domain,
        "example_query": example_query,
        "model": model,
        "max_pending": max_pending,
    }
    return bool(await tx.fetch(_CREATE, values))


async def get(tx: Transaction, session_key: UUID, draft_id: UUID) -> StoredSchemaDraft | None:
    """Reads a draft; None when there is none."""
    statement = (
        select(schema_draft, session.c.name.label("session_name"), session.c.incarnation)
        .join(session, session.c.session_key == schema_draft.c.session_key)
        .where(schema_draft.c.session_key == session_key, schema_draft.c.draft_id == draft_id)
    )
    row = first(await tx.fetch(statement))
    if row is None:
        return None
    names = StoredSchemaDraft.__dataclass_fields__
    return StoredSchemaDraft(**{k: value for k, value in row._asdict().items() if k in names})


async def complete(
    tx: Transaction, session_key: UUID, draft_id: UUID, *, source: str, model: str, replies: int
) -> bool:
    """Stores the schema; False when the draft is complete already."""
    return await job_results.store(
        tx,
        WorkKind.SCHEMA,
        session_key,
        draft_id,
        status="complete",
        source=source,
        model=model,
        replies=replies,
    )
