"""The connection to the service: its channel, and calls that are made again where they may be."""

import asyncio
import math
import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
from grpc import aio

from palimpsest import tracing
from palimpsest.errors import (
    ConnectionFailed,
    PalimpsestError,
    ResourceExhausted,
    Unavailable,
    from_rpc,
)
from palimpsest.version import DISTRIBUTION, VERSION

#: Where `palimpsest up` listens.
DEFAULT_ADDRESS = "127.0.0.1:50051"
#: The variable that names another address.
ADDRESS_VARIABLE = "PALIMPSEST_ADDRESS"
#: How long a service is tried that was never reached. One that was reached and went away is
#: waited for as long as a call, a producer or a watch may take: it may be restarting.
REACH_SECONDS = 2.5
#: How long a call may take when the caller does not say.
CALL_SECONDS = 30.0
#: How long a call may take at most: gRPC takes what is far beyond it, as infinity, for a
#: time that has passed.
MAX_CALL_SECONDS = 365 * 86_400.0
#: Of a message to the service, in bytes; the service takes no larger one.
MAX_SENT_BYTES = 4 * 1024 * 1024
#: Wait before the second try of a read; doubles with each further one, up to MAX_BACKOFF_SECONDS:
#: who waited as long as the service was away would come long after it is back.
BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
#: Given to a reply of the service's own deadline to arrive before ours.
SLACK_SECONDS = 0.5

_OPTIONS = (
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", MAX_SENT_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # gRPC waits so long for an address that does not answer at all; 20 s if it is not told.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Goes before gRPC's own name, so that an operator sees which clients are out there.
    ("grpc.primary_user_agent", f"{DISTRIBUTION}/{VERSION}"),
)


class Reach:
    """Whether the service at an address was ever reached, and how long to try it."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._seconds = seconds
        #: Whether anything ever came from there.
        self.reached = False

    def failure(self, error: aio.AioRpcError) -> PalimpsestError:
        """Returns the client's error for one of gRPC's."""
        known = from_rpc(error, self._address)
        if not isinstance(known, ConnectionFailed):
            self.reached = True
        elif not self.reached:
            return ConnectionFailed(
                f"{known}; for a service that is starting, connect(reach_seconds=60) waits longer"
                f" than {self._seconds:g} s"
            )
        return known

    def try_seconds(self, seconds: float) -> float:
        """Returns how long to try what may take `seconds`: less before the first contact."""
        return seconds if self.reached else min(seconds, self._seconds)


class Connection:
    """A connection to the service at `address` (HOST:PORT).

    None: the one that PALIMPSEST_ADDRESS names, else where `palimpsest up` listens.
    `reach_seconds`: how long it is tried while it was never reached.
    """

    def __init__(self, address: str | None = None, *, reach_seconds: float = REACH_SECONDS) -> None:
        self.address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        self._channel = aio.insecure_channel(self.address, options=_OPTIONS)
        self.reach = Reach(self.address, reach_seconds)

    @property
    def channel(self) -> aio.Channel:
        """The channel that all stubs share."""
        return self._channel

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    async def call(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout: float = CALL_SECONDS,
        retry: bool = True,
        broken: bool = False,
    ) -> Any:
        """Makes a unary call, and makes it again while the service is unavailable or full.

        Without `retry` it does so only after refusals that came before anything was done.
        With `broken` also after a call that broke with its connection, as only writes that
        are stored once and reads may be. Raises ValueError for a timeout that is no number,
        ConnectionFailed after `reach_seconds` while the service was never reached.
        """
        if math.isnan(timeout):
            raise ValueError("a timeout must be a number of seconds, not nan")
        loop = asyncio.get_running_loop()
        since = loop.time()
        timeout = min(timeout, MAX_CALL_SECONDS)
        until = since + timeout
        wait = BACKOFF_SECONDS
        while True:
            try:
                remaining = max(until - loop.time(), 0.001)
                response = await method(
                    request, timeout=remaining + SLACK_SECONDS, **tracing.options()
                )
            except aio.AioRpcError as error:
                known = self.reach.failure(error)
                may = may_pass if broken else _may_repeat
                again = may(known, error.code()) if retry else is_unbegun(known)
                pause = pause_seconds(wait, known)
                if not again or loop.time() + pause > since + self.reach.try_seconds(timeout):
                    raise known from error
            else:
                self.reach.reached = True
                return response
            await asyncio.sleep(pause)
            wait = min(wait * 2, MAX_BACKOFF_SECONDS)

    async def responses(
        self, method: Callable[..., Any], request: Any, *, timeout: float | None = None
    ) -> AsyncIterator[Any]:
        """Yields the responses of a call, made again while the service refuses to begin it.

        Raises AioRpcError.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (CALL_SECONDS if timeout is None else timeout)
        wait = BACKOFF_SECONDS
        while True:
            left = max(until - loop.time(), 0.001) + SLACK_SECONDS
            try:
                async for response in method(
                    request,
                    timeout=None if timeout is None else left,
                    **tracing.options(),
                ):
                    self.reach.reached = True
                    yield response
                return
            except aio.AioRpcError as error:
                known = self.reach.failure(error)
                pause = pause_seconds(wait, known)
                if not is_unbegun(known) or loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            wait *= 2

    async def pages(self, method: Callable[..., Any], request: Any) -> AsyncIterator[Any]:
        """The pages of a list, one after the other."""
        while True:
            page = await self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


def pause_seconds(wait: float, error: PalimpsestError) -> float:
    """How long to pause where `wait` seconds are due: not less than the service asks for.

    With jitter in any case, so that those who were refused together do not come together.
    """
    jitter = random.uniform(0.5, 1.0)
    return max(wait * jitter, (error.retry_seconds or 0.0) * (0.5 + jitter))


#: Refusals of a service that is full, which come before it has begun anything.
_UNBEGUN = frozenset({"TOO_MANY_CALLS", "TOO_MANY_ASKS", "TOO_MANY_PENDING_ANSWERS"})


def is_unbegun(error: PalimpsestError) -> bool:
    """Whether nothing was done for sure, so that any call may be made again."""
    return error.reason in _UNBEGUN


def _may_repeat(error: PalimpsestError, code: grpc.StatusCode) -> bool:
    """Whether a unary call that may be done twice may be made again."""
    full = isinstance(error, ResourceExhausted) and error.retry_seconds is not None
    # Our own caller's cancelling is no error of gRPC's: this came from a server, or a proxy,
    # that was full or stopped. With a reason it is what was asked for that was cancelled.
    broken_off = code is grpc.StatusCode.CANCELLED and not error.reason
    return full or broken_off or code is grpc.StatusCode.UNAVAILABLE


#: gRPC's own word, at the client, for a call that broke with its connection.
_BROKEN = "Internal error from Core"


def may_pass(error: PalimpsestError, code: grpc.StatusCode) -> bool:
    """Whether a stream that ended so can be opened again."""
    if isinstance(error, Unavailable) or code is grpc.StatusCode.CANCELLED:
        return True
    if code is grpc.StatusCode.INTERNAL and str(error) == _BROKEN:
        return True
    return isinstance(error, ResourceExhausted) and error.retry_seconds is not None


async def raise_status(call: Any) -> NoReturn:
    """Raises the AioRpcError that a stream ended with."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        # The service ends a stream only with a reason; be asked again.
        code = grpc.StatusCode.UNAVAILABLE
    raise aio.AioRpcError(
        code,
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=await call.details(),
    )
