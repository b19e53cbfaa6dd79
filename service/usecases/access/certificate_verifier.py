"""Verifies client certificates, which the connection has checked already."""

from collections.abc import Sequence
from urllib.parse import unquote

from service.domain.access.credentials import Credentials
from service.domain.access.identity import Identity, Scope
from service.domain.values.errors import Unauthenticated
from service.domain.values.reasons import Reason
from service.usecases.access.tenant_directory import TenantDirectory

#: What the URI of a certificate begins with that names a tenant.
SCHEME = "palimpsest:"
#: Characters of a principal.
MAX_PRINCIPAL = 256

#: gRPC's names of what it has read of a certificate, once it has verified that.
_URI = "peer_uri"
_COMMON_NAME = "x509_common_name"


class CertificateVerifier:
    """Verifies calls without a token of connections with a client certificate.

    The certificate names its tenant by a URI `palimpsest:TENANT` among its subject alternative
    names. Its common name says who it is, and nothing of the tenant: an authority that has other
    purposes as well chooses common names freely.
    """

    def __init__(self, tenants: TenantDirectory, scopes: Sequence[Scope]) -> None:
        self._tenants = tenants
        self._scopes = frozenset(scopes)

    async def verify(self, credentials: Credentials) -> Identity | None:
        """Returns the identity of a certificate; None without one that names a tenant.

        Raises Unauthenticated, PermissionDenied (suspended), Exhausted, StorageError.
        """
        if credentials.token:
            return None
        uris = [_text(one) for one in credentials.connection.get(_URI, ())]
        named = [one.removeprefix(SCHEME) for one in uris if one.startswith(SCHEME)]
        if not named:
            return None
        if len(named) > 1:
            raise Unauthenticated(
                Reason.CREDENTIALS_INVALID,
                f"the certificate names {len(named)} tenants: use one that names one",
                {"cause": "tenant"},
            )
        common = [_text(one) for one in credentials.connection.get(_COMMON_NAME, ())]
        name = next((one for one in common if one and one.isprintable()), named[0])
        return await self._tenants.identity(
            unquote(named[0]), principal=f"cert:{name}"[:MAX_PRINCIPAL], scopes=self._scopes
        )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
