"""Calls by the Connect protocol, written from its specification and nothing of the service."""

import base64
import gzip
import json
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from service.rpc.http.application import GRPC_ONLY
from tests.support.access import Caller, Refused, method_named

KINDS = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (
        *(error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest),
        *(error_details_pb2.QuotaFailure, error_details_pb2.ResourceInfo),
    )
}


class RefusedOverHttp(Refused):
    """A call that ended with an error, as its JSON has it."""

    def __init__(self, error: dict[str, Any]) -> None:
        Exception.__init__(self, f"{error['code']}: {error['message']}")
        code = str(error["code"])
        self.code = "CANCELLED" if code == "canceled" else code.upper()
        self.message = str(error["message"])
        self.reason, self.metadata = "", dict[str, str]()
        self.details: list[Message] = []
        for one in error.get("details", ()):
            value = one["value"]
            kind = KINDS[one["type"]]
            content = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
            detail: Any = kind.FromString(content)
            assert json_format.ParseDict(one["debug"], kind()) == detail
            self.details.append(detail)
            if isinstance(detail, error_details_pb2.ErrorInfo):
                self.reason, self.metadata = detail.reason, dict(detail.metadata)


class HttpCaller(Caller):
    """A client with a key over HTTP; what is for gRPC alone goes there."""

    def __init__(self, caller: Caller, http: httpx.AsyncClient) -> None:
        super().__init__(caller._channel, caller.token or None)
        self._http = http
        self._headers = {"authorization": f"Bearer {caller.token}"} if caller.token else {}

    async def call(self, name: str, *requests: Message) -> Any:
        """Returns the response of a method, of a stream its first ones. Raises Refused."""
        method = method_named(name)
        path = f"/{method.containing_service.full_name}/{method.name}"
        if path in GRPC_ONLY:
            return await super().call(name, *requests)
        kind = message_factory.GetMessageClass(method.output_type)
        if method.client_streaming or method.server_streaming:
            content = b"".join(enveloped(dumped(one)) for one in requests)
            response = await self._post(path, content, "application/connect+json")
            return list(streamed(response, kind))
        response = await self._post(path, dumped(*requests), "application/json")
        if response.status_code != 200:
            raise RefusedOverHttp(response.json())
        return json_format.Parse(response.content, kind())

    async def _post(self, path: str, content: bytes, kind: str) -> httpx.Response:
        headers = {**self._headers, "content-type": kind, "connect-timeout-ms": "20000"}
        return await self._http.post(path, content=content, headers=headers)


def dumped(message: Message) -> bytes:
    """Returns a message as JSON."""
    return json_format.MessageToJson(message).encode()


def enveloped(content: bytes, flags: int = 0) -> bytes:
    """Returns an envelope of a stream."""
    return struct.pack(">BI", flags, len(content)) + content


def envelopes(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the flags and contents of the envelopes of a body."""
    while body:
        flags, size = struct.unpack(">BI", body[:5])
        content, body = body[5 : 5 + size], body[5 + size :]
        assert len(content) == size, "an envelope is cut"
        yield flags, gzip.decompress(content) if flags & 1 else content


def streamed(response: httpx.Response, kind: type[Message]) -> Iterator[Message]:
    """Yields the messages of a stream. Raises Refused."""
    if response.headers["content-type"] == "application/json":
        raise RefusedOverHttp(response.json())
    found = list(envelopes(response.content))
    for flags, content in found:
        if flags & 2:
            assert (flags, content) == found[-1], "the end is the last"
            error = json.loads(content).get("error")
            if error is not None:
                raise RefusedOverHttp(error)
            return
        yield json_format.Parse(content, kind())
    raise AssertionError("the stream has no end")


@asynccontextmanager
async def over_http(url: str, **given: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client of the API's URL."""
    async with httpx.AsyncClient(base_url=url, timeout=60, **given) as client:
        yield client
