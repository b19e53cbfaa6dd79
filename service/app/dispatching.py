"""What servers and workers stand on: a database, and hints about its work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from service.app.foundation import POOLERS, CannotStart, cancel, database_and_keys
from service.config import Config
from service.dispatch.port import Dispatcher
from service.dispatch.procrastinate import ProcrastinateDispatcher
from service.usecases.clocks import ProcessClock
from storage import pooling
from storage.database import Database
from storage.errors import StorageError
from storage.sessions import DeploymentKeys


@asynccontextmanager
async def process(
    config: Config, kind: str
) -> AsyncIterator[tuple[Database, DeploymentKeys, Dispatcher]]:
    """What servers and workers have: a database, the deployment's keys, dispatch."""
    if config.is_pooled and config.dispatch_database_url is None:
        raise CannotStart(
            "PALIMPSEST_DISPATCH_DATABASE_URL is not set: with PALIMPSEST_DATABASE_POOLER it has to"
            f" name the server itself, since LISTEN passes no pooler; see {POOLERS}"
        )
    async with database_and_keys(config, kind) as (database, keys), AsyncExitStack() as stack:
        assert config.database_url is not None, "without it there is no database"
        if config.dispatch_database_url is not None:
            await _check_dispatch(config.dispatch_database_url.get_secret_value())
        url = (config.dispatch_database_url or config.database_url).get_secret_value()
        dispatcher = ProcrastinateDispatcher(
            url,
            heartbeat_seconds=config.heartbeat_seconds,
            dead_after_seconds=config.dead_after_seconds,
        )
        try:
            await stack.enter_async_context(dispatcher)
        except ConnectionError as error:
            raise CannotStart(str(error)) from error
        clock = asyncio.create_task(ProcessClock(database, kind).run())
        stack.push_async_callback(cancel, [clock])
        yield database, keys, dispatcher


async def _check_dispatch(url: str) -> None:
    """Raises CannotStart when hints would go through a pooler, or nowhere."""
    try:
        lost = await pooling.lost_sessions(url)
    except StorageError as error:
        raise CannotStart(f"cannot reach the dispatch database: {error}") from error
    if lost:
        raise CannotStart(
            f"at PALIMPSEST_DISPATCH_DATABASE_URL {lost}: workers would not be woken; name the"
            f" server itself; see {POOLERS}"
        )
