"""Records erasures, and what their removals have removed."""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from service.domain.log.erasures import (
    DIGEST_BYTES,
    MAX_DIGESTS,
    MIN_TEXT_BYTES,
    Erasure,
    ErasureKind,
    ErasureRequest,
)
from service.domain.log.journal_lines import JournalEntry
from storage.engine.database import Transaction, first

_RECORD = """
INSERT INTO erasure (tenant_id, erasure_id, kind, target_session, target_item, detail, principal,
    reason, requested_at, is_replayed)
VALUES (%(tenant)s, %(erasure)s, %(kind)s, %(session)s, %(item)s, %(detail)s::jsonb,
    %(principal)s, %(reason)s, {at}, %(replayed)s)
ON CONFLICT DO NOTHING
"""


async def record(
    tx: Transaction,
    kind: ErasureKind,
    request: ErasureRequest,
    *,
    session: UUID | None,
    item: UUID | None,
) -> UUID:
    """Records an erasure in the transaction that hides its target; returns its id."""
    erasure_id = request.erasure_id or uuid4()
    # A sharded database takes no now() inside of coalesce.
    at = "now()" if request.requested_at is None else "%(at)s"
    await tx.execute(
        _RECORD.format(at=at),
        {
            "tenant": tx.tenant_id,
            "erasure": erasure_id,
            "kind": kind.value,
            "session": session,
            "item": item,
            "detail": json.dumps(dict(request.detail)),
            "principal": request.principal,
            "reason": request.reason,
            "at": request.requested_at,
            "replayed": request.erasure_id is not None,
        },
        prepare=None,
    )
    return erasure_id


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantKeys:
    """Secrets of a tenant."""

    #: The seed of its Ed25519 key, which signs receipts.
    signing: bytes
    #: The key of keyed digests.
    digest: bytes


_KEYS = "SELECT signing_key, digest_key FROM tenant_key WHERE tenant_id = %(tenant)s"
_MAKE_KEYS = """
INSERT INTO tenant_key (tenant_id, signing_key, digest_key)
VALUES (%(tenant)s, %(signing)s, %(digest)s) ON CONFLICT DO NOTHING
"""


async def keys(tx: Transaction) -> TenantKeys:
    """Returns the keys of the tenant, which are made when there are none."""
    values: dict[str, object] = {"tenant": tx.tenant_id}
    if not (rows := await tx.fetch(_KEYS, values)):
        made = {"signing": secrets.token_bytes(32), "digest": secrets.token_bytes(32)}
        await tx.execute(_MAKE_KEYS, {**values, **made}, prepare=None)
        # Another transaction may have made them at the same moment.
        rows = await tx.fetch(_KEYS, values)
    return TenantKeys(signing=bytes(rows[0].signing_key), digest=bytes(rows[0].digest_key))


def digests_of(columns: Sequence[str]) -> str:
    """Returns the SQL of the keyed digests of a row's texts, one after another.

    Its values are the blocks of `hmac_blocks`: `inner` and `outer`.
    """
    one = (
        "CASE WHEN octet_length({0}) >= " + str(MIN_TEXT_BYTES) + " THEN substr(sha256("
        "%(outer)s::bytea || sha256(%(inner)s::bytea || convert_to({0}, 'UTF8'))), 1, "
        + str(DIGEST_BYTES)
        + ") ELSE ''::bytea END"
    )
    return " || ".join(one.format(column) for column in columns)


# `item` is NULL for all of a session. One key may be named by erasures of its earlier lives:
# those are complete.
_OPEN = """
target_session = %(session)s AND completed_at IS NULL
    AND (%(item)s::uuid IS NULL OR target_item = %(item)s::uuid)
"""
_ADD = f"""
UPDATE erasure SET
    counts = counts || (
        SELECT coalesce(jsonb_object_agg(key, coalesce((counts ->> key)::bigint, 0)
            + value::bigint), '{{}}')
        FROM jsonb_each_text(%(counts)s::jsonb)),
    digests = digests || substr(
        %(digests)s::bytea, 1, greatest(0, {MAX_DIGESTS * DIGEST_BYTES} - octet_length(digests))),
    digests_omitted = digests_omitted + greatest(0, octet_length(digests)
        + octet_length(%(digests)s::bytea) - {MAX_DIGESTS * DIGEST_BYTES}) / {DIGEST_BYTES}
WHERE target_session = %(session)s AND target_item = %(own)s AND completed_at IS NULL
"""  # noqa: S608 - numbers from above
_COMPLETE = f"UPDATE erasure SET completed_at = now() WHERE {_OPEN}"  # noqa: S608 - from above


async def add_removed(
    tx: Transaction, session: UUID, item: UUID, counts: Mapping[str, int], digests: bytes
) -> None:
    """Adds what a batch has removed to the open erasure of a session, or of a memory alone."""
    removed = {table: count for table, count in counts.items() if count}
    if removed:
        await tx.execute(
            _ADD,
            {"session": session, "own": item, "counts": json.dumps(removed), "digests": digests},
            prepare=None,
        )


async def complete(tx: Transaction, session: UUID, item: UUID | None) -> None:
    """Completes the open erasures of an item, or of all of a session."""
    await tx.execute(_COMPLETE, {"session": session, "item": item}, prepare=None)


_COLUMNS = ", ".join(Erasure.__dataclass_fields__)
_LIST = f"""
SELECT {_COLUMNS} FROM erasure
WHERE tenant_id = %(tenant)s AND (%(after_id)s::uuid IS NULL
    OR (requested_at, erasure_id) > (%(after_at)s::timestamptz, %(after_id)s::uuid))
ORDER BY requested_at, erasure_id LIMIT %(limit)s
"""  # noqa: S608 - names of a class
_ONE = f"""
SELECT {_COLUMNS} FROM erasure WHERE tenant_id = %(tenant)s AND erasure_id = %(erasure)s
"""  # noqa: S608 - names of a class


def _erasure(row: Any) -> Erasure:
    values = row._asdict()
    kind, digests = ErasureKind(values.pop("kind")), bytes(values.pop("digests"))
    return Erasure(kind=kind, digests=digests, **values)


async def list_after(
    tx: Transaction, after: tuple[datetime, UUID] | None, limit: int
) -> Sequence[Erasure]:
    """Returns up to `limit` erasures of the tenant after one, the oldest first."""
    at, id = after or (None, None)
    values = {"tenant": tx.tenant_id, "after_at": at, "after_id": id, "limit": limit}
    return [_erasure(row) for row in await tx.fetch(_LIST, values)]


_OF_TENANTS = """
SELECT requested_at, erasure_id, tenant_id FROM erasure
WHERE kind = 'tenant' AND (%(after_id)s::uuid IS NULL
    OR (requested_at, erasure_id) > (%(after_at)s::timestamptz, %(after_id)s::uuid))
ORDER BY requested_at, erasure_id LIMIT %(limit)s
"""
_TENANT_OF = "SELECT tenant_id FROM erasure WHERE kind = 'tenant' AND erasure_id = %s"


async def list_of_tenants(
    tx: Transaction, after: tuple[datetime, UUID] | None, limit: int
) -> Sequence[tuple[UUID, UUID]]:
    """Returns erasures of whole tenants after one, the oldest first, with those. For a sweep."""
    at, id = after or (None, None)
    rows = await tx.fetch(_OF_TENANTS, {"after_at": at, "after_id": id, "limit": limit})
    return [(row.erasure_id, row.tenant_id) for row in rows]


async def tenant_of(tx: Transaction, erasure_id: UUID) -> UUID | None:
    """Returns the tenant that an erasure deleted; None if it deleted none. For a sweep."""
    row = first(await tx.fetch(_TENANT_OF, (erasure_id,)))
    return None if row is None else row.tenant_id


async def find(tx: Transaction, erasure_id: UUID) -> Erasure | None:
    """Returns an erasure of the tenant; None when there is none."""
    row = first(await tx.fetch(_ONE, {"tenant": tx.tenant_id, "erasure": erasure_id}))
    return None if row is None else _erasure(row)


_OF_EXPORT = f"""
SELECT {_COLUMNS} FROM erasure
WHERE tenant_id = %(tenant)s AND kind IN ('session', 'chunks')
    AND detail -> 'exports' @> jsonb_build_array(jsonb_build_object('export', %(export)s::text))
ORDER BY requested_at, erasure_id
"""  # noqa: S608 - names of a class


async def list_since_export(tx: Transaction, export_id: UUID) -> Sequence[Erasure]:
    """Returns erasures of an exported session, and of chunks of it, that came after the export.

    Those whose record lists the export: one has the newest 100.
    """
    values = {"tenant": tx.tenant_id, "export": export_id}
    return [_erasure(row) for row in await tx.fetch(_OF_EXPORT, values, prepare=None)]


_TO_JOURNAL = """
SELECT tenant_id, erasure_id, kind, target_session, target_item, detail, principal, requested_at
FROM erasure
WHERE tenant_id = %(tenant)s AND (%(anew)s OR journalled_at IS NULL)
    AND (%(after_id)s::uuid IS NULL
        OR (requested_at, erasure_id) > (%(after_at)s::timestamptz, %(after_id)s::uuid))
ORDER BY requested_at, erasure_id LIMIT %(limit)s FOR UPDATE
"""
_MARK = """
UPDATE erasure SET journalled_at = now()
WHERE tenant_id = %(tenant)s AND erasure_id = ANY(%(erasures)s::uuid[])
"""


async def to_journal(
    tx: Transaction, after: tuple[datetime, UUID] | None, limit: int, *, anew: bool
) -> Sequence[JournalEntry]:
    """Returns erasures of the tenant that the journal lacks, or all, and locks them."""
    at, id = after or (None, None)
    values = {"tenant": tx.tenant_id, "anew": anew, "limit": limit, "after_at": at, "after_id": id}
    rows = [row._asdict() for row in await tx.fetch(_TO_JOURNAL, values)]
    return [JournalEntry(kind=ErasureKind(row.pop("kind")), **row) for row in rows]


async def mark_journalled(tx: Transaction, erasure_ids: Sequence[UUID]) -> None:
    """Stores that the journal has erasures of the tenant on disk."""
    await tx.execute(_MARK, {"tenant": tx.tenant_id, "erasures": list(erasure_ids)}, prepare=None)


async def record_absent(tx: Transaction, entry: JournalEntry, request: ErasureRequest) -> None:
    """Records a repeated erasure that found nothing to remove."""
    await record(
        tx,
        entry.kind,
        request,
        session=entry.target_session,
        item=entry.target_item,
    )
    done = "UPDATE erasure SET completed_at = now() WHERE tenant_id = %s AND erasure_id = %s"
    await tx.execute(done, (tx.tenant_id, entry.erasure_id), prepare=None)


_ERASED_UNTIL = """
SELECT t.session_key, bool_or(e.completed_at IS NULL), max(e.completed_at)
FROM unnest(%(sessions)s::uuid[]) AS t (session_key)
JOIN erasure e ON e.tenant_id = %(tenant)s
    AND (e.target_session = t.session_key OR e.kind = 'tenant')
GROUP BY t.session_key
"""


async def erased_until(
    tx: Transaction, sessions: Collection[UUID]
) -> Mapping[UUID, datetime | None]:
    """Returns when the last erasure of a session, of a part of it, or of the tenant was complete.

    Only of sessions with any; None: one is not complete.
    """
    values = {"tenant": tx.tenant_id, "sessions": list(sessions)}
    rows = await tx.fetch(_ERASED_UNTIL, values)
    return {key: None if is_open else at for key, is_open, at in rows}


_KNOWN = """
SELECT e.tenant_id, e.erasure_id FROM erasure e
JOIN unnest(%(tenants)s::uuid[], %(erasures)s::uuid[]) AS t (tenant_id, erasure_id)
    USING (tenant_id, erasure_id)
"""
_TENANTS = "SELECT tenant_id FROM tenant WHERE tenant_id = ANY(%(tenants)s::uuid[])"
_TENANTS_TO_JOURNAL = """
SELECT DISTINCT tenant_id FROM erasure WHERE %(anew)s OR journalled_at IS NULL
"""
_WAS_JOURNALLED = "SELECT EXISTS (SELECT FROM erasure WHERE journalled_at IS NOT NULL)"


async def known(tx: Transaction, ids: Sequence[tuple[UUID, UUID]]) -> set[tuple[UUID, UUID]]:
    """Returns which of these, each a tenant and an erasure, the database has. For a sweep."""
    tenants, erasures = [list(column) for column in zip(*ids, strict=True)]
    return {
        tuple(row) for row in await tx.fetch(_KNOWN, {"tenants": tenants, "erasures": erasures})
    }


async def known_tenants(tx: Transaction, tenants: Collection[UUID]) -> set[UUID]:
    """Returns which of these tenants the database has. For a sweep."""
    return {row[0] for row in await tx.fetch(_TENANTS, {"tenants": list(tenants)})}


async def tenants_to_journal(tx: Transaction, *, anew: bool) -> Sequence[UUID]:
    """Returns the tenants with erasures that the journal lacks, or with any. For a sweep."""
    return [row[0] for row in await tx.fetch(_TENANTS_TO_JOURNAL, {"anew": anew})]


async def was_journalled(tx: Transaction) -> bool:
    """Returns whether any erasure was written to a journal. For a sweep."""
    return bool((await tx.fetch(_WAS_JOURNALLED))[0][0])
