"""What the client needs of asyncio. `_sync/_runtime.py` has the same names with threads."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import grpc
from grpc import aio

T = TypeVar("T")

Channel = aio.Channel
Lock = asyncio.Lock
#: A call that ended with a status.
RpcError = aio.AioRpcError
#: A call on a channel that is closed.
ChannelClosed = aio.UsageError
#: A call that was cancelled in this process: its task, the call itself, or its channel.
Interrupted = asyncio.CancelledError


def open_channel(
    address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]
) -> Channel:
    """Returns a channel to the address; without TLS where there are no credentials."""
    if credentials is None:
        return aio.insecure_channel(address, options=options)
    return aio.secure_channel(address, credentials, options=options)


def is_cancelled() -> bool:
    """Returns whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def sleep(seconds: float) -> None:
    """Pauses."""
    await asyncio.sleep(seconds)


async def gather(
    functions: Sequence[Callable[[], Coroutine[Any, Any, T]]], *, limit: int
) -> list[T]:
    """Returns what the functions return, of which `limit` run at once."""
    slots = asyncio.Semaphore(limit)

    async def run(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with slots:
            return await function()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(function)) for function in functions]
    return [task.result() for task in tasks]


class Condition:
    """A condition variable of tasks, which need no lock: they change only where they await."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def __aenter__(self) -> None:
        """Enters; others go on only during `wait`."""

    async def __aexit__(self, *_: object) -> None:
        """Leaves."""

    async def wait(self, timeout: float | None = None) -> None:
        """Waits for the next notification, at most `timeout` seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout):
                await changed.wait()
        except TimeoutError:
            return

    def notify_all(self) -> None:
        """Wakes all that wait."""
        self._changed.set()
        self._changed = asyncio.Event()


class Background:
    """A function that runs beside its caller."""

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(function())

    async def stop(self) -> None:
        """Ends it, and returns when it has ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
