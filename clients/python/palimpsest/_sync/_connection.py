# Generated from palimpsest/_async by `make sync`; do not edit.
"""The connection to the service: its channel, and calls that are repeated if that is safe."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Unpack

from palimpsest._credentials import Access, AccessOptions
from palimpsest._errors import from_rpc
from palimpsest._sync._runtime import Channel, RpcError, open_channel, sleep
from palimpsest._transport import (
    BACKOFF_SECONDS,
    CALL_SECONDS,
    OPTIONS,
    REACH_SECONDS,
    SLACK_SECONDS,
    Backoff,
    Reach,
    deadline_of,
    headers,
    is_unbegun,
    left_seconds,
    may_pass,
    may_repeat,
    parse_target,
)
from palimpsest.v1.access_service_pb2_grpc import AccessServiceStub
from palimpsest.v1.answer_service_pb2_grpc import AnswerServiceStub
from palimpsest.v1.billing_service_pb2_grpc import BillingServiceStub
from palimpsest.v1.memory_service_pb2_grpc import MemoryServiceStub
from palimpsest.v1.operation_service_pb2_grpc import OperationServiceStub
from palimpsest.v1.session_service_pb2_grpc import SessionServiceStub
from palimpsest.v1.state_service_pb2_grpc import StateServiceStub
from palimpsest.v1.tree_service_pb2_grpc import TreeServiceStub


class Connection:
    """The connection that all objects of a client share. See `palimpsest.connect`."""

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout: float | None = None,
        reach_seconds: float = REACH_SECONDS,
        channel: Channel | None = None,
        **options: Unpack[AccessOptions],
    ) -> None:
        given = options.get("credentials") is not None
        self.address, secure = parse_target(target, has_credentials=given)
        self._timeout = timeout
        self.access: Access | None = None
        if channel is None:
            self.access = Access(self.address, secure=secure, options=options)
            channel = open_channel(
                self.address, self.access.channel, (*OPTIONS, *self.access.options)
            )
        self.channel: Channel = channel
        self.administration = AccessServiceStub(self.channel)
        self.answers = AnswerServiceStub(self.channel)
        self.billing = BillingServiceStub(self.channel)
        self.memories = MemoryServiceStub(self.channel)
        self.operations = OperationServiceStub(self.channel)
        self.sessions = SessionServiceStub(self.channel)
        self.states = StateServiceStub(self.channel)
        self.trees = TreeServiceStub(self.channel)
        self.reach = Reach(self.address, reach_seconds)
        self.closed = False

    def close(self) -> None:
        """Closes the connection."""
        self.closed = True
        self.channel.close()

    def headers(self) -> dict[str, Any]:
        """Returns the argument of a call that has its token and its trace."""
        return headers(self.access)

    def seconds(self, timeout: float | None, default: float) -> float:
        """Returns the timeout of a call: its own, else the client's, else `default`."""
        return deadline_of(self._timeout if timeout is None else timeout, default)

    def call(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout: float | None = None,
        default: float = CALL_SECONDS,
        retry: bool = True,
        broken: bool = False,
    ) -> Any:
        """Makes a unary call, and repeats it while the service is unavailable or full.

        Without `retry`, repeats it only after refusals that precede any work; with `broken`, also
        after a lost connection, which only reads and writes that are stored once allow. Raises
        ValueError for a timeout that is no number, and ConnectionFailed after `reach_seconds`
        without a first contact.
        """
        seconds = self.seconds(timeout, default)
        since = time.monotonic()
        backoff = Backoff(BACKOFF_SECONDS)
        while True:
            try:
                left = max(since + seconds - time.monotonic(), 0.001)
                response = method(request, timeout=left + SLACK_SECONDS, **self.headers())
            except RpcError as error:
                known = self.reach.failure(error)
                may = may_pass if broken else may_repeat
                again = may(known, error.code()) if retry else is_unbegun(known)
                pause = backoff.pause_seconds(known)
                until = since + self.reach.try_seconds(seconds)
                if not again or time.monotonic() + pause > until:
                    raise known from error
            else:
                self.reach.reached = True
                return response
            sleep(pause)

    def responses(
        self, method: Callable[..., Any], request: Any, *, timeout: float | None = None
    ) -> Iterator[Any]:
        """Yields the responses of a call, repeated while the service refuses to begin it.

        Without a `timeout` only the beginning is bounded. Raises RpcError.
        """
        until = time.monotonic() + (CALL_SECONDS if timeout is None else timeout)
        backoff = Backoff(BACKOFF_SECONDS)
        while True:
            left = max(until - time.monotonic(), 0.001) + SLACK_SECONDS
            call = method(request, timeout=None if timeout is None else left, **self.headers())
            try:
                for response in call:
                    self.reach.reached = True
                    yield response
                return
            except RpcError as error:
                known = self.reach.failure(error)
                pause = backoff.pause_seconds(known)
                if not is_unbegun(known) or time.monotonic() + pause > until:
                    raise
            finally:
                # Also when the caller stops before the end.
                call.cancel()
            sleep(pause)

    def stream(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """Yields the responses of a call without a deadline. Raises PalimpsestError."""
        try:
            for response in self.responses(method, request):
                yield response
        except RpcError as error:
            raise from_rpc(error, self.address) from error

    def pages(
        self, method: Callable[..., Any], request: Any, *, until: float | None = None
    ) -> Iterator[Any]:
        """Yields the pages of a list, one after the other.

        `until` is when all must have come, by the monotonic clock; None: each has a call's time.
        """
        while True:
            left = None if until is None else left_seconds(until)
            page = self.call(method, request, timeout=left)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def all_of(
        self,
        method: Callable[..., Any],
        request: Any,
        field: str,
        convert: Callable[[Any], Any],
        *,
        until: float | None = None,
    ) -> Iterator[Any]:
        """Yields the converted items that the pages of a list have in `field`. See `pages`."""
        for page in self.pages(method, request, until=until):
            for message in getattr(page, field):
                yield convert(message)
