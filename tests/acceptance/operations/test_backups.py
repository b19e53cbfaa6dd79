"""Backups under traffic, restored elsewhere as docs/guides/running.md#backup-and-restore says."""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import migrations
import palimpsest
from service.cli.commands import app
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.local.postgres import PostgresServer
from service.local.processes import ServerUser, run_as
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from storage.log import sessions
from storage.operations import restore
from tests.acceptance.operations.verified import verified
from tests.integration.support.scripted import ITEM, Script, prism_method
from tests.support.harness import Servers, api, eventually

pytestmark = [pytest.mark.prove, pytest.mark.timeout(400)]
SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
ROLES = """
CREATE ROLE palimpsest_app NOLOGIN NOSUPERUSER NOBYPASSRLS;
CREATE ROLE palimpsest_sweeper NOLOGIN NOSUPERUSER NOBYPASSRLS;
GRANT palimpsest_app, palimpsest_sweeper TO palimpsest;
"""
#: Chunks that are acked before the moment that is restored, and after it.
BEFORE, BEHIND = 40, 40


def text(number: int) -> str:
    """Returns what the producer's n-th chunk says, from 1."""
    return f"The museum number {number} is a ship in the harbour."


class Server:
    """A PostgreSQL below a folder, with its other programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = PostgresServer(folder)
        self.user = ServerUser.current()

    @property
    def url(self) -> str:
        return self.postgres.url

    def execute(self, *statements: str) -> None:
        """Executes each statement by itself, as superuser."""
        with psycopg.connect(self.postgres.superuser_url, autocommit=True) as connection:
            for one in statements:
                connection.execute(one.encode())

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of the server's programs, as its user."""
        path = self.postgres._programs / program
        run_as([str(path), *arguments], user=self.user, folder=self.folder)


@dataclass(frozen=True)
class Backups:
    """Backups of a server that worked meanwhile."""

    server: Server
    dump: Path
    base: Path
    archive: Path
    #: Chunks that were acked in the end.
    acked: int
    #: Tokens of acks before the restored moment, and after it.
    before: str
    behind: str


def servers_folder(path: Path) -> Path:
    """Returns an empty folder of the server's user, which others cannot enter."""
    path.mkdir(mode=0o700)
    user = ServerUser.current()
    if user.other:
        os.chown(path, user.uid, user.gid)
    return path


class Traffic:
    """A producer that appends as fast as it gets acks, in a thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.acked = 0
        self.read_token = ""
        self.wanted = BEFORE
        self.stop = threading.Event()

    async def _run(self) -> None:
        async with palimpsest.connect(self._address) as client:
            session = await client.create_session("s")
            await session.create_memory("m", schema_source=SCHEMA, chunk_tokens=1)
            async with session.producer("p") as producer:
                number = 0
                while not (self.stop.is_set() and number >= self.wanted):
                    number += 1
                    await producer.append(text(number))
                    if number % 4 == 0:
                        ack = await producer.flush()
                        assert ack is not None
                        self.read_token, self.acked = ack.read_token, ack.producer_sequence
                    # A session that a test can read in a moment.
                    await asyncio.sleep(0.02)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.stop.set()
        self._thread.join(150)
        assert not self._thread.is_alive()


@contextmanager
def stepping(url: str) -> Iterator[None]:
    """Yields a worker of the memory, in a thread: a process of its own takes long to start."""
    stop = threading.Event()

    async def work() -> None:
        database = Database.connect(url, pool_size=2, name="test")
        one = prism_method(database, Script())
        while not stop.is_set():
            await one.drain(ITEM)
            await asyncio.sleep(0.05)
        await database.close()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(150)
        assert not thread.is_alive()


def back_up(server: Server, folder: Path, archive: Path) -> Backups:
    """Backs a server up while its service works."""
    with api(server.url) as (_, address), stepping(server.url):
        traffic = Traffic(address)
        traffic.start()
        eventually("chunks are acked", lambda: traffic.acked >= BEFORE // 2)
        base, dump = servers_folder(folder / "base"), folder / "dumps" / "palimpsest.dump"
        servers_folder(dump.parent)
        url = server.postgres.superuser_url
        server.run("pg_basebackup", f"--dbname={url}", f"--pgdata={base}", "--checkpoint=fast")
        eventually("more chunks are acked", lambda: traffic.acked >= BEFORE)
        before = traffic.read_token
        server.run("pg_dump", f"--dbname={url}", "--format=custom", f"--file={dump}")
        server.execute("SELECT pg_create_restore_point('before')")
        marked = traffic.acked
        traffic.wanted = marked + BEHIND
        eventually("and more", lambda: traffic.acked >= marked + BEHIND)
        traffic.end()
        server.execute("SELECT pg_switch_wal()")
    return Backups(server, dump, base, archive, traffic.acked, before, traffic.read_token)


@pytest.fixture(scope="module")
def backups() -> Iterator[Backups]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        archive = servers_folder(folder / "archive")
        server = Server(folder / "first")
        with server.postgres:
            server.execute(
                "ALTER SYSTEM SET archive_mode = 'on'",
                f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'",
            )
            server.postgres.stop()
            server.postgres.start()
            migrations.upgrade(sqlalchemy_url(server.url))
            yield back_up(server, folder, archive)


def test_a_dump_is_restored_to_a_new_server(backups: Backups, folder: Path) -> None:
    server = Server(folder / "second")
    with server.postgres:
        server.execute(*ROLES.strip().splitlines())
        url = server.postgres.superuser_url
        shutil.copy(backups.dump, folder / "palimpsest.dump")
        (folder / "palimpsest.dump").chmod(0o644)
        server.run(
            "pg_restore",
            f"--dbname={url}",
            "--exit-on-error",
            str(folder / "palimpsest.dump"),
        )
        goes_on(server, backups)


def test_a_moment_in_between_is_restored(backups: Backups, folder: Path) -> None:
    server = Server(folder / "third")
    server.folder.mkdir(mode=0o711)
    for name in ("superuser.password", "login.password"):
        shutil.copy(backups.server.folder / name, server.folder / name)
    data = server.folder / "data"
    shutil.copytree(backups.base, data, symlinks=True)
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write(
            f"restore_command = 'cp {backups.archive}/%f %p'\n"
            "recovery_target_name = 'before'\n"
            "recovery_target_action = 'promote'\n"
            "archive_mode = 'off'\n"
        )
    (data / "recovery.signal").touch()
    given_to(server.user, data)
    with server.postgres:
        # It takes connections to read before it is a server of its own.
        eventually("it is promoted", lambda: not in_recovery(server))
        goes_on(server, backups)


def given_to(user: ServerUser, folder: Path) -> None:
    """Gives a folder and all in it to the server's user."""
    if user.other:
        for above, folders, files in os.walk(folder):
            for name in (".", *folders, *files):
                os.chown(Path(above) / name, user.uid, user.gid, follow_symlinks=False)


def in_recovery(server: Server) -> bool:
    with psycopg.connect(server.postgres.superuser_url) as connection:
        return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)


def goes_on(server: Server, backups: Backups) -> None:
    """The service on a restored database: nothing acked before is lost, and nothing that was
    lost is taken for something else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALIMPSEST_DATABASE_URL", server.url)
        said = CliRunner().invoke(app, ["restore"])
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith("1 session begins another history")
    with api(server.url) as (_, address), stepping(server.url):
        asyncio.run(clients(address, backups))
    assert asyncio.run(verified(server.url)) == []


async def clients(address: str, backups: Backups) -> None:
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        memory = session.memory("m")
        head = (await session.info()).head
        assert BEFORE <= head < backups.acked
        for token in (backups.before, backups.behind):
            with pytest.raises(palimpsest.InvalidArgument) as refused:
                await memory.get(after=token)
            assert refused.value.reason == "TOKEN_INVALID"
        # A client that reads its source again continues after what is there.
        async with session.producer("p") as producer:
            assert producer.last_acked_sequence == head
            for number in range(head + 1, head + 11):
                await producer.append(text(number))
            ack = await producer.flush()
        assert ack is not None
        assert ack.position == head + 10
        state = await memory.get(after=ack.read_token, timeout=120)
        assert state.applied_position == head + 10
        texts = [chunk.text async for chunk in session.chunks()]
        assert texts == [text(number) for number in range(1, head + 11)]


async def test_a_token_stays_refused_when_the_same_backup_is_restored_twice(
    servers: Servers,
) -> None:
    """Between two restores sessions get other incarnations than after the first one."""
    url = servers.new_database()
    key = session_key(DEFAULT_TENANT, "s")
    database = Database.connect(url, pool_size=1, name="test")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, key, "s")
    given = set()
    for _ in range(2):
        assert restore.begin_new_history(url) == 1
        async with database.transaction(DEFAULT_TENANT) as tx:
            stored = await sessions.get(tx, key)
        assert stored is not None
        given.add(stored.incarnation)
        # What the second restore finds is what the first one found.
        with psycopg.connect(servers.as_superuser(url)) as connection:
            connection.execute("UPDATE session SET incarnation = 1")
        await asyncio.sleep(1.1)
    await database.close()
    assert len(given) == 2
    assert min(given) > 1
