"""What surrounds each call, whichever transport it comes by: one chain of interceptors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

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
from service.rpc.interceptors.base import Around
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

#: How gRPC serves a method: a named tuple of its two serializers and four kinds of functions.
Handler = Any
#: How many times fewer places the streams of overdrawn connections have than first messages.
_OVERDRAWN_SHARE = 4


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


#: What registers each service, and its descriptor.
REGISTER: dict[str, tuple[Callable[[Any, Any], None], Any]] = {
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


def chain(
    limits: Limits,
    database: Database,
    *,
    authentication: Authentication | None = None,
    quotas: QuotaLimit | None = None,
    around: Sequence[Around] = (),
    unwritten: Callable[[], int] = lambda: 0,
) -> Sequence[Around]:
    """Returns the interceptors, from the outside in: an outer one sees what an inner one raises.

    `authentication`: None serves every client as the default tenant. `around`: more interceptors,
    inside of those here. `unwritten` returns the bytes of chunks that were received and wait to be
    written.
    """
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

    return (
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
    )


def handlers(services: Services) -> Mapping[str, Handler]:
    """Returns the handler of each method of ours, by its path: /SERVICE/METHOD."""
    collected = _Collector()
    for field, (register, _) in REGISTER.items():
        register(getattr(services, field), collected)
    return collected.handlers


def wrapped(handlers: Mapping[str, Handler], around: Sequence[Around]) -> Mapping[str, Handler]:
    """Returns the handlers with the interceptors about them, for transports other than gRPC's.

    Their contexts return messages, and no bytes.
    """
    found = {}
    for path, handler in handlers.items():
        one: Handler = handler._replace(request_deserializer=_same)
        for interceptor in reversed(around):
            one = interceptor.wrap(path, one)
        found[path] = one
    return found


def credentials_check(authentication: Authentication) -> Handler:
    """Returns a handler that verifies its caller's credentials, and does nothing else."""

    async def check(_: Any, context: Any) -> None:
        await authentication.check(context)

    return Errors().wrap("", grpc.stream_unary_rpc_method_handler(check))


def _same(message: Any) -> Any:
    return message


class _Collector:
    """Takes the place of a gRPC server when services are registered."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, _: Any) -> None:
        """Ignores what `add_registered_method_handlers` adds too; part of gRPC's interface."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Handler]) -> None:
        """Adds the methods of a service; part of gRPC's interface."""
        for name, handler in methods.items():
            self.handlers[f"/{service}/{name}"] = handler
