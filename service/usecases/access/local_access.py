"""Serves the clients of a server without authentication, as its one tenant."""

from service.domain.access.credentials import Credentials
from service.domain.access.identity import LOCAL_IDENTITY, Identity
from service.domain.values.errors import Unauthenticated
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.access.key_verifier import KeyVerifier
from service.usecases.access.tenant_directory import TenantDirectory

_DEFAULT = "default"


class LocalAccess:
    """Refuses what a server without authentication would serve as another tenant than is meant."""

    def __init__(self, keys: KeyVerifier, directory: TenantDirectory) -> None:
        self._keys = keys
        self._directory = directory

    async def identity(self, token: str, *, administers: bool) -> Identity:
        """Returns the identity of a call, with the token that it sent; empty: none.

        Other tokens than keys of ours count for nothing: they are of a proxy, or meant for one.
        `administers`: the call is one that resumes tenants, so it is served while the tenant is
        suspended. Raises Unauthenticated, PermissionDenied (suspended), Exhausted, StorageError.
        """
        try:
            sent = await self._keys.verify(Credentials(token=token))
        except Unauthenticated as error:
            raise _refused(f"the key is not valid here ({error.message})") from error
        if sent is not None and sent.tenant_id != DEFAULT_TENANT:
            raise _refused("the key is of another tenant")
        if not administers:
            await self._directory.check_active(_DEFAULT)
        return LOCAL_IDENTITY


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(
        Reason.CREDENTIALS_INVALID,
        f"this server has no authentication and serves only the tenant {_DEFAULT!r}, and {why}:"
        " send no key (unset PALIMPSEST_TOKEN and PALIMPSEST_TOKEN_FILE), or start the server with"
        " PALIMPSEST_AUTHENTICATION=required",
        {"cause": "no_authentication"},
    )
