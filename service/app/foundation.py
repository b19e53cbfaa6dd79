"""Opens what every process needs: the database, the keys, and its health."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version

import structlog

import migrations
from service import telemetry
from service.app import faults
from service.app.health_socket import health_socket
from service.domain.operations.revisions import is_before_version_1, too_old
from service.llm.providers.labels import LABELS
from service.settings.config import Config
from service.telemetry.names import Metric
from service.usecases.operations.gauges import observe_connections, observe_whether
from service.usecases.operations.readiness import ReadinessWatch
from storage.engine import database_state, pooling
from storage.engine.database import Database
from storage.engine.database_state import DeploymentKeys
from storage.engine.errors import LoginRefused, StorageError
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest")


#: The page about poolers.
POOLERS = "docs/guides/running.md#poolers"


#: The names of kinds of processes in telemetry.
_SERVICES = {
    "serve": "palimpsest-api",
    "work": "palimpsest-worker",
    "executor": "palimpsest-executor",
    "eval": "palimpsest-eval",
}


class CannotStart(Exception):
    """What a process needs is not there; the message is one clear line."""


@contextmanager
def measured(config: Config, kind: str, *, serves: bool = False) -> Iterator[None]:
    """Measures what this process does; it comes first. `serves`: whether metrics are served."""
    if config.database_url is None:
        raise CannotStart("PALIMPSEST_DATABASE_URL is not set; `palimpsest up` needs none")
    telemetry.configure(_SERVICES[kind], version("palimpsest-server"), serves=serves)
    LABELS.configure(config)
    try:
        yield
    finally:
        telemetry.shutdown()


@asynccontextmanager
async def database_and_keys(
    config: Config, kind: str
) -> AsyncIterator[tuple[Database, DeploymentKeys]]:
    """Opens the database, and reads the deployment's keys."""
    assert config.database_url is not None, "it is checked first"
    try:
        faults.install()
    except ValueError as error:
        raise CannotStart(str(error)) from error
    url = config.database_url.get_secret_value()
    database = _connect(config, kind, pool_size=config.pool_size)
    try:
        keys = await _reach(database, "" if config.is_pooled else url, config.start_seconds)
        observe_connections(database)
        yield database, keys
    finally:
        await database.close()


def _connect(config: Config, kind: str, *, pool_size: int) -> Database:
    """Returns connections to the database, of which none is open yet."""
    assert config.database_url is not None, "it is checked first"
    return Database.connect(
        config.database_url.get_secret_value(),
        pool_size=pool_size,
        name=f"palimpsest-{kind}@{socket.gethostname()}",
        pooled=config.is_pooled,
    )


@asynccontextmanager
async def health(
    config: Config, kind: str, stop: asyncio.Event, *, waits: bool = False
) -> AsyncIterator[ReadinessWatch]:
    """Reports readiness at a socket, by HTTP and to a listener, and serves metrics.

    It does so from the start on, since processes may wait long for the database.

    `waits`: whether the process works meanwhile if the port of the metrics is taken. Raises
    CannotStart.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(measured(config, kind, serves=config.metrics_listen is not None))
        database = _connect(config, f"{kind}-probe", pool_size=1)
        watch = ReadinessWatch(database, stop, probe_seconds=config.probe_seconds)
        stack.push_async_callback(database.close)
        await stack.enter_async_context(health_socket(config.run_dir, kind, lambda: watch.cause))
        if config.metrics_listen is not None:
            # Only processes that serve metrics load it.
            from service.telemetry.endpoint import CannotListen, Endpoint

            served = Endpoint(telemetry.served(), lambda: watch.cause)
            try:
                await stack.enter_async_context(served.at(config.metrics_listen, waits=waits))
            except CannotListen as error:
                raise CannotStart(f"cannot serve metrics at {error}") from error
        jobs = [watch.run]
        if telemetry.exports():
            said = "Whether the process can do its work"
            observe_whether(Metric.READY, said, lambda: not watch.cause)
            jobs.append(telemetry.watch_loop)
        running = [asyncio.create_task(job()) for job in jobs]
        stack.push_async_callback(cancel, running)
        yield watch


async def _reach(database: Database, session_url: str, seconds: float) -> DeploymentKeys:
    """Waits for the database, and checks that it fits this code and its role.

    `session_url`: where each connection has to be a session of the server's; or empty.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            lost = await pooling.lost_sessions(session_url) if session_url else ""
            if lost:
                raise CannotStart(
                    f"at PALIMPSEST_DATABASE_URL {lost}: another client's statements could run in"
                    " place of ours; name the server itself, or set"
                    f" PALIMPSEST_DATABASE_POOLER=transaction; see {POOLERS}"
                )
            found = await database_state.read(database)
        except LoginRefused as error:
            # Waiting would not help.
            raise CannotStart(f"the database refuses: {error}; {error.advice}") from error
        except StorageError as error:
            if loop.time() > until:
                raise CannotStart(f"cannot reach the database: {error}") from error
            _log.warning("waiting for the database", cause=str(error))
            await asyncio.sleep(1)
            continue
        break
    if found.unfit:
        raise CannotStart(f"{found.unfit}; connect as one that may not")
    if found.migration is not None and is_before_version_1(found.migration, migrations.known()):
        raise CannotStart(too_old(found.migration))
    # A database that is ahead is one whose next release is being rolled out.
    if found.migration is None or found.keys is None or _behind(found.migration):
        raise CannotStart("the database is not migrated to this release; run `palimpsest migrate`")
    return found.keys


def _behind(revision: str) -> bool:
    return revision in migrations.known() and revision != migrations.newest()
