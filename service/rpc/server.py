"""The gRPC server: services, interceptors, health and reflection."""

import logging
from collections.abc import Sequence

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.rpc.interceptors.base import Around
from service.rpc.pipeline import REGISTER, Services
from service.settings.config import Limits

#: Calls that may wait within gRPC until this process takes them, at least.
_PENDING_CALLS = 10_000
#: Names of the standard health service beside those of our services. READY, as "" and as each
#: service, follows the database; LIVE does not: restarting a server does not restore it.
READY = "palimpsest.ready"
LIVE = "palimpsest.live"


class _WithoutHeaders(logging.Filter):
    """Drops gRPC's lines about headers that are not UTF-8: they have the header, or a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line is logged."""
        return not str(record.msg).startswith("Invalid encoding")


logging.getLogger("grpc._cython.cygrpc").addFilter(_WithoutHeaders())


def _options(limits: Limits) -> Sequence[tuple[str, int]]:
    pending = max(_PENDING_CALLS, 2 * limits.max_calls)
    return (
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_concurrent_streams", limits.max_connection_calls),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", limits.client_ping_seconds * 1000),
        # A client that has vanished is noticed within these two.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_connection_age_ms", limits.connection_seconds * 1000),
        ("grpc.max_connection_age_grace_ms", limits.connection_grace_seconds * 1000),
        ("grpc.max_connection_idle_ms", limits.connection_idle_seconds * 1000),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        # Beyond these numbers gRPC answers a bare CANCELLED; our own limits give reasons.
        ("grpc.server.max_pending_requests", pending),
        ("grpc.server.max_pending_requests_hard_limit", 2 * pending),
        # Without it windows stay at 64 KiB until a message is read; with it they grow to MiBs.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.so_reuseport", 0),
    )


class Server:
    """A gRPC server that is not started yet."""

    def __init__(
        self,
        services: Services,
        limits: Limits,
        interceptors: Sequence[Around],
        *,
        reflects: bool = False,
    ) -> None:
        """`reflects`: whether it offers server reflection."""
        self._server = aio.server(interceptors=interceptors, options=_options(limits))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        ours = []
        for field, (register, descriptor) in REGISTER.items():
            register(getattr(services, field), self._server)
            ours.append(descriptor.full_name)
        own = [health.SERVICE_NAME, *([reflection.SERVICE_NAME] if reflects else ())]
        if reflects:
            reflection.enable_server_reflection([*own, *ours], self._server)
        #: What has a health of its own: what needs the database, and what does not.
        self._ready_names = ["", READY, *ours]
        self._live_names = [LIVE, *own]
        self._stopping = False

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Adds an address, HOST:PORT (port 0 picks one) or unix:PATH, before the server starts.

        Returns the port. Without `credentials` there is no TLS. Raises RuntimeError.
        """
        if credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, credentials)

    async def start(self) -> None:
        """Serves at the addresses. Its health is unknown until `set_ready` is called."""
        await self._server.start()
        for name in self._live_names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def set_ready(self, ready: bool) -> None:
        """Reports to health checks and watches whether calls can be served.

        A server that stops stays not ready.
        """
        serves = ready and not self._stopping
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if serves else response.NOT_SERVING
        for name in self._ready_names:
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        """Accepts no new calls, and gives those in progress `grace_seconds` to end."""
        self._stopping = True
        await self.set_ready(False)
        await self._server.stop(grace_seconds)
