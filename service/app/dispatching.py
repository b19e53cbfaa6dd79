"""Opens what servers and workers need: a database, signals through it, and its work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from service.app.foundation import POOLERS, CannotStart, database_and_keys
from service.dispatch.queue import QueueDispatcher
from service.settings.config import Config
from service.settings.reading import UNHEARD
from service.usecases.memories.progress_watcher import CHANGES
from storage.engine import database_state, pooling
from storage.engine.database import Database
from storage.engine.database_state import DeploymentKeys
from storage.engine.errors import StorageError
from storage.engine.signals import Signals, are_heard
from storage.engine.tasks import cancel

#: How long a process that writes nothing may read from a server that no longer accepts writes.
WRITABLE_SECONDS = 30.0


@asynccontextmanager
async def process(
    config: Config, kind: str
) -> AsyncIterator[tuple[Database, DeploymentKeys, Signals, QueueDispatcher]]:
    """Opens a database, the deployment's keys, signals and dispatch, for a server or worker.

    Signals are received and sent while the caller runs them.
    """
    if config.is_pooled and config.signals_database_url is None:
        raise CannotStart(f"{UNHEARD}; see {POOLERS}")
    async with database_and_keys(config, kind) as (database, keys), AsyncExitStack() as stack:
        assert config.database_url is not None, "without it there is no database"
        if config.signals_database_url is not None:
            await _check_signals(database, config.signals_database_url.get_secret_value())
        url = (config.signals_database_url or config.database_url).get_secret_value()
        signals = Signals(database, url, name=f"palimpsest-{kind}-signals")
        database.on_change(partial(signals.send, CHANGES))
        dispatcher = QueueDispatcher(
            database,
            heartbeat_seconds=config.heartbeat_seconds,
            dead_after_seconds=config.dead_after_seconds,
            look_seconds=config.reconcile_seconds,
        )
        leaving = asyncio.create_task(_leave_replaced_server(database))
        stack.push_async_callback(cancel, [leaving])
        yield database, keys, signals, dispatcher


async def _leave_replaced_server(database: Database) -> None:
    """Closes connections to a server that no longer accepts writes, as a write would."""
    while True:
        await asyncio.sleep(WRITABLE_SECONDS)
        # The error closes the connections; the process's readiness reports it.
        with suppress(StorageError):
            await database_state.check_writable(database)


async def _check_signals(database: Database, url: str) -> None:
    """Raises CannotStart when signals would go through a pooler, or nowhere."""
    try:
        lost = await pooling.lost_sessions(url)
        heard = bool(lost) or await are_heard(database, url)
    except StorageError as error:
        raise CannotStart(f"cannot reach PALIMPSEST_SIGNALS_DATABASE_URL: {error}") from error
    if lost:
        raise CannotStart(
            f"at PALIMPSEST_SIGNALS_DATABASE_URL {lost}: workers would not be woken; name the"
            f" server itself; see {POOLERS}"
        )
    if not heard:
        raise CannotStart(
            "PALIMPSEST_SIGNALS_DATABASE_URL leads to another database than"
            " PALIMPSEST_DATABASE_URL: what is sent to the one is not heard at the other, and"
            " workers would not be woken; name the same database"
        )
