"""Verifies the credentials of each call, before its messages are read, and of streams again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol

import grpc
from google.protobuf import descriptor_pool

from palimpsest.v1 import rules_pb2
from service.domain.access.credentials import Credentials as Credentials
from service.domain.access.identity import (
    LOCAL_IDENTITY,
    Identity,
    Scope,
    current_identity,
    set_identity,
)
from service.domain.values.errors import PalimpsestError, PermissionDenied, Unauthenticated
from service.domain.values.reasons import Reason
from service.rpc.interceptors.base import Around, Context, respond
from storage.engine.errors import StorageError

#: Bytes of an `authorization` header that are read; JSON Web Tokens are the longest.
MAX_TOKEN_BYTES = 8192
#: The credentials of a stream are not verified more often than once in so many seconds.
MIN_VERIFY_SECONDS = 0.1

_SCHEME = "bearer"
#: What resumes a suspended tenant, and finds it.
_OF_TENANTS = frozenset(
    f"/palimpsest.v1.AccessService/{name}" for name in ("GetTenant", "ListTenants", "UpdateTenant")
)


class CredentialVerifier(Protocol):
    """Verifies one kind of credentials."""

    async def verify(self, credentials: Credentials) -> Identity | None:
        """Returns the identity; None for credentials of another kind.

        Raises Unauthenticated, PermissionDenied, Unavailable, Exhausted.
        """


class UnverifiedAccess(Protocol):
    """Decides about calls of a server that requires no authentication."""

    async def identity(self, token: str, *, administers: bool) -> Identity:
        """Returns the identity. Raises Unauthenticated, PermissionDenied, Exhausted, StorageError.

        `administers`: whether the call resumes tenants, or finds them.
        """


class Authentication(Around):
    """Sets the identity of each call of our own services, and checks the method's scope.

    A stream ends once its credentials are not valid any more; other calls are short. Health checks
    and reflection are open.
    """

    def __init__(
        self,
        verifiers: Sequence[CredentialVerifier] = (),
        *,
        required: bool = False,
        seconds: float = 10.0,
        unverified: UnverifiedAccess | None = None,
    ) -> None:
        """`required`: whether a call without credentials is refused, not served as local.

        `seconds`: how often the credentials of a stream are verified again.
        `unverified`: decides about calls where none are required; None serves all of them.
        """
        super().__init__()
        self._verifiers = tuple(verifiers)
        self._required = required
        self._seconds = max(seconds, MIN_VERIFY_SECONDS)
        self._unverified = unverified

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Sets what `current_identity` returns. Raises Unauthenticated, PermissionDenied."""
        if _is_ours(method):
            identity = await self._identity(method, context)
            # Before the check, so that what reports the refusal has its tenant.
            set_identity(identity)
            identity.require(required_scope(method))
        yield

    def wrap(self, method: str, handler: Any) -> Any:
        """Also verifies the credentials of streams while they are open."""
        verifies = self._required or self._unverified is not None
        if verifies and handler.response_streaming and _is_ours(method):
            handler = self._watched(method, handler)
        return super().wrap(method, handler)

    def _watched(self, method: str, handler: Any) -> Any:
        """Returns the handler of a stream that ends once its credentials are not valid."""
        streams_in = handler.request_streaming
        inner = handler.stream_stream if streams_in else handler.unary_stream

        async def streaming(request: Any, context: Context) -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch(method, context))
                    await respond(inner(request, context), context)
                    watching.cancel()
            except BaseExceptionGroup as ended:
                # The first has ended the other one.
                first = ended.exceptions[0]
                raise first from first.__cause__

        wrap = (
            grpc.stream_stream_rpc_method_handler
            if streams_in
            else grpc.unary_stream_rpc_method_handler
        )
        return wrap(streaming, handler.request_deserializer, handler.response_serializer)

    async def _watch(self, method: str, context: Context) -> None:
        """Verifies the credentials of a call until cancelled.

        Raises Unauthenticated, PermissionDenied.
        """
        tenant_id = current_identity().tenant_id
        while True:
            await asyncio.sleep(self._seconds)
            try:
                identity = await self._identity(method, context)
            except (Unauthenticated, PermissionDenied):
                raise
            except (PalimpsestError, StorageError):
                # The database or the issuer is away: what was verified before is trusted.
                continue
            identity.require(required_scope(method))
            if identity.tenant_id != tenant_id:
                raise Unauthenticated(
                    Reason.CREDENTIALS_INVALID,
                    "the tenant was deleted, and there is another one of its name: call again",
                    {"cause": "tenant"},
                )

    async def check(self, context: Context) -> None:
        """Verifies the credentials of a request that is no call of a method, but may make some.

        Raises Unauthenticated, PermissionDenied, Unavailable, Exhausted.
        """
        await self._identity("", context)

    async def _identity(self, method: str, context: Context) -> Identity:
        if not self._required:
            return await self._local(method, context)
        token = _token(context.invocation_metadata() or ())
        # Where there is a token, certificates do not count.
        connection = {} if token else context.auth_context()
        credentials = Credentials(token=token, connection=connection)
        for verifier in self._verifiers:
            identity = await verifier.verify(credentials)
            if identity is not None:
                return identity
        if credentials.token:
            raise malformed("it is no credential that this server knows")
        raise Unauthenticated(
            Reason.CREDENTIALS_MISSING,
            "this server requires authentication: send a key as `authorization: Bearer pk_…`, or"
            " name a file with it by PALIMPSEST_TOKEN_FILE",
        )

    async def _local(self, method: str, context: Context) -> Identity:
        if self._unverified is None:
            return LOCAL_IDENTITY
        token = _sent_token(context.invocation_metadata() or ())
        return await self._unverified.identity(token, administers=method in _OF_TENANTS)


def _sent_token(metadata: Any) -> str:
    """Returns the token of a call that needs none; empty where it is of another form."""
    try:
        return _token(metadata)
    except Unauthenticated:
        return ""


def _is_ours(method: str) -> bool:
    return method.startswith("/palimpsest.")


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
