"""Keys for tests, and calls with them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc import aio
from grpc_status import rpc_status

from palimpsest.v1 import access_service_pb2 as pb
from palimpsest.v1 import rules_pb2
from service.domain.access.identity import ALL_SCOPES
from service.domain.access.keys import NewKey
from service.usecases.access.bootstrap import create_key
from storage.engine.database import Database

ALL = [number for number in rules_pb2.Scope.values() if number]


async def operator_key(database: Database, tenant: str = "system") -> str:
    """Returns a key that is made in the database, as `palimpsest access bootstrap` does."""
    new = NewKey(display_name="", scopes=ALL_SCOPES, session_prefix="", expires_at=None)
    _, (_, text) = await create_key(database, tenant, new, max_keys=1000)
    return text.text


def serialized(message: Message) -> bytes:
    """Returns the bytes of a message of any kind."""
    return message.SerializeToString()


class Refused(Exception):
    """A call that ended with an error, with all that its client sees."""

    def __init__(self, error: aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.code = error.code().name
        self.message = error.details() or ""
        self.details: list[Message] = []
        self.reason, self.metadata = "", dict[str, str]()
        status = rpc_status.from_call(error)
        for detail in status.details if status is not None else ():
            name = detail.TypeName()
            kind = message_factory.GetMessageClass(
                descriptor_pool.Default().FindMessageTypeByName(name)
            )
            message = kind()
            detail.Unpack(message)
            self.details.append(message)
            if isinstance(message, error_details_pb2.ErrorInfo):
                self.reason, self.metadata = message.reason, dict(message.metadata)


class Caller:
    """A client with a key that calls any method by its name."""

    def __init__(self, channel: aio.Channel, token: str | None = None) -> None:
        self._channel = channel
        self.token = token or ""
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def with_token(self, token: str | None) -> "Caller":
        """Returns a client with another key on the same connection."""
        return Caller(self._channel, token)

    async def call(self, name: str, *requests: Message) -> Any:
        """Returns the response of a method, of a stream its first ones. Raises Refused."""
        method = method_named(name)
        out: Any = message_factory.GetMessageClass(method.output_type).FromString
        path = f"/{method.containing_service.full_name}/{method.name}"
        try:
            if method.client_streaming:
                stream = self._channel.stream_stream(path, serialized, out)
                return [one async for one in stream(iter(requests), metadata=self._metadata)]
            if method.server_streaming:
                server = self._channel.unary_stream(path, serialized, out)
                return [one async for one in server(*requests, metadata=self._metadata, timeout=20)]
            unary = self._channel.unary_unary(path, serialized, out)
            return await unary(*requests, metadata=self._metadata, timeout=60)
        except aio.AioRpcError as error:
            raise Refused(error) from error

    def stream(self, name: str) -> aio.StreamStreamCall[Any, Any]:
        """Opens a method that streams in both directions, for at most 20 seconds."""
        method = method_named(name)
        out: Any = message_factory.GetMessageClass(method.output_type).FromString
        path = f"/{method.containing_service.full_name}/{method.name}"
        return self._channel.stream_stream(path, serialized, out)(
            metadata=self._metadata, timeout=20
        )

    def server_stream(self, name: str, request: Message) -> aio.UnaryStreamCall[Any, Any]:
        """Opens a method that streams to its client, for at most 20 seconds."""
        method = method_named(name)
        out: Any = message_factory.GetMessageClass(method.output_type).FromString
        path = f"/{method.containing_service.full_name}/{method.name}"
        return self._channel.unary_stream(path, serialized, out)(
            request, metadata=self._metadata, timeout=20
        )

    async def tenant(self, id: str, scopes: Sequence[int] = ALL, prefix: str = "") -> "Caller":
        """Creates a tenant, unless it is there, and returns a client with a key of it."""
        try:
            await self.call("CreateTenant", pb.CreateTenantRequest(tenant=pb.Tenant(id=id)))
        except Refused as refused:
            if refused.code != "ALREADY_EXISTS":
                raise
        return self.with_token((await self.key(id, scopes, prefix)).key)

    async def key(
        self, tenant: str = "", scopes: Sequence[int] = ALL, prefix: str = ""
    ) -> pb.CreateApiKeyResponse:
        """Creates a key."""
        wanted = pb.ApiKey(scopes=scopes, session_prefix=prefix)  # type: ignore[arg-type]
        made: pb.CreateApiKeyResponse = await self.call(
            "CreateApiKey", pb.CreateApiKeyRequest(tenant=tenant, api_key=wanted)
        )
        return made


def method_named(name: str) -> Any:
    """Returns the descriptor of a method of ours."""
    from service.rpc.pipeline import REGISTER

    for _, service in REGISTER.values():
        if name in service.methods_by_name:
            return service.methods_by_name[name]
    raise KeyError(name)


@asynccontextmanager
async def connected(address: str, token: str | None = None) -> AsyncIterator[Caller]:
    """Yields a client of the service at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Caller(channel, token)
