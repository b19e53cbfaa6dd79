"""Fixtures: real servers once a run, a migrated database of its own for each test."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

import palimpsest
from storage.engine.database import Database
from tests.support import forking
from tests.support.harness import Servers, api, worker

# No test asserts a wall-clock time. What CI checks is the same at each run; the search
# continues when contributors run the tests.
ANY_MACHINE = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("PALIMPSEST_TEST_EXAMPLES", "25")),
)
settings.register_profile("here", ANY_MACHINE)
settings.register_profile("ci", ANY_MACHINE, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# As the service's library logs by itself, but for tracebacks: with all that is in their
# variables each takes seconds to write.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# In the background, or under nohup, tests begin with these ignored; the processes that they
# start would inherit that, and those are stopped by signals.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        interrupts = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if interrupts else signal.SIG_DFL)


# Where processes that tests kill leave their sockets; gone with this process.
_RUN_DIR = tempfile.TemporaryDirectory(prefix="palimpsest-run-")
os.environ.setdefault("PALIMPSEST_RUN_DIR", _RUN_DIR.name)
# Most tests make the memories that they are about; those of the default memory ask for it.
os.environ.setdefault("PALIMPSEST_DEFAULT_MEMORY", "none")
# The servers of this process, once a test has asked for them.
_STARTED: list[Servers] = []


forking.enable()


def pytest_sessionfinish() -> None:
    """Ends the process that forked those of the service."""
    forking.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that the servers' user can get to, also when the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """PostgreSQL and Valkey."""
    with Servers.started(fsync=False) as started:
        _STARTED.append(started)
        yield started
        _STARTED.clear()


@pytest.fixture(scope="module", autouse=True)
def _room() -> Iterator[None]:
    """Drops at the end of each file what its tests made of databases."""
    yield
    for servers in _STARTED:
        servers.drop_databases()


@pytest.fixture
def url(servers: Servers) -> Iterator[str]:
    """Yields a migrated database of the test's own."""
    url = servers.new_database()
    yield url
    servers.drop_databases(url)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Yields a pool on that database, in the application's role."""
    database = Database.connect(url, pool_size=5, name="test")
    yield database
    await database.close()


@pytest.fixture(scope="session")
def address(servers: Servers) -> Iterator[str]:
    """Yields an API and a worker that tests with sessions of their own share."""
    url = servers.new_database(kept=True)
    with api(url) as (_, address), worker(url, **servers.redis_settings()):
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[palimpsest.Client]:
    """Yields a client of the shared service."""
    async with palimpsest.connect(address) as client:
        yield client
