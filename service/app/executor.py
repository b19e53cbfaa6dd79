"""Runs the process that makes the calls of workers."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from service.app.call_executors import call_executor, prefix_index
from service.app.foundation import database_and_keys, health
from service.llm.executor.server import ExecutorServer
from service.llm.providers.prices import Prices
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.usecases.calls.call_ledger import CallLedger
from storage.engine.tasks import cancel


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
        # The executor of a worker may find its predecessor there, which completes its calls.
        waits = isinstance(at, socket.socket)
        watch = await stack.enter_async_context(health(config, "executor", stop, waits=waits))
        database, _ = await stack.enter_async_context(database_and_keys(config, "executor"))
        ledger = CallLedger(database, lease_seconds=config.call_lease_seconds)
        index = prefix_index(config, stack)
        executor = call_executor(
            *(config, database, stack, transport, ledger, index), Prices(config)
        )
        server = ExecutorServer(executor, stop_seconds=config.stop_seconds)
        await loading
        await watch.begin()
        if isinstance(at, socket.socket):
            ready()
            await server.serve_one(at, stop)
        else:
            await server.listen(at, stop, ready)
