"""AccessService."""

from datetime import UTC, datetime
from uuid import UUID

from palimpsest.v1 import access_service_pb2 as pb
from palimpsest.v1 import access_service_pb2_grpc
from service.domain.log.receipts import to_json
from service.rpc.convert import access as convert
from service.rpc.convert.common import retention, trust_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.access.audit_log import AuditLog
from service.usecases.access.erasures import Erasures
from service.usecases.access.kept_out import KeptOutTexts
from service.usecases.access.keys import Keys
from service.usecases.access.quotas import Quotas
from service.usecases.access.sources import Sources
from service.usecases.access.tenants import Tenants


class AccessService(access_service_pb2_grpc.AccessServiceServicer):
    """See access_service.proto."""

    def __init__(
        self,
        tenants: Tenants,
        keys: Keys,
        quotas: Quotas,
        audit_log: AuditLog,
        erasures: Erasures,
        kept_out: KeptOutTexts,
        sources: Sources,
        pages: Pages,
    ) -> None:
        self._tenants = tenants
        self._keys = keys
        self._quotas = quotas
        self._audit_log = audit_log
        self._erasures = erasures
        self._kept_out = kept_out
        self._sources = sources
        self._pages = pages

    async def CreateTenant(  # noqa: N802 - named by the proto
        self, request: pb.CreateTenantRequest, context: Context
    ) -> pb.Tenant:
        """Creates a tenant."""
        created = self._tenants.create(
            request.tenant.id,
            display_name=request.tenant.display_name,
            is_suspended=request.tenant.suspended,
            retention=retention(request.tenant.retention),
        )
        return await reply(created, convert.tenant)

    async def GetTenant(  # noqa: N802
        self, request: pb.GetTenantRequest, context: Context
    ) -> pb.Tenant:
        """Returns a tenant."""
        return convert.tenant(await self._tenants.target(request.tenant))

    async def ListTenants(  # noqa: N802
        self, request: pb.ListTenantsRequest, context: Context
    ) -> pb.ListTenantsResponse:
        """Lists tenants."""
        after = self._pages.cursor("tenants", request.page_token, first="")
        size = self._pages.size(request.page_size)
        found = await self._tenants.page(after, size + 1)
        page, token = self._pages.cut(
            [convert.tenant(one) for one in found[:size]],
            "tenants",
            lambda one: one.id,
            more=len(found) > size,
        )
        return pb.ListTenantsResponse(tenants=page, next_page_token=token)

    async def UpdateTenant(  # noqa: N802
        self, request: pb.UpdateTenantRequest, context: Context
    ) -> pb.Tenant:
        """Updates, suspends or resumes a tenant."""
        updated = self._tenants.update(request.tenant.id, convert.tenant_change(request))
        return await reply(updated, convert.tenant)

    async def GetQuota(  # noqa: N802
        self, request: pb.GetQuotaRequest, context: Context
    ) -> pb.Quota:
        """Returns the quotas of a tenant."""
        return convert.quota(*await self._quotas.get(request.tenant))

    async def UpdateQuota(  # noqa: N802
        self, request: pb.UpdateQuotaRequest, context: Context
    ) -> pb.Quota:
        """Sets quotas of a tenant."""
        changes = convert.quota_changes(request)
        updated = self._quotas.update(request.quota.tenant, changes)
        return await reply(updated, lambda found: convert.quota(*found))

    async def DeleteTenant(  # noqa: N802
        self, request: pb.DeleteTenantRequest, context: Context
    ) -> pb.Erasure:
        """Deletes a tenant."""
        deleted = self._erasures.delete_tenant(request.tenant, request.reason)
        return await reply(deleted, convert.erasure)

    async def ListErasures(  # noqa: N802
        self, request: pb.ListErasuresRequest, context: Context
    ) -> pb.ListErasuresResponse:
        """Lists erasures."""
        scope = f"erasures/{request.tenant}"
        size = self._pages.size(request.page_size)
        cursor = self._pages.cursor(scope, request.page_token, first="")
        after = None
        if cursor:
            requested_at, _, erasure_id = cursor.partition(" ")
            after = datetime.fromisoformat(requested_at), UUID(erasure_id)
        found = await self._erasures.page(request.tenant, after, size + 1)
        times = {str(one.erasure_id): one.requested_at.isoformat() for one in found.erasures}
        page, token = self._pages.cut(
            [convert.erasure(one) for one in found.erasures[:size]],
            scope,
            lambda one: f"{times[one.id]} {one.id}",
            more=len(found.erasures) > size,
        )
        return pb.ListErasuresResponse(
            erasures=page, next_page_token=token, public_key=found.public_key
        )

    async def GetErasureReceipt(  # noqa: N802
        self, request: pb.GetErasureReceiptRequest, context: Context
    ) -> pb.ErasureReceipt:
        """Returns the receipt of an erasure."""
        receipt, imported = await self._erasures.receipt(request.tenant, request.erasure)
        return pb.ErasureReceipt(
            json=to_json(receipt), public_key=receipt.public_key, imported_sessions=imported
        )

    async def ListKeptOutTexts(  # noqa: N802
        self, request: pb.ListKeptOutTextsRequest, context: Context
    ) -> pb.ListKeptOutTextsResponse:
        """Lists the texts that a session keeps out."""
        scope = f"kept-out/{request.session}"
        size = self._pages.size(request.page_size)
        found = await self._kept_out.page(
            current_tenant(),
            request.session,
            self._pages.cursor(scope, request.page_token, first=""),
            size + 1,
        )
        page, token = self._pages.cut(
            [convert.kept_out_text(one) for one in found[:size]],
            scope,
            lambda one: one.id,
            more=len(found) > size,
        )
        return pb.ListKeptOutTextsResponse(texts=page, next_page_token=token)

    async def AllowText(  # noqa: N802
        self, request: pb.AllowTextRequest, context: Context
    ) -> pb.KeptOutText:
        """Lets a text in that a session keeps out."""
        allowed = self._kept_out.allow(current_tenant(), request.session, request.id)
        return await reply(allowed, convert.kept_out_text)

    async def CreateApiKey(  # noqa: N802
        self, request: pb.CreateApiKeyRequest, context: Context
    ) -> pb.CreateApiKeyResponse:
        """Creates a key."""
        of, (made, text) = await self._keys.create(request.tenant, convert.new_key(request))
        return pb.CreateApiKeyResponse(api_key=convert.api_key(made, of), key=text.text)

    async def ListApiKeys(  # noqa: N802
        self, request: pb.ListApiKeysRequest, context: Context
    ) -> pb.ListApiKeysResponse:
        """Lists keys."""
        scope = f"keys/{request.tenant}"
        size = self._pages.size(request.page_size)
        cursor = self._pages.cursor(scope, request.page_token, first="")
        after = None
        if cursor:
            created_at, _, key_id = cursor.partition(" ")
            after = datetime.fromisoformat(created_at), key_id
        of, found = await self._keys.page(request.tenant, after, size + 1)
        times = {one.key_id: one.created_at.astimezone(UTC).isoformat() for one in found}
        page, token = self._pages.cut(
            [convert.api_key(one, of) for one in found[:size]],
            scope,
            lambda one: f"{times[one.id]} {one.id}",
            more=len(found) > size,
        )
        return pb.ListApiKeysResponse(api_keys=page, next_page_token=token)

    async def RotateApiKey(  # noqa: N802
        self, request: pb.RotateApiKeyRequest, context: Context
    ) -> pb.CreateApiKeyResponse:
        """Creates a key in place of another."""
        ends = request.expires_at.ToDatetime(UTC) if request.HasField("expires_at") else None
        of, (made, text) = await self._keys.rotate(
            request.tenant, request.api_key, overlap=convert.overlap(request), expires_at=ends
        )
        return pb.CreateApiKeyResponse(api_key=convert.api_key(made, of), key=text.text)

    async def RevokeApiKey(  # noqa: N802
        self, request: pb.RevokeApiKeyRequest, context: Context
    ) -> pb.ApiKey:
        """Revokes a key."""
        revoked = self._keys.revoke(request.tenant, request.api_key)
        return await reply(revoked, lambda found: convert.api_key(found[1], found[0]))

    async def SetSourceTrust(  # noqa: N802
        self, request: pb.SetSourceTrustRequest, context: Context
    ) -> pb.SourceRule:
        """Sets how much a source is trusted."""
        source, level = convert.source_of(request.source), trust_of(request.trust)
        done = self._sources.set_trust(current_tenant(), request.session, source, level)
        return await reply(done, lambda rule: convert.source_rule(rule, request.session))

    async def ListSources(  # noqa: N802
        self, request: pb.ListSourcesRequest, context: Context
    ) -> pb.ListSourcesResponse:
        """Lists how much sources are trusted."""
        found = await self._sources.rules(current_tenant(), request.session)
        return pb.ListSourcesResponse(
            sources=[convert.source_rule(one, request.session) for one in found.rules],
            pending_memories=found.pending_memories,
        )

    async def QuarantineSource(  # noqa: N802
        self, request: pb.QuarantineSourceRequest, context: Context
    ) -> pb.QuarantineResult:
        """Blocks a source, and undoes what came from it."""
        source = convert.source_of(request.source)
        done = self._sources.quarantine(current_tenant(), request.session, source)
        return await reply(done, convert.quarantine_result)

    async def ReleaseSource(  # noqa: N802
        self, request: pb.ReleaseSourceRequest, context: Context
    ) -> pb.QuarantineResult:
        """Ends a quarantine."""
        source = convert.source_of(request.source)
        done = self._sources.release(current_tenant(), request.session, source)
        return await reply(done, convert.quarantine_result)

    async def ListAuditEvents(  # noqa: N802
        self, request: pb.ListAuditEventsRequest, context: Context
    ) -> pb.ListAuditEventsResponse:
        """Lists what was done."""
        wanted = convert.audit_filter(request)
        scope = f"audit/{request.tenant}/{wanted!r}/{request.newest_first}"
        size = self._pages.size(request.page_size)
        found = await self._audit_log.page(
            request.tenant,
            wanted,
            after=int(self._pages.cursor(scope, request.page_token, first="0")),
            newest_first=request.newest_first,
            limit=size + 1,
        )
        page, token = self._pages.cut(
            [convert.audit_event(one) for one in found.events[:size]],
            scope,
            lambda one: str(one.sequence),
            more=len(found.events) > size,
        )
        return pb.ListAuditEventsResponse(
            events=page,
            next_page_token=token,
            head=found.head,
            head_digest=found.head_digest,
        )
