"""What an ack says is on disk: PostgreSQL is killed right after it."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psycopg
import pytest

import migrations
from service.domain.values.tenancy import DEFAULT_TENANT
from service.local.postgres import PostgresServer
from storage.engine import connections
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from tests.support.harness import Servers
from verification.mutants.servers import server
from verification.mutants.world import World

#: Kills after an ack that is not waited for, one of which has to lose something: the server
#: writes its log by itself after ten seconds, or sooner when it has time.
TRIES = 5


async def test_every_connection_waits_for_the_disk_whatever_the_database_says(
    servers: Servers,
) -> None:
    url = servers.new_database()
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    database = Database.connect(url, pool_size=1, name="test")
    query = "SELECT current_setting('synchronous_commit')"
    try:
        async with database.transaction(DEFAULT_TENANT) as tx:
            of_engine = (await tx.fetch(query))[0][0]
        async with database.direct(DEFAULT_TENANT) as direct:
            of_direct = await direct.fetch(query, ())
    finally:
        await database.close()
    assert (of_engine, of_direct) == ("on", [("on",)])


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Yields a server that flushes asynchronous commits only after long."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        with PostgresServer(Path(name) / "postgres") as started:
            migrations.upgrade(sqlalchemy_url(started.url))
            with psycopg.connect(started.superuser_url, autocommit=True) as admin:
                admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
                admin.execute("SELECT pg_reload_conf()")
            yield started


async def is_kept(postgres: PostgresServer, session: str) -> bool:
    """Returns whether a chunk is there that was acked right before PostgreSQL was killed."""
    world = World(postgres.url, postgres.superuser_url, session)
    try:
        await world.begin()
        async with server(world, "a") as api:
            token = await api.append("p", 1)
            assert postgres._process is not None
            postgres._process.send_signal(signal.SIGKILL)
            assert token is not None, world.counted
            postgres._process.wait()
    finally:
        await world.end()
    postgres.restart()
    with psycopg.connect(postgres.superuser_url) as look:
        rows = look.execute("SELECT 1 FROM chunk WHERE session_key = %s", (world.key,)).fetchall()
    return len(rows) == 1


@pytest.mark.prove
async def test_what_is_acked_is_there_when_postgresql_is_killed(postgres: PostgresServer) -> None:
    assert await is_kept(postgres, "waited for")


@pytest.mark.prove
async def test_without_the_setting_it_is_lost(postgres: PostgresServer) -> None:
    """The test above would notice."""
    with mock.patch.dict(connections._SETTINGS, {"synchronous_commit": "off"}):
        for number in range(TRIES):
            if not await is_kept(postgres, f"not waited for {number}"):
                return
    raise AssertionError("nothing was lost: nobody would notice commits that are not waited for")
