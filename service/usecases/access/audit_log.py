"""Reads the audit log of a tenant."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.access.audit import AuditEvent
from service.usecases.access.tenants import Tenants
from storage.access import audit
from storage.access.audit import AuditFilter
from storage.engine.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPage:
    """Events, and the end of the log that they are from."""

    events: Sequence[AuditEvent]
    #: Sequence and digest of the newest event.
    head: int
    head_digest: bytes


class AuditLog:
    """What administrators read of what was done."""

    def __init__(self, database: Database, tenants: Tenants) -> None:
        self._database = database
        self._tenants = tenants

    async def page(
        self, tenant: str, wanted: AuditFilter, *, after: int, newest_first: bool, limit: int
    ) -> AuditPage:
        """Returns up to `limit` events after one, as of one moment. Raises NotFound."""
        tenant_id = await self._tenants.target_id(tenant)
        async with self._database.snapshot(tenant_id, name="audit") as tx:
            events = await audit.list_events(
                tx, wanted, after=after, newest_first=newest_first, limit=limit
            )
            head, digest = await audit.head(tx)
        return AuditPage(events=events, head=head, head_digest=digest)
