"""The process that makes the calls of workers."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from service.app.callers import near_caller, prefix_index
from service.app.foundation import cancel, database_and_keys, health
from service.caller.server import CallerServer
from service.config import Config
from service.llm.prices import Prices
from service.llm.transport import LitellmTransport
from service.usecases.journal import Journal


async def call(
    config: Config, stop: asyncio.Event, ready: Callable[[], None], at: Path | socket.socket
) -> None:
    """Makes the calls of workers: of all that connect at a path, until `stop` is set, or of
    the one at the other end of a socket, until it is gone. Raises CannotStart."""
    transport = LitellmTransport(config)
    async with AsyncExitStack() as stack:
        # It takes seconds, in which the database is reached, or waited for.
        loading = asyncio.create_task(transport.warm())
        stack.push_async_callback(cancel, [loading])
        # One that is a worker's own may find the one before it there, which ends its calls.
        waits = isinstance(at, socket.socket)
        watch = await stack.enter_async_context(health(config, "caller", stop, waits=waits))
        database, keys = await stack.enter_async_context(database_and_keys(config, "caller"))
        journal = Journal(database, lease_seconds=config.call_lease_seconds)
        index = prefix_index(config, keys, stack)
        caller = near_caller(config, transport, journal, index, Prices(config))
        server = CallerServer(caller, stop_seconds=config.stop_seconds)
        await loading
        await watch.begin()
        if isinstance(at, socket.socket):
            ready()
            await server.serve_one(at, stop)
        else:
            await server.listen(at, stop, ready)
