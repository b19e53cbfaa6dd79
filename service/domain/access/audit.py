"""Events of the audit log, and the chain of digests that shows changes.

The digest of an event is SHA-256 of the digest before it (of the first event, 32 zero bytes) and
of the event as canonical JSON: keys sorted, no blanks, UTF-8. docs/guides/access.md has the form.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

#: The digest before the first event.
NO_DIGEST = bytes(32)

#: What details may have: values that read the same in every language.
Detail = str | int | bool
#: Larger whole numbers are recorded as text: JSON's numbers are doubles for many readers.
MAX_NUMBER = 2**53 - 1


class AuditAction(StrEnum):
    """What happened. New ones may be added: clients accept those that they do not know."""

    TENANT_CREATE = "tenant.create"
    TENANT_UPDATE = "tenant.update"
    TENANT_SUSPEND = "tenant.suspend"
    TENANT_RESUME = "tenant.resume"
    TENANT_DELETE = "tenant.delete"
    KEY_CREATE = "key.create"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    SESSION_DELETE = "session.delete"
    SESSION_EXPORT = "session.export"
    SESSION_IMPORT = "session.import"
    MEMORY_DELETE = "memory.delete"
    MEMORY_EDIT = "memory.edit"
    MEMORY_ROLLBACK = "memory.rollback"
    ANSWER_DELETE = "answer.delete"
    CHUNKS_REDACT = "chunks.redact"
    TEXT_ALLOW = "text.allow"
    BUDGET_SET = "budget.set"
    BUDGET_DELETE = "budget.delete"
    SOURCE_TRUST = "source.trust"
    SOURCE_QUARANTINE = "source.quarantine"
    SOURCE_RELEASE = "source.release"
    QUOTA_UPDATE = "quota.update"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """What is recorded of an action. Never content: ids and numbers only."""

    action: AuditAction
    #: Ids that clients chose; empty where the action is about none.
    session: str = ""
    memory: str = ""
    #: The id of a key, a tenant, an answer or whatever else the action is about.
    target: str = ""
    details: Mapping[str, Detail] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """A recorded entry, at its place in the log of a tenant."""

    tenant_id: UUID
    #: 1, 2, 3 … without gaps.
    sequence: int
    #: In whole microseconds.
    occurred_at: datetime
    principal: str
    entry: AuditEntry
    digest: bytes = b""


def portable(details: Mapping[str, Detail]) -> dict[str, Detail]:
    """Returns details as every reader of JSON reads them."""
    return {
        name: str(value) if isinstance(value, int) and abs(value) > MAX_NUMBER else value
        for name, value in details.items()
    }


def canonical(event: AuditEvent) -> bytes:
    """Returns the bytes of an event that its digest covers, besides the digest before it."""
    entry = event.entry
    fields = {
        "tenant_id": str(event.tenant_id),
        "sequence": event.sequence,
        "occurred_at": timestamp(event.occurred_at),
        "principal": event.principal,
        "action": str(entry.action),
        "session": entry.session,
        "memory": entry.memory,
        "target": entry.target,
        "details": dict(entry.details),
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def timestamp(moment: datetime) -> str:
    """Returns a time as RFC 3339 in UTC with six digits of a second."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def digest_of(event: AuditEvent, before: bytes) -> bytes:
    """Returns the digest of an event that follows the one with the digest `before`."""
    return hashlib.sha256(before + canonical(event)).digest()


def broken_at(events: Iterable[AuditEvent], *, after: tuple[int, bytes]) -> int | None:
    """Returns the sequence of the first event that does not follow the one before; else None.

    `after`: sequence and digest that the events follow; of a whole log 0 and NO_DIGEST.
    """
    sequence, before = after
    for event in events:
        sequence += 1
        if event.sequence != sequence or event.digest != digest_of(event, before):
            return sequence
        before = event.digest
    return None
