"""Administration: tenants, their keys, and their audit logs."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, get_args

from google.protobuf.field_mask_pb2 import FieldMask

from palimpsest._access import (
    ApiKeyInfo,
    AuditEvent,
    AuditHead,
    CreatedApiKey,
    ErasureInfo,
    ErasureReceipt,
    KeptOutText,
    QuarantineResult,
    QuotaInfo,
    QuotaName,
    Scope,
    SourceRule,
    TenantInfo,
    api_key,
    audit_event,
    created,
    erasure,
    kept_out_text,
    quarantine_result,
    quota,
    source_rule,
    tenant,
)
from palimpsest._async._connection import Connection
from palimpsest._convert import message_of
from palimpsest._errors import AlreadyExists
from palimpsest._values_log import Retention
from palimpsest.v1 import access_service_pb2


class Access:
    """What administrators do: `client.access`. It needs a key with the scope "admin".

    An argument `tenant` names another tenant, which only administrators of the system tenant
    may do; empty, it is the client's own.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = connection.administration

    async def create_tenant(
        self,
        id: str,
        *,
        display_name: str = "",
        suspended: bool = False,
        exist_ok: bool = False,
        request_id: str = "",
    ) -> TenantInfo:
        """Creates a tenant; with `exist_ok` an existing one is returned as it is.

        Raises AlreadyExists, PermissionDenied.
        """
        made = message_of(
            access_service_pb2.Tenant, id=id, display_name=display_name, suspended=suspended
        )
        request = access_service_pb2.CreateTenantRequest(tenant=made, request_id=request_id)
        try:
            return tenant(await self._connection.call(self._stub.CreateTenant, request))
        except AlreadyExists as error:
            if not exist_ok or error.reason != "TENANT_EXISTS":
                raise
            return await self.tenant(id)

    async def tenant(self, id: str = "") -> TenantInfo:
        """Returns a tenant. Raises NotFound."""
        request = message_of(access_service_pb2.GetTenantRequest, tenant=id)
        return tenant(await self._connection.call(self._stub.GetTenant, request))

    def tenants(self) -> AsyncIterator[TenantInfo]:
        """Yields all tenants, by id."""
        request = access_service_pb2.ListTenantsRequest(page_size=1000)
        return self._connection.all_of(self._stub.ListTenants, request, "tenants", tenant)

    async def update_tenant(
        self,
        id: str,
        *,
        display_name: str | None = None,
        suspended: bool | None = None,
        retention: Retention | None = None,
        request_id: str = "",
    ) -> TenantInfo:
        """Changes the display name of a tenant, suspends it, resumes it, or says how long its
        data is kept; None leaves it.

        Calls of a suspended tenant are refused within 10 seconds. Raises NotFound, ValueError.
        """
        given = {
            "display_name": display_name,
            "suspended": suspended,
            "retention": retention,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            raise ValueError("give display_name, suspended or retention, or several of them")
        request = access_service_pb2.UpdateTenantRequest(
            tenant=message_of(access_service_pb2.Tenant, id=id, **changes),
            update_mask=FieldMask(paths=list(changes)),
            request_id=request_id,
        )
        return tenant(await self._connection.call(self._stub.UpdateTenant, request))

    async def quota(self, *, tenant: str = "") -> QuotaInfo:
        """Returns the quotas of a tenant that are in force. Raises NotFound."""
        request = message_of(access_service_pb2.GetQuotaRequest, tenant=tenant)
        return quota(await self._connection.call(self._stub.GetQuota, request))

    async def update_quota(
        self,
        changes: Mapping[QuotaName, int | None],
        *,
        tenant: str = "",
        request_id: str = "",
    ) -> QuotaInfo:
        """Sets quotas of a tenant; 0 does not limit, None returns to the service's default.

        Servers enforce them within 10 seconds. Raises NotFound, PermissionDenied, ValueError.
        """
        if not changes:
            raise ValueError(f"give some of {', '.join(get_args(QuotaName))}")
        given = {name: value for name, value in changes.items() if value is not None}
        request = access_service_pb2.UpdateQuotaRequest(
            quota=message_of(access_service_pb2.Quota, tenant=tenant, **given),
            update_mask=FieldMask(paths=list(changes)),
            request_id=request_id,
        )
        return quota(await self._connection.call(self._stub.UpdateQuota, request))

    async def create_key(
        self,
        scopes: Collection[Scope],
        *,
        tenant: str = "",
        display_name: str = "",
        session_prefix: str = "",
        expires_at: datetime | None = None,
    ) -> CreatedApiKey:
        """Creates a key, whose secret cannot be read again.

        It is not repeated when the connection is lost: list the keys then, and revoke the one
        that was never used. Raises NotFound, ResourceExhausted, ValueError.
        """
        wanted = message_of(
            access_service_pb2.ApiKey,
            scopes=scopes,
            display_name=display_name,
            session_prefix=session_prefix,
            expires_at=expires_at,
        )
        request = message_of(access_service_pb2.CreateApiKeyRequest, tenant=tenant, api_key=wanted)
        method = self._stub.CreateApiKey
        return created(await self._connection.call(method, request, retry=False))

    def keys(self, *, tenant: str = "") -> AsyncIterator[ApiKeyInfo]:
        """Yields all keys from the oldest; expired and revoked ones as well."""
        request = message_of(access_service_pb2.ListApiKeysRequest, tenant=tenant, page_size=1000)
        return self._connection.all_of(self._stub.ListApiKeys, request, "api_keys", api_key)

    async def rotate_key(
        self,
        id: str,
        *,
        tenant: str = "",
        overlap: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> CreatedApiKey:
        """Creates a key with the scopes and sessions of another.

        The old key expires after the overlap: up to 30 days, None: 24 hours. Without
        `expires_at` the new key lives as long as the old one did. As `create_key` it is not
        repeated. Raises NotFound, ResourceExhausted.
        """
        request = message_of(
            access_service_pb2.RotateApiKeyRequest,
            tenant=tenant,
            api_key=id,
            overlap=overlap,
            expires_at=expires_at,
        )
        method = self._stub.RotateApiKey
        return created(await self._connection.call(method, request, retry=False))

    async def revoke_key(self, id: str, *, tenant: str = "", request_id: str = "") -> ApiKeyInfo:
        """Revokes a key for good; no server accepts it after 10 seconds. Raises NotFound."""
        request = message_of(
            access_service_pb2.RevokeApiKeyRequest,
            tenant=tenant,
            api_key=id,
            request_id=request_id,
        )
        return api_key(await self._connection.call(self._stub.RevokeApiKey, request))

    async def delete_tenant(
        self, id: str, *, reason: str = "", request_id: str = ""
    ) -> ErasureInfo:
        """Deletes a tenant with all that it has; workers remove the rows.

        Its erasures and its audit log stay, under its `tenant_uid`. Raises NotFound,
        PermissionDenied, and FailedPrecondition for the default and the system tenant.
        """
        request = access_service_pb2.DeleteTenantRequest(
            tenant=id, reason=reason, request_id=request_id
        )
        method = self._stub.DeleteTenant
        # A repeated one would find nothing to delete.
        return erasure(await self._connection.call(method, request, retry=bool(request_id)))

    def erasures(self, *, tenant: str = "") -> AsyncIterator[ErasureInfo]:
        """Yields what was deleted for good, from the oldest."""
        request = message_of(access_service_pb2.ListErasuresRequest, tenant=tenant, page_size=1000)
        return self._connection.all_of(self._stub.ListErasures, request, "erasures", erasure)

    async def erasure_receipt(self, id: str, *, tenant: str = "") -> ErasureReceipt:
        """Returns the receipt of an erasure.

        Raises NotFound, and FailedPrecondition until the last row is removed.
        """
        request = message_of(access_service_pb2.GetErasureReceiptRequest, tenant=tenant, erasure=id)
        found = await self._connection.call(self._stub.GetErasureReceipt, request)
        return ErasureReceipt(
            json=found.json,
            public_key=found.public_key,
            imported_sessions=tuple(found.imported_sessions),
        )

    def kept_out_texts(self, session: str) -> AsyncIterator[KeptOutText]:
        """Yields the texts that a session keeps out since they were redacted. Raises NotFound."""
        request = message_of(
            access_service_pb2.ListKeptOutTextsRequest, session=session, page_size=1000
        )
        return self._connection.all_of(self._stub.ListKeptOutTexts, request, "texts", kept_out_text)

    async def allow_text(self, session: str, id: str, *, request_id: str = "") -> KeptOutText:
        """Lets a text in again, from the next append on. Raises NotFound."""
        request = message_of(
            access_service_pb2.AllowTextRequest, session=session, id=id, request_id=request_id
        )
        return kept_out_text(await self._connection.call(self._stub.AllowText, request))

    def audit_events(
        self,
        *,
        tenant: str = "",
        action: str = "",
        session: str = "",
        principal: str = "",
        first_time: datetime | None = None,
        last_time: datetime | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[AuditEvent]:
        """Yields what was administered, edited by hand and deleted.

        `action` is one, or the beginning of several, such as "key.". Without filters, and oldest
        first, the events are the whole chain: `AuditEvent.follows` checks each.
        """
        request = message_of(
            access_service_pb2.ListAuditEventsRequest,
            tenant=tenant,
            action=action,
            session=session,
            principal=principal,
            first_time=first_time,
            last_time=last_time,
            newest_first=newest_first,
            page_size=1000,
        )
        method = self._stub.ListAuditEvents
        return self._connection.all_of(method, request, "events", audit_event)

    async def audit_head(self, *, tenant: str = "") -> AuditHead:
        """Returns the end of the audit log."""
        request = message_of(access_service_pb2.ListAuditEventsRequest, tenant=tenant, page_size=1)
        page = await self._connection.call(self._stub.ListAuditEvents, request)
        return AuditHead(sequence=page.head, digest=page.head_digest)

    async def set_source_trust(
        self,
        source: str,
        trust: Literal["trusted", "unverified", "blocked"] | None,
        *,
        session: str = "",
        request_id: str = "",
    ) -> SourceRule:
        """Sets how much a source is trusted, in a session or in all; None removes the rule.

        `source` may be the beginning of several and an asterisk: "web:*". Raises NotFound,
        FailedPrecondition (it is quarantined), ResourceExhausted.
        """
        request = message_of(
            access_service_pb2.SetSourceTrustRequest,
            session=session,
            source=source,
            trust=trust,
            request_id=request_id,
        )
        return source_rule(await self._connection.call(self._stub.SetSourceTrust, request))

    async def sources(self, session: str = "") -> Sequence[SourceRule]:
        """Returns how much sources are trusted, in a session and in all others. Raises NotFound."""
        request = message_of(access_service_pb2.ListSourcesRequest, session=session)
        found = await self._connection.call(self._stub.ListSources, request)
        return [source_rule(one) for one in found.sources]

    async def pending_memories(self, session: str) -> Sequence[str]:
        """Returns the memories to which a quarantine or a release is not applied yet.

        Workers apply it to large ones after the call. Raises NotFound.
        """
        request = message_of(access_service_pb2.ListSourcesRequest, session=session)
        found = await self._connection.call(self._stub.ListSources, request)
        return list(found.pending_memories)

    async def quarantine_source(
        self, session: str, source: str, *, request_id: str = ""
    ) -> QuarantineResult:
        """Blocks a source of a session, and undoes what its memories derived from it.

        Raises NotFound, ResourceExhausted.
        """
        request = message_of(
            access_service_pb2.QuarantineSourceRequest,
            session=session,
            source=source,
            request_id=request_id,
        )
        return quarantine_result(await self._connection.call(self._stub.QuarantineSource, request))

    async def release_source(
        self, session: str, source: str, *, request_id: str = ""
    ) -> QuarantineResult:
        """Restores what a quarantine undid. Raises NotFound, FailedPrecondition."""
        request = message_of(
            access_service_pb2.ReleaseSourceRequest,
            session=session,
            source=source,
            request_id=request_id,
        )
        return quarantine_result(await self._connection.call(self._stub.ReleaseSource, request))
