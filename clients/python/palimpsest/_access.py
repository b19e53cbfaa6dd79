"""Tenants, keys and the audit log, from the proto's messages."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from google.protobuf.json_format import MessageToDict

from palimpsest._convert import value_of
from palimpsest._values_log import Retention, SourceTrust
from palimpsest.v1 import access_service_pb2 as pb

#: What a key allows. None includes another.
Scope = Literal["read", "append", "ask", "edit", "admin"]
QuotaName = Literal[
    "requests_per_second",
    "chunks_per_second",
    "bytes_per_second",
    "concurrent_asks",
    "concurrent_streams",
    "sessions",
    "memories",
    "stored_bytes",
]
KeyState = Literal["active", "expired", "revoked", "unknown"]

#: The digest before the first event of a log.
NO_DIGEST = bytes(32)


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantInfo:
    """A tenant."""

    id: str
    display_name: str
    suspended: bool
    created_at: datetime
    suspended_at: datetime | None
    #: How long data of its sessions is kept, unless a session says otherwise.
    retention: Retention


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaInfo:
    """What a tenant may use; 0 does not limit. Rates allow a second's worth at once."""

    tenant: str
    requests_per_second: int
    chunks_per_second: int
    bytes_per_second: int
    #: Of all servers together.
    concurrent_asks: int
    concurrent_streams: int
    sessions: int
    memories: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKeyInfo:
    """A key, without its secret."""

    #: What follows `pk_` in the key.
    id: str
    tenant: str
    display_name: str
    #: Those that this client knows.
    scopes: tuple[str, ...]
    #: What the ids of sessions begin with that it may be used for; empty allows all.
    session_prefix: str
    state: KeyState
    created_at: datetime
    #: A principal, as in AuditEvent.
    created_by: str
    #: The key that it was rotated from; empty when it was not.
    replaces: str
    #: None: never.
    expires_at: datetime | None
    revoked_at: datetime | None
    #: To about a minute; None: never.
    last_used_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatedApiKey:
    """A new key."""

    info: ApiKeyInfo
    #: The whole key, which cannot be read again.
    key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """Something that was administered, edited by hand or deleted."""

    #: Its place in the log of the tenant: 1, 2, 3 … without gaps.
    sequence: int
    occurred_at: datetime
    #: `key:<id>`, `jwt:<subject>`, `cert:<name>`, `local`, `operator` or `service`.
    principal: str
    #: Such as `key.create` or `session.delete`.
    action: str
    session: str
    memory: str
    #: The id of what else it is about: a key, a tenant, an answer.
    target: str
    details: Mapping[str, str | int | bool]
    #: The service's own id of the tenant.
    tenant_uid: str
    #: SHA-256 of the digest before it and of `canonical`.
    digest: bytes

    @property
    def canonical(self) -> bytes:
        """The event as canonical JSON: what its digest covers, besides the digest before it."""
        at = self.occurred_at.astimezone(UTC).isoformat(timespec="microseconds")
        fields = {
            "tenant_id": self.tenant_uid,
            "sequence": self.sequence,
            "occurred_at": at.replace("+00:00", "Z"),
            "principal": self.principal,
            "action": self.action,
            "session": self.session,
            "memory": self.memory,
            "target": self.target,
            "details": dict(self.details),
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return text.encode()

    def follows(self, sequence: int, digest: bytes) -> bool:
        """Returns whether it is unchanged, and the next event after the one of that digest.

        The first follows 0 and `NO_DIGEST`.
        """
        expected = hashlib.sha256(digest + self.canonical).digest()
        return self.sequence == sequence + 1 and self.digest == expected


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditHead:
    """The end of an audit log: kept elsewhere, it shows later that nothing was cut off."""

    #: The sequence of the newest event; 0 without one.
    sequence: int
    digest: bytes


#: What an erasure removed; "chunks" is their content.
ErasureKind = Literal["session", "memory", "chunks", "tenant", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureInfo:
    """A deletion for good: ids and counts, no text."""

    id: str
    kind: ErasureKind
    #: The service's own ids of the session, and of the memory or redaction; empty for a tenant.
    session_uid: str
    item_uid: str
    #: As in AuditEvent.
    principal: str
    reason: str
    requested_at: datetime
    #: None: rows are still being removed.
    completed_at: datetime | None
    #: When the erasure journal had it on disk.
    journalled_at: datetime | None
    #: Whether a restored database repeated it.
    replayed: bool
    #: Rows by table; `table.column` where rows stay without that content.
    removed: Mapping[str, int]
    tenant_uid: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureReceipt:
    """What proves an erasure: `palimpsest erasure verify` checks it."""

    #: The receipt as JSON, with its signature.
    json: str
    #: The tenant's Ed25519 key, which never changes.
    public_key: bytes
    #: Sessions of the tenant that were imported from exports of what was erased, and that are
    #: there now.
    imported_sessions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptOutText:
    """A text that a session keeps out: when it is appended, a tombstone is stored."""

    #: The beginning of its keyed digest, in hexadecimal.
    id: str
    #: How many words it has in a row; 0: it is the whole text of a chunk.
    words: int
    created_at: datetime
    #: The erasure of the redaction, for `erasure_receipt`.
    erasure: str
    #: As in AuditEvent.
    principal: str
    reason: str
    #: Chunks that became tombstones when they were appended, of all texts of the redaction.
    refused_chunks: int


def kept_out_text(message: pb.KeptOutText) -> KeptOutText:
    """Returns a text that is kept out."""
    return value_of(KeptOutText, message)


def erasure(message: pb.Erasure) -> ErasureInfo:
    """Returns an erasure."""
    return value_of(ErasureInfo, message, removed=dict(message.removed))


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRule:
    """How much a source is trusted."""

    #: Empty: all sessions of the tenant that have no rule of their own.
    session: str
    #: A source, or the beginning of several and an asterisk.
    source: str
    trust: SourceTrust
    #: It is quarantined, and so blocked until it is released.
    quarantined: bool
    #: None: it was set just now.
    updated_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedMemory:
    """What a quarantine or a release did to a memory."""

    memory: str
    #: The revision that it committed; 0: none.
    revision: int
    undone_revisions: int
    #: Chunks that the memory reads again.
    reread_chunks: int
    #: Changes by hand whose place is gone with what was undone.
    dropped_edits: int
    #: It is large: a worker applies the change, and the fields above are not known yet.
    pending: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineResult:
    """What a quarantine or a release did to a session."""

    session: str
    source: str
    trust: SourceTrust
    memories: tuple[QuarantinedMemory, ...]


def source_rule(message: pb.SourceRule) -> SourceRule:
    """Returns how much a source is trusted."""
    return value_of(SourceRule, message)


def quarantine_result(message: pb.QuarantineResult) -> QuarantineResult:
    """Returns what a quarantine or a release did."""
    return value_of(QuarantineResult, message)


def tenant(message: pb.Tenant) -> TenantInfo:
    """Returns a tenant."""
    return value_of(TenantInfo, message)


def quota(message: pb.Quota) -> QuotaInfo:
    """Returns quotas."""
    return value_of(QuotaInfo, message)


def api_key(message: pb.ApiKey) -> ApiKeyInfo:
    """Returns a key."""
    return value_of(ApiKeyInfo, message)


def created(message: pb.CreateApiKeyResponse) -> CreatedApiKey:
    """Returns a new key."""
    return CreatedApiKey(info=api_key(message.api_key), key=message.key)


def audit_event(message: pb.AuditEvent) -> AuditEvent:
    """Returns an event."""
    details = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in MessageToDict(message.details).items()
    }
    return value_of(AuditEvent, message, details=details)
