"""The service of the Connect conformance suite, by our own HTTP server and interceptors."""

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from urllib.parse import parse_qs

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from service.rpc.certificates import Certificates
from service.rpc.http.application import Application, for_browsers
from service.rpc.http.server import HttpServer
from service.rpc.pipeline import chain, wrapped
from service.settings.config import Config, Limits

SERVICE = "connectrpc.conformance.v1.ConformanceService"
#: gRPC's codes by their numbers.
CODES = {one.value[0]: one for one in grpc.StatusCode}
HeaderPairs = Sequence[tuple[str, str]]


class ConformanceService:
    """Does what the suite's requests say: sends what they ask for, and what it was sent."""

    def __init__(self, pb: Any) -> None:
        """`pb`: the module of the suite's service.proto."""
        self._pb = pb

    async def unary(self, request: Any, context: Any) -> Any:
        """Serves Unary and IdempotentUnary."""
        asked = request.response_definition
        await _metadata(asked, context)
        await asyncio.sleep(asked.response_delay_ms / 1000)
        info = self._info(request, context)
        if asked.HasField("error"):
            await _abort(asked.error, context, info)
        name = type(request).__name__.replace("Request", "Response")
        payload = self._pb.ConformancePayload(data=asked.response_data, request_info=info)
        return getattr(self._pb, name)(payload=payload)

    async def server_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Serves ServerStream."""
        asked = request.response_definition
        await _metadata(asked, context)
        info = self._info(request, context)
        for number, data in enumerate(asked.response_data):
            await asyncio.sleep(asked.response_delay_ms / 1000)
            payload = self._pb.ConformancePayload(data=data)
            if number == 0:
                payload.request_info.CopyFrom(info)
            yield self._pb.ServerStreamResponse(payload=payload)
        if asked.HasField("error"):
            await _abort(asked.error, context, None if asked.response_data else info)

    def _info(self, request: Message, context: Any) -> Any:
        """Returns what the server has seen of a request."""
        info = self._pb.ConformancePayload.RequestInfo()
        info.request_headers.extend(self._headers(context.invocation_metadata()))
        packed = info.requests.add()
        packed.Pack(request)
        if deadline := context.header("connect-timeout-ms"):
            info.timeout_ms = int(deadline)
        scope = context._scope  # The service reads nothing of it; the suite asks for it.
        if scope["method"] == "GET":
            for name, values in parse_qs(scope["query_string"].decode()).items():
                info.connect_get_info.query_params.add(name=name, value=values)
        return info

    def _headers(self, pairs: Iterable[tuple[str, str]]) -> Iterable[Any]:
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return (self._pb.Header(name=name, value=values) for name, values in found.items())


def handlers(pb: Any) -> Mapping[str, Any]:
    """Returns what serves the methods; the one that is to be unknown is."""
    service = ConformanceService(pb)
    unary: Any = grpc.unary_unary_rpc_method_handler(service.unary)
    return {
        f"/{SERVICE}/Unary": unary,
        f"/{SERVICE}/IdempotentUnary": unary,
        f"/{SERVICE}/ServerStream": grpc.unary_stream_rpc_method_handler(service.server_stream),
    }


@asynccontextmanager
async def suite_servers(modules: Path, at: Path) -> AsyncIterator[None]:
    """Serves a server to each connection to the socket `at`, until that closes.

    The suite waits ten seconds for each of its servers; a process of ours may need them to begin.
    """
    sys.path.insert(0, str(modules))
    try:
        pb = import_module("connectrpc.conformance.v1.service_pb2")
        compat = import_module("connectrpc.conformance.v1.server_compat_pb2")
    finally:
        sys.path.remove(str(modules))

    async def started(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = compat.ServerCompatRequest.FromString(await _framed(reader))
        async with _serving(pb, asked) as port:
            said = compat.ServerCompatResponse(host="127.0.0.1", port=port)
            if asked.use_tls:
                said.pem_cert = asked.server_creds.cert
            content = said.SerializeToString()
            writer.write(struct.pack(">I", len(content)) + content)
            await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(started, at):
        yield


@asynccontextmanager
async def _serving(pb: Any, asked: Any) -> AsyncIterator[int]:
    """Yields the port of a server as the suite asks for it."""
    limits = Limits()
    if asked.message_receive_limit:
        limits = Limits(max_message_bytes=asked.message_receive_limit)
    # No method of the suite needs the database.
    methods = wrapped(handlers(pb), chain(limits, cast("Any", None)))
    application = Application(methods, limits)
    with TemporaryDirectory() as folder:
        tls = _certificates(asked, Path(folder))
        server = HttpServer(for_browsers(application, ()), limits, tls)
        await server.start("127.0.0.1:0", requires_certificate=bool(asked.client_tls_cert))
        try:
            yield int(server.url.rpartition(":")[2])
        finally:
            await server.stop(0)


async def _framed(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(size)


def _certificates(asked: Any, folder: Path) -> Certificates | None:
    if not asked.use_tls:
        return None
    files = {"cert": asked.server_creds.cert, "key": asked.server_creds.key}
    settings: dict[str, Any] = {
        "tls_certificate_file": folder / "cert",
        "tls_key_file": folder / "key",
    }
    if asked.client_tls_cert:
        files["ca"] = asked.client_tls_cert
        settings["tls_client_ca_file"] = folder / "ca"
    for name, content in files.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)
    return Certificates(Config.model_validate(settings))


async def _metadata(asked: Any, context: Any) -> None:
    context.set_trailing_metadata(_pairs(asked.response_trailers))
    await context.send_initial_metadata(_pairs(asked.response_headers))


def _pairs(headers: Iterable[Any]) -> HeaderPairs:
    return [(one.name.lower(), value) for one in headers for value in one.value]


async def _abort(error: Any, context: Any, info: Message | None) -> None:
    details = list(error.details)
    if info is not None:
        packed = AnyMessage()
        packed.Pack(info)
        details.append(packed)
    status = Status(code=error.code, message=error.message, details=details)
    trailing = [("grpc-status-details-bin", status.SerializeToString())]
    await context.abort(CODES[error.code], error.message, trailing)
