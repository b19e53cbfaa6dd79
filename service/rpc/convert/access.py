"""Tenants, keys and events of the audit log."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from google.protobuf.struct_pb2 import Struct

from palimpsest.v1 import access_service_pb2 as pb
from palimpsest.v1 import rules_pb2
from service.domain.access.audit import AuditEvent
from service.domain.access.identity import Scope
from service.domain.access.keys import OVERLAP, ApiKey, KeyState, NewKey, StoredTenant
from service.domain.access.quotas import Quota, QuotaName
from service.domain.access.trust import ANY_END, SourceRule
from service.domain.log.erasures import Erasure, ErasureKind
from service.domain.log.keeping_out import KeptOutText
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import (
    message_of,
    numbers_of,
    retention,
    timestamp,
    trust_number,
)
from service.usecases.access.sources import QuarantinedMemory, QuarantineResult
from storage.access.audit import AuditFilter
from storage.access.tenants import TenantChange

_SCOPES = numbers_of(Scope, rules_pb2.Scope, "SCOPE_")
_SCOPE_OF = {number: scope for scope, number in _SCOPES.items()}
_KINDS = numbers_of(ErasureKind, pb.Erasure.Kind, "KIND_")
_STATES = numbers_of(KeyState, pb.ApiKey.State, "STATE_")


def tenant(stored: StoredTenant) -> pb.Tenant:
    """Returns a tenant as a message."""
    return message_of(pb.Tenant, stored, id=stored.name, suspended=stored.suspended_at is not None)


def tenant_change(request: pb.UpdateTenantRequest) -> TenantChange:
    """Returns what a request changes. Raises InvalidInput."""
    paths = set(request.update_mask.paths)
    if not paths or not paths <= {"display_name", "suspended", "retention"}:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            "update_mask: must have display_name, suspended or retention, or several of them",
            field="update_mask",
        )
    given = request.tenant
    return TenantChange(
        display_name=given.display_name if "display_name" in paths else None,
        is_suspended=given.suspended if "suspended" in paths else None,
        retention=retention(given.retention) if "retention" in paths else None,
    )


def quota(of: StoredTenant, found: Quota) -> pb.Quota:
    """Returns the quotas of a tenant as a message."""
    return pb.Quota(tenant=of.name, **{name.value: found.limit(name) for name in QuotaName})


def quota_changes(request: pb.UpdateQuotaRequest) -> dict[QuotaName, int | None]:
    """Returns the quotas that a request changes; None: to the default. Raises InvalidInput."""
    paths = set(request.update_mask.paths)
    names = {name.value: name for name in QuotaName}
    if not paths or not paths <= names.keys():
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"update_mask: must have some of {', '.join(names)}",
            field="update_mask",
        )
    given = {field.name: value for field, value in request.quota.ListFields()}
    return {names[path]: given.get(path) for path in sorted(paths)}


def new_key(request: pb.CreateApiKeyRequest) -> NewKey:
    """Returns what a key is to be."""
    given = request.api_key
    return NewKey(
        display_name=given.display_name,
        scopes=frozenset(_SCOPE_OF[scope] for scope in given.scopes),
        session_prefix=given.session_prefix,
        expires_at=given.expires_at.ToDatetime(UTC) if given.HasField("expires_at") else None,
    )


def api_key(stored: ApiKey, of: StoredTenant) -> pb.ApiKey:
    """Returns a key of a tenant as a message."""
    return message_of(
        pb.ApiKey,
        stored,
        id=stored.key_id,
        tenant=of.name,
        scopes=sorted(_SCOPES[scope] for scope in stored.scopes),
        state=_STATES[stored.state(datetime.now(UTC))],
    )


def overlap(request: pb.RotateApiKeyRequest) -> timedelta:
    """Returns how long the old key stays valid."""
    return request.overlap.ToTimedelta() if request.HasField("overlap") else OVERLAP


def erasure(stored: Erasure) -> pb.Erasure:
    """Returns an erasure as a message."""
    return message_of(
        pb.Erasure,
        stored,
        id=str(stored.erasure_id),
        kind=_KINDS[stored.kind],
        session_uid=_uid(stored.target_session),
        item_uid=_uid(stored.target_item),
        replayed=stored.is_replayed,
        removed=dict(stored.counts),
        tenant_uid=str(stored.tenant_id),
    )


def kept_out_text(stored: KeptOutText) -> pb.KeptOutText:
    """Returns a text that is kept out as a message."""
    return message_of(pb.KeptOutText, stored, erasure=stored.erasure_id)


def _uid(id: UUID | None) -> str:
    return "" if id is None else str(id)


def audit_filter(request: pb.ListAuditEventsRequest) -> AuditFilter:
    """Returns which events are listed."""
    given = request.HasField
    return AuditFilter(
        action=request.action,
        session=request.session,
        principal=request.principal,
        first_time=request.first_time.ToDatetime(UTC) if given("first_time") else None,
        last_time=request.last_time.ToDatetime(UTC) if given("last_time") else None,
    )


def audit_event(event: AuditEvent) -> pb.AuditEvent:
    """Returns an event as a message."""
    details = Struct()
    details.update(dict(event.entry.details))
    return pb.AuditEvent(
        sequence=event.sequence,
        occurred_at=timestamp(event.occurred_at),
        principal=event.principal,
        action=event.entry.action,
        session=event.entry.session,
        memory=event.entry.memory,
        target=event.entry.target,
        details=details,
        digest=event.digest,
        tenant_uid=str(event.tenant_id),
    )


def source_of(text: str) -> str:
    """Returns the source of a rule, or its beginning. Raises InvalidInput."""
    name = text.removesuffix(ANY_END)
    if ANY_END in name or not name.isprintable() or "/" in name:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            "source: must be a source, or the beginning of several with one asterisk after it",
            field="source",
        )
    return text


def source_rule(rule: SourceRule, session: str) -> pb.SourceRule:
    """Returns how much a source is trusted."""
    return pb.SourceRule(
        session="" if rule.is_tenant_wide else session,
        source=rule.source,
        trust=trust_number(rule.trust),
        quarantined=rule.is_quarantined,
        updated_at=None if rule.updated_at is None else timestamp(rule.updated_at),
    )


def quarantine_result(result: QuarantineResult) -> pb.QuarantineResult:
    """Returns what a quarantine or a release did."""
    return pb.QuarantineResult(
        session=result.session,
        source=result.source,
        trust=trust_number(result.trust),
        memories=[_quarantined(one) for one in result.memories],
    )


def _quarantined(memory: QuarantinedMemory) -> pb.QuarantineResult.Memory:
    message = pb.QuarantineResult.Memory(memory=memory.memory, pending=memory.is_pending)
    undone = memory.undone
    if undone is not None:
        message.revision = undone.revision
        message.undone_revisions = undone.undone
        message.reread_chunks = undone.reread
        message.dropped_edits = undone.dropped_edits
    return message
