"""Keys and tenants as they are stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from service.domain.access.identity import LOCAL, Identity, Scope
from service.domain.values.errors import NotFound, PermissionDenied
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import SYSTEM_TENANT

#: How long a rotated key stays valid, unless the client says.
OVERLAP = timedelta(hours=24)


class KeyState(StrEnum):
    """Whether a key is valid."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    """A key, without its secret."""

    tenant_id: UUID
    key_id: str
    display_name: str
    scopes: frozenset[Scope]
    session_prefix: str
    created_at: datetime
    #: A principal.
    created_by: str
    #: The key that it was rotated from; empty when it was not.
    replaces: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def state(self, now: datetime) -> KeyState:
        """Returns whether it is valid at a time."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    """What a key is to be."""

    display_name: str
    scopes: frozenset[Scope]
    session_prefix: str
    expires_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTenant:
    """A tenant that is not deleted."""

    tenant_id: UUID
    #: The id that clients know it by.
    name: str
    display_name: str
    created_at: datetime
    suspended_at: datetime | None
    #: Its policy, as service/domain/operations/retention.py stores it.
    retention: Mapping[str, int]


def is_operator(identity: Identity) -> bool:
    """Returns whether a client manages tenants, as far as its scopes allow.

    On a server that requires no authentication every client does: it may do everything else.
    """
    return identity.tenant_id == SYSTEM_TENANT or identity.principal == LOCAL


def require_operator(identity: Identity) -> None:
    """Raises PermissionDenied for administrators of other tenants."""
    if not is_operator(identity):
        raise PermissionDenied(
            Reason.SCOPE_MISSING,
            "only administrators of the system tenant manage tenants: use a key of that tenant",
            {"scope": Scope.ADMIN, "tenant": "system"},
        )


def tenant_not_found(name: str) -> NotFound:
    """Returns the error of a tenant that is unknown, or not the client's."""
    return NotFound(Reason.TENANT_NOT_FOUND, f"there is no tenant {name!r}", {"tenant": name})
