"""The HTTP server: sockets, TLS and the limits of connections, for the ASGI application."""

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import h11
import structlog
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from service.rpc.certificates import Certificates
from service.rpc.http import wire
from service.settings.config import Limits
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest.rpc")

#: Bytes of the headers of a request, its address and a GET's message among them.
MAX_HEAD_BYTES = 64 * 1024
#: How soon changed certificate files apply.
FOLLOW_SECONDS = 1.0
#: For how long what a refused client still sends is read: closed at once, the connection would be
#: reset before the client has read why.
_LINGER_SECONDS = 1.0
#: Connections that the system accepts before this process does.
_BACKLOG = 2048
_LONG_HEAD = f"the request's head has more than {MAX_HEAD_BYTES} bytes: send a long message by POST"
_NO_REQUEST = "this is no request in HTTP/1.1: mend the client"
#: gRPC's names of what a certificate says (`CertificateVerifier`).
_URI, _COMMON_NAME = "peer_uri", "x509_common_name"


class _Protocol(H11Protocol):
    """uvicorn's connection, with a limit of time for headers and one of connections."""

    def __init__(self, *, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._incomplete: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts a connection, or closes it when there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()
            return
        peer = transport.get_extra_info("peercert")
        self.app_state = {"certificate": _properties(peer)}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Reads; the time for a head begins with its first byte, or with the connection."""
        if self._is_refused:
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            if self.conn.trailing_data[0]:
                self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what belongs to the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request in HTTP/1.1, or has too long a head; part of uvicorn's own."""
        self._is_refused = True
        # h11 has no more room, or could not read it.
        full = len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES
        status, what = (431, _LONG_HEAD) if full else (400, _NO_REQUEST)
        content = wire.dumped({"code": "invalid_argument", "message": what})
        for event in (
            h11.Response(
                status_code=status,
                headers=[
                    ("content-type", "application/json"),
                    ("content-length", str(len(content))),
                    ("cache-control", "no-store"),
                    ("connection", "close"),
                ],
            ),
            h11.Data(data=content),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._incomplete = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _await_head(self) -> None:
        if self._incomplete is None:
            self._incomplete = self.loop.call_later(
                self._limits.message_seconds, self.transport.abort
            )

    def _stop_waiting(self) -> None:
        if self._incomplete is not None:
            self._incomplete.cancel()
            self._incomplete = None


class HttpServer:
    """Serves an ASGI application at one address."""

    def __init__(self, application: Any, limits: Limits, tls: Certificates | None = None) -> None:
        self._limits = limits
        self._tls = tls
        self._state = ServerState()
        self._config = UvicornConfig(
            application,
            loop="none",
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=limits.connection_idle_seconds,
        )
        self._config.load()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self, address: str, *, requires_certificate: bool = False) -> None:
        """Serves at HOST:PORT; port 0 picks one. Raises OSError."""
        self._socket = _bound(address)
        await self._serve(requires_certificate)
        if self._tls is not None:
            self._following = asyncio.create_task(self._follow(requires_certificate))

    @property
    def url(self) -> str:
        """Returns where it is served, after `start`."""
        assert self._socket is not None, "it is started"
        host, port = self._socket.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        return f"{'http' if self._tls is None else 'https'}://{name}:{port}"

    async def stop(self, grace_seconds: float) -> None:
        """Accepts no more, and gives the calls in progress `grace_seconds` to end."""
        if self._following is not None:
            await cancel([self._following])
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_seconds)
        await cancel(self._state.tasks)
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def _serve(self, requires_certificate: bool) -> None:
        assert self._socket is not None, "it is bound"
        context = None
        if self._tls is not None:
            context = _context(self._tls, requires=requires_certificate)

        def protocol() -> asyncio.Protocol:
            return _Protocol(
                limits=self._limits, config=self._config, server_state=self._state, app_state={}
            )

        # The socket outlives servers: one with a new certificate accepts from it as well.
        self._server = await asyncio.get_running_loop().create_server(
            protocol, sock=self._socket.dup(), ssl=context, backlog=_BACKLOG
        )

    async def _follow(self, requires_certificate: bool) -> None:
        """Serves new connections with the certificate files as they are now."""
        assert self._tls is not None, "there is TLS"
        assert self._server is not None, "it serves"
        served = self._tls.current
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            current = await asyncio.to_thread(self._tls.follow)
            if current is served:
                continue
            before = self._server
            try:
                await self._serve(requires_certificate)
            except OSError as error:
                # The files have changed once more since they were checked: the next look tries.
                _log.warning("the new certificate is not served yet", cause=str(error))
                continue
            before.close()
            served = current


def _bound(address: str) -> socket.socket:
    """Returns a listening socket. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    family, kind, _, _, found = socket.getaddrinfo(
        host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(found)
    except OSError:
        made.close()
        raise
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


def _context(tls: Certificates, *, requires: bool) -> ssl.SSLContext:
    """Returns TLS 1.2 and later with the certificate of now. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if tls.current.client_ca is not None:
        context.load_verify_locations(cadata=tls.current.client_ca.decode("ascii"))
        context.verify_mode = ssl.CERT_REQUIRED if requires else ssl.CERT_OPTIONAL
    # Python reads both from files only.
    context.load_cert_chain(*tls.pair)
    return context


def _properties(peer: Mapping[str, Any] | None) -> Mapping[str, Sequence[bytes]]:
    """Returns what gRPC would of a client certificate that the connection has verified."""
    if not peer:
        return {}
    uris = [value for kind, value in peer.get("subjectAltName", ()) if kind == "URI"]
    common = [
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return {
        _URI: [one.encode() for one in uris],
        _COMMON_NAME: [one.encode() for one in common],
    }
