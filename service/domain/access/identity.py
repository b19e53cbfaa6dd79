"""The identity of a call: its tenant, its principal, and what its credentials allow."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from service.domain.values.errors import PermissionDenied
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT


class Scope(StrEnum):
    """What credentials allow: the proto's Scope. None includes another."""

    READ = "read"
    APPEND = "append"
    ASK = "ask"
    EDIT = "edit"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)

#: The principal of calls to a server that requires no authentication.
LOCAL = "local"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The verified origin of a call."""

    tenant_id: UUID
    #: `key:<id>`, `jwt:<subject>`, `cert:<name>` or `local`; at most 256 characters.
    principal: str
    scopes: frozenset[Scope]
    #: What the ids of sessions have to begin with; empty allows all.
    session_prefix: str = ""

    def require(self, scope: Scope) -> None:
        """Raises PermissionDenied without the scope."""
        if scope not in self.scopes:
            granted = ", ".join(one for one in Scope if one in self.scopes) or "none"
            raise PermissionDenied(
                Reason.SCOPE_MISSING,
                f"this needs the scope {scope}, and the credentials have {granted}: use a key that"
                " has it",
                {"scope": scope},
            )

    def allows_session(self, session: str) -> bool:
        """Returns whether a session of this id may be used."""
        return session.startswith(self.session_prefix)

    def require_session(self, session: str) -> None:
        """Raises PermissionDenied for a session that is not allowed."""
        if not self.allows_session(session):
            raise self.session_refused()

    def session_refused(self) -> PermissionDenied:
        """Returns the error of a call about other sessions than those that are allowed."""
        return PermissionDenied(
            Reason.SESSION_NOT_ALLOWED,
            "these credentials are limited to sessions whose ids begin with"
            f" {self.session_prefix!r}: name one of those, or use another key",
            {"session_prefix": self.session_prefix},
        )


#: The identity of servers that require no authentication.
LOCAL_IDENTITY = Identity(tenant_id=DEFAULT_TENANT, principal=LOCAL, scopes=ALL_SCOPES)

_current: ContextVar[Identity] = ContextVar("palimpsest_identity")


def set_identity(identity: Identity) -> None:
    """Makes it the identity of the current call, and of the tasks that it starts."""
    _current.set(identity)


@contextmanager
def acting_as(identity: Identity) -> Iterator[None]:
    """Makes it the identity of what runs within."""
    token = _current.set(identity)
    try:
        yield
    finally:
        _current.reset(token)


def current_identity() -> Identity:
    """Returns the identity of the current call. Raises LookupError outside of calls."""
    return _current.get()


def tenant_mark() -> str:
    """Returns what distinguishes the tenant of the current call in tokens.

    Empty for the default tenant, and outside of calls: its tokens look as in earlier releases.
    """
    identity = _current.get(None)
    if identity is None or identity.tenant_id == DEFAULT_TENANT:
        return ""
    return f"#{identity.tenant_id.hex}"


def may_use_session(session: str) -> bool:
    """Returns whether the current call may use a session; True outside of calls."""
    identity = _current.get(None)
    return identity is None or identity.allows_session(session)


def current_principal(default: str) -> str:
    """Returns the principal of the current call; `default` outside of calls."""
    identity = _current.get(None)
    return default if identity is None else identity.principal
