"""The release before and this one at once: while the schema is migrated, and on the way back."""

import asyncio
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import migrations
import palimpsest
from tests import ROOT
from tests.acceptance.operations.verified import verified
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Process, Servers, api, eventually, with_database, worker

#: Seven processes start one after the other, which takes a busy machine a minute each at worst.
pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
#: Another commit to upgrade from than the newest one before the newest migration.
REF = "PALIMPSEST_TEST_UPGRADE_FROM"
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"


def git(*arguments: str) -> str:
    """Returns what git says; skips the test where there is no history."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no git history here, so no release before this one")
    return done.stdout.strip()


def working(ref: str) -> str:
    """Returns the commit, or the newest one before it whose migrations have a number each."""
    while True:
        files = git("ls-tree", "--name-only", ref, "migrations/versions/").splitlines()
        numbers = [Path(one).name[:4] for one in files if Path(one).name[0].isdigit()]
        if len(numbers) == len(set(numbers)):
            return ref
        ref += "^"


@pytest.fixture(scope="module")
def before() -> Iterator[Path]:
    """Yields a folder with the release before: the code to which the newest migration was added."""
    ref = os.environ.get(REF)
    if ref is None:
        newest = f"migrations/versions/{migrations.newest()}_*.py"
        # Along the main line: a branch may have had the migrations in another order.
        line = ("--no-patch", "--first-parent", "--diff-merges=first-parent", "--diff-filter=A")
        added = git("log", "--format=%H", *line, "-n", "1", "--", newest)
        if not added:
            pytest.skip("the newest migration is not committed, or the history is cut off")
        ref = working(f"{added}^")
        # Upgrades are promised from version 1 of the API on (docs/decisions/0080).
        if not git("ls-tree", "--name-only", ref, "service/rpc/session_service.py"):
            pytest.skip("the release before is older than version 1 of the API")
    git("rev-parse", "--verify", f"{ref}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="palimpsest-before-") as name:
        archive = Path(name) / "release.tar"
        git("archive", f"--output={archive}", ref)
        with tarfile.open(archive) as release:
            release.extractall(name, filter="data")
        yield Path(name)


class Before:
    """The processes of the release before."""

    def __init__(self, folder: Path, url: str, model: FakeModel) -> None:
        self.folder = folder
        paths = (folder, folder / "proto", folder / "clients/python")
        self.environment = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PALIMPSEST_DATABASE_URL": url,
            "PALIMPSEST_LISTEN": "127.0.0.1:0",
            **settings(model),
        }

    def migrate(self) -> None:
        run_migrate(self.environment, self.folder)

    def start(self, stack: ExitStack, command: str, ready: str) -> Process:
        process = Process(command, self.environment, ready, folder=self.folder)
        stack.callback(process.close)
        return process


def settings(model: FakeModel) -> dict[str, str]:
    return {
        **model.settings,
        "PALIMPSEST_RECONCILE_SECONDS": "0.5",
    }


def run_migrate(environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "migrate"],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Traffic:
    """A producer at one server, which appends until it is stopped."""

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self.name = name
        self.acked = 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_all)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(150)
        assert not self._thread.is_alive(), "it ends when it is told"

    def _run_all(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.failure = error

    async def _run(self) -> None:
        async with palimpsest.connect(self._address) as client:
            async with client.session("s").producer(self.name) as producer:
                while not self._stop.is_set():
                    await producer.append(f"{self.name} {self.acked + 1}")
                    ack = await producer.flush()
                    assert ack is not None
                    self.acked = ack.producer_sequence
                    await asyncio.sleep(0.2)

    def goes_on(self, chunks: int = 3) -> None:
        """Waits for so many more acks."""
        wanted = self.acked + chunks
        look = lambda: self.acked >= wanted or self.failure is not None  # noqa: E731
        eventually(f"{self.name} goes on", look)
        assert self.failure is None


async def begin(address: str) -> None:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        # A step reads all that waits, so that a memory that lagged soon catches up.
        await session.create_memory("m", schema_source=SCHEMA, chunk_tokens=1000)


async def applied(address: str) -> tuple[list[tuple[int, int]], list[tuple[str, int]]]:
    """Returns what the memory's revisions read, and whose chunks are in the log, in order."""
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        memory = session.memory("m")
        await memory.get(fully_applied=True, timeout=200)
        ranges = [
            (one.positions.first - 1, one.positions.last)
            async for one in memory.revisions()
            if one.kind == "step" and one.positions is not None
        ]
        chunks = [(one.producer_id, one.producer_sequence) async for one in session.chunks()]
    return ranges, chunks


def steps_go_on(model: FakeModel) -> None:
    """Waits for two more calls: the worker has committed the step of the first."""
    wanted = len(model.prompts) + 2
    eventually("steps go on", lambda: len(model.prompts) >= wanted)


@pytest.fixture(autouse=True)
def _known_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out a setting that the release before refuses; `api` gives it to the new servers."""
    monkeypatch.delenv("PALIMPSEST_DEFAULT_MEMORY", raising=False)


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


@pytest.fixture
def empty(servers: Servers) -> str:
    """Returns a database without a table; its URL."""
    name = f"upgraded_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER palimpsest").format(sql.Identifier(name))
        )
    return with_database(servers.postgres.url, name)


def test_two_releases_work_on_one_database_forth_and_back_and_forth_again(
    before: Path, empty: str, model: FakeModel
) -> None:
    old = Before(before, empty, model)
    old.migrate()
    with ExitStack() as stack:
        server = old.start(stack, "serve", "listening on")
        old_worker = old.start(stack, "work", "working")
        address = server.ready_line.removeprefix("listening on ")
        asyncio.run(begin(address))
        with Traffic(address, "old") as first:
            first.goes_on()
            run_migrate({"PALIMPSEST_DATABASE_URL": empty}, ROOT)
            # The old ones, on the schema of the new ones.
            first.goes_on()
            new_server, new_address = stack.enter_context(api(empty))
            with Traffic(new_address, "new") as second:
                second.goes_on()
                new_worker = stack.enter_context(worker(empty, **settings(model)))
                first.goes_on()
                second.goes_on()
                # The old ones go while both producers are under way.
                assert old_worker.stop() == 0
                first.goes_on()
                second.goes_on()
                steps_go_on(model)
                # Back, as `helm rollback` does it: the schema stays, and what the new ones wrote.
                back = old.start(stack, "work", "working")
                assert new_worker.stop() == 0
                first.goes_on()
                second.goes_on()
            assert new_server.stop() == 0
            # Nothing but the old ones.
            first.goes_on()
            steps_go_on(model)
            # Forward again.
            _, new_address = stack.enter_context(api(empty))
            stack.enter_context(worker(empty, **settings(model)))
            assert back.stop() == 0
            with Traffic(new_address, "again") as third:
                first.goes_on()
                third.goes_on()
        assert [one.failure for one in (first, second, third)] == [None] * 3
        assert server.stop() == 0
        ranges, chunks = asyncio.run(applied(new_address))
        for log in (server.log(), old_worker.log(), back.log()):
            assert "Traceback" not in log
            assert '"level": "error"' not in log
    total = first.acked + second.acked + third.acked
    assert len(chunks) == total
    for one in (first, second, third):
        sequences = [sequence for name, sequence in chunks if name == one.name]
        assert sequences == list(range(1, one.acked + 1))
    assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
    assert (ranges[0][0], ranges[-1][1]) == (0, total)
    assert len(model.prompts) == len(ranges), "each step was paid for once"
    assert asyncio.run(verified(empty)) == []
