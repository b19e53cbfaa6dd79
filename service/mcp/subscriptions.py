"""Changes of memories that a client subscribed to."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

import palimpsest
from palimpsest import PalimpsestError, Watch
from service.mcp.scope import Context
from service.settings.mcp_tools import CALL_SECONDS
from storage.engine.tasks import cancel

#: Memories that one client watches by one connection, or by one request.
MAX_WATCHED = 16

Changed = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscriber:
    """A client of a version with a handshake."""

    kept: "Subscriptions"
    #: Reports a change of a memory, by its URI.
    changed: Callable[[str], Awaitable[None]]


#: Returns the client that sent a request. Raises MCPError if there is no way to reach it.
SubscriberOf = Callable[[Context], Subscriber]


class Subscriptions:
    """The watches of one connection, by the URIs of the memories."""

    def __init__(self, give_up_seconds: float) -> None:
        """`give_up_seconds`: for how long a watch waits for a service that is away."""
        self._give_up_seconds = give_up_seconds
        self._reports: dict[str, asyncio.Task[None]] = {}
        #: A client may send requests that run at the same time.
        self._lock = asyncio.Lock()

    def subscriber(self, context: Context) -> Subscriber:
        """Returns the client of a connection by which the server reaches it at any time."""
        return Subscriber(kept=self, changed=context.session.send_resource_updated)

    @property
    def uris(self) -> Sequence[str]:
        """What is watched."""
        return [uri for uri, one in self._reports.items() if not one.done()]

    async def add(self, uri: str, memory: palimpsest.Memory, changed: Changed) -> None:
        """Reports each change of a memory after this returns.

        Raises MCPError, PalimpsestError.
        """
        async with self._lock:
            self._reports = {name: one for name, one in self._reports.items() if not one.done()}
            if uri in self._reports:
                return
            check_number(len(self._reports) + 1)
            watch = await opened(memory, self._give_up_seconds)
            self._reports[uri] = asyncio.create_task(report(watch, changed))

    async def remove(self, uri: str) -> None:
        """Ends the reports of a memory, if there are any."""
        async with self._lock:
            found = self._reports.pop(uri, None)
            await cancel([found] if found is not None else [])

    async def close(self) -> None:
        """Ends all reports."""
        await cancel(self._reports.values())


def check_number(watched: int) -> None:
    """Raises MCPError if a client would watch too many."""
    if watched > MAX_WATCHED:
        raise MCPError(INVALID_PARAMS, f"subscribe to at most {MAX_WATCHED} resources at a time")


async def opened(memory: palimpsest.Memory, give_up_seconds: float) -> Watch:
    """Returns a watch that misses no change after this. Raises PalimpsestError."""
    watch = memory.watch(give_up_seconds=give_up_seconds)
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await watch.__aenter__()
    except TimeoutError as error:
        await watch.aclose()
        raise palimpsest.Unavailable("the service is away: subscribe again later") from error


async def report(watch: Watch, changed: Changed) -> None:
    """Calls `changed` for each revision, and once more when the memory cannot be watched now."""
    try:
        async for _ in watch:
            await changed()
    except PalimpsestError:
        # The client reads it again, and the error that says why.
        await changed()
    finally:
        await watch.aclose()
