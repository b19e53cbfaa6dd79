"""Verifies the credentials of each call, before its messages are read."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol

from google.protobuf import descriptor_pool

from palimpsest.v1 import rules_pb2
from service.domain.access.credentials import Credentials as Credentials
from service.domain.access.identity import LOCAL_IDENTITY, Identity, Scope, set_identity
from service.domain.values.errors import Unauthenticated
from service.domain.values.reasons import Reason
from service.rpc.interceptors.base import Around, Context

#: Bytes of an `authorization` header that are read; JSON Web Tokens are the longest.
MAX_TOKEN_BYTES = 8192

_SCHEME = "bearer"


class CredentialVerifier(Protocol):
    """Verifies one kind of credentials."""

    async def verify(self, credentials: Credentials) -> Identity | None:
        """Returns the identity; None for credentials of another kind.

        Raises Unauthenticated, PermissionDenied, Unavailable, Exhausted.
        """


class Authentication(Around):
    """Sets the identity of each call of our own services, and checks the method's scope.

    Health checks and reflection are open.
    """

    def __init__(
        self, verifiers: Sequence[CredentialVerifier] = (), *, required: bool = False
    ) -> None:
        """`required`: whether a call without credentials is refused, not served as local."""
        super().__init__()
        self._verifiers = tuple(verifiers)
        self._required = required

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Sets what `current_identity` returns. Raises Unauthenticated, PermissionDenied."""
        if method.startswith("/palimpsest."):
            identity = await self._identity(context)
            # Before the check, so that what reports the refusal has its tenant.
            set_identity(identity)
            identity.require(required_scope(method))
        yield

    async def _identity(self, context: Context) -> Identity:
        if not self._required:
            # Nothing that is sent counts: a server serves its one tenant, or verifies.
            return LOCAL_IDENTITY
        credentials = Credentials(
            token=_token(context.invocation_metadata() or ()), connection=context.auth_context()
        )
        for verifier in self._verifiers:
            identity = await verifier.verify(credentials)
            if identity is not None:
                return identity
        if credentials.token:
            raise malformed("it is no credential that this server knows")
        raise Unauthenticated(
            Reason.CREDENTIALS_MISSING,
            "this server requires authentication: send a key as `authorization: Bearer pk_…`",
        )


def malformed(what: str) -> Unauthenticated:
    """Returns the error of a token that does not have the form of any."""
    return Unauthenticated(
        Reason.CREDENTIALS_INVALID,
        f"the authorization header is not usable, since {what}: send `authorization: Bearer` and"
        " the whole key",
        {"cause": "malformed"},
    )


def _token(metadata: Any) -> str:
    """Returns the token of the `authorization` header. Raises Unauthenticated."""
    values = [value for key, value in metadata if key == "authorization"]
    if not values:
        return ""
    if len(values) > 1:
        raise malformed("there are several")
    value = values[0]
    if not isinstance(value, str) or len(value) > MAX_TOKEN_BYTES:
        raise malformed(f"it is not text of at most {MAX_TOKEN_BYTES} bytes")
    scheme, _, token = value.strip(" ").partition(" ")
    token = token.strip(" ")
    if scheme.lower() != _SCHEME or not token:
        raise malformed("it does not begin with `Bearer` and go on with a token")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise malformed("the token has characters that no token has")
    return token


@cache
def required_scope(method: str) -> Scope:
    """Returns the scope that a method of ours needs, named as on the wire."""
    name = method.strip("/").replace("/", ".")
    options = descriptor_pool.Default().FindMethodByName(name).GetOptions()
    value = options.Extensions[rules_pb2.required_scope]
    return Scope(rules_pb2.Scope.Name(value).removeprefix("SCOPE_").lower())
