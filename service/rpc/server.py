"""The gRPC server: services, interceptors, health and reflection."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from palimpsest.v1 import (
    access_service_pb2,
    access_service_pb2_grpc,
    answer_service_pb2,
    answer_service_pb2_grpc,
    billing_service_pb2,
    billing_service_pb2_grpc,
    memory_service_pb2,
    memory_service_pb2_grpc,
    operation_service_pb2,
    operation_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
    state_service_pb2,
    state_service_pb2_grpc,
    tree_service_pb2,
    tree_service_pb2_grpc,
)
from service.rpc.access_service import AccessService
from service.rpc.answer_service import AnswerService
from service.rpc.arrivals import Arrivals
from service.rpc.billing_service import BillingService
from service.rpc.interceptors.authentication import Authentication
from service.rpc.interceptors.concurrency_limit import ConcurrencyLimit
from service.rpc.interceptors.errors import Errors
from service.rpc.interceptors.idempotency import Idempotency
from service.rpc.interceptors.quota_limit import QuotaLimit
from service.rpc.interceptors.receiving import Receiving
from service.rpc.interceptors.session_limit import SessionLimit
from service.rpc.interceptors.telemetry import Telemetry
from service.rpc.interceptors.tracing import LogSubject, Tracing
from service.rpc.interceptors.validation import Validation
from service.rpc.memory_service import MemoryService
from service.rpc.operation_service import OperationService
from service.rpc.session_service import SessionService
from service.rpc.state_service import StateService
from service.rpc.stream_guard import StreamGuard
from service.rpc.tree_service import TreeService
from service.settings.config import Limits
from storage.engine.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """One of each service of the proto."""

    sessions: SessionService
    memories: MemoryService
    answers: AnswerService
    billing: BillingService
    trees: TreeService
    states: StateService
    operations: OperationService
    access: AccessService


#: What registers each service, and its name for health and reflection.
_REGISTER: dict[str, tuple[Callable[[Any, aio.Server], None], Any]] = {
    field: (getattr(stubs, f"add_{descriptor.name}Servicer_to_server"), descriptor)
    for field, messages, stubs in (
        ("sessions", session_service_pb2, session_service_pb2_grpc),
        ("memories", memory_service_pb2, memory_service_pb2_grpc),
        ("answers", answer_service_pb2, answer_service_pb2_grpc),
        ("billing", billing_service_pb2, billing_service_pb2_grpc),
        ("trees", tree_service_pb2, tree_service_pb2_grpc),
        ("states", state_service_pb2, state_service_pb2_grpc),
        ("operations", operation_service_pb2, operation_service_pb2_grpc),
        ("access", access_service_pb2, access_service_pb2_grpc),
    )
    for descriptor in messages.DESCRIPTOR.services_by_name.values()
}


#: Calls that may wait within gRPC until this process takes them, at least.
_PENDING_CALLS = 10_000
#: How many times fewer places the streams of overdrawn connections have than first messages.
_OVERDRAWN_SHARE = 4
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
        database: Database,
        *,
        authentication: Authentication | None = None,
        quotas: QuotaLimit | None = None,
        around: Sequence[aio.ServerInterceptor] = (),
        reflects: bool = False,
        unwritten: Callable[[], int] = lambda: 0,
    ) -> None:
        """`authentication`: None serves every client as the default tenant. `around`: more
        interceptors, inside of those here. `reflects`: whether it offers server reflection.
        `unwritten` returns the bytes of chunks that were received and wait to be written."""
        arrivals = Arrivals(
            places=limits.max_incomplete_messages,
            waiting=limits.max_calls,
            seconds=limits.message_seconds,
        )

        overdrawn = Arrivals(
            places=max(1, limits.max_incomplete_messages // _OVERDRAWN_SHARE),
            waiting=limits.max_calls,
            seconds=limits.message_seconds,
        )

        def others() -> int:
            reading = arrivals.reading + overdrawn.reading
            return reading * limits.max_message_bytes + unwritten()

        self._server = aio.server(
            # From the outside in: an outer one sees what an inner one raises.
            interceptors=(
                Tracing(),
                Telemetry(),
                Errors(),
                # Clients without credentials have no message read.
                authentication or Authentication(),
                Receiving(
                    arrivals,
                    StreamGuard(max_bytes=limits.max_incomplete_bytes, others=others),
                    overdrawn=overdrawn,
                    idle_seconds=limits.stream_idle_seconds,
                ),
                ConcurrencyLimit(limits),
                Validation(),
                SessionLimit(),
                *([quotas] if quotas is not None else ()),
                LogSubject(),
                *around,
                Idempotency(database, max_bytes=limits.max_message_bytes),
            ),
            options=_options(limits),
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        ours = []
        for field, (register, descriptor) in _REGISTER.items():
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
