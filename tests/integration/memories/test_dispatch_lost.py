"""Dispatch when workers die, are taken for dead, or are mistaken, and when the database is gone."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import migrations
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.local.postgres import PostgresServer
from storage.engine.connections import sqlalchemy_url
from storage.engine.errors import StorageError
from storage.memories import queue
from storage.memories.queue import NOBODY
from tests.integration.support.dispatching import DONE, Rows, dispatcher, rows, running, until
from tests.support.harness import Servers

pytestmark = pytest.mark.prove

__all__ = ["rows"]


async def test_what_was_taken_by_a_look_without_an_answer_is_given_back(
    url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded, and its reply was lost."""
    handled: list[WorkItem] = []
    take_work = queue.take
    lost = 0

    async def lose_one(*arguments: object, **named: object) -> object:
        nonlocal lost
        found = await take_work(*arguments, **named)  # type: ignore[arg-type]
        if found.items and not lost:
            lost += 1
            raise StorageError("the connection is lost")
        return found

    async def handle(one: WorkItem) -> None:
        await rows.run(DONE, one.item_id)
        handled.append(one)

    monkeypatch.setattr(queue, "take", lose_one)
    monkeypatch.setattr(queue, "LOST_SECONDS", 0.5)
    await rows.make("s")
    async with running(url, handle):
        await until(lambda: handled)
    assert lost == 1


async def test_a_worker_that_was_taken_for_dead_works_on_and_claims_again(
    url: str, rows: Rows
) -> None:
    going = asyncio.Event()
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await going.wait()
        await rows.run(DONE, one.item_id)

    await rows.make("s")
    async with running(url, handle) as one:
        await until(lambda: handled)
        await rows.run("DELETE FROM worker")
        await one.sweep()
        # As after a crash of the server, it says once more what it has in hand.
        async with asyncio.timeout(60):
            while not await rows.run("SELECT 1 FROM claim JOIN worker USING (worker_id)"):
                await asyncio.sleep(0.02)
        going.set()
        await rows.make("t")
        await until(lambda: len(set(handled)) == 2)


async def test_a_worker_that_takes_again_what_it_has_in_hand_handles_it_once(
    url: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    going = asyncio.Event()
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await going.wait()
        await rows.run(DONE, one.item_id)

    await rows.make("s")
    async with running(url, handle) as one:
        await until(lambda: handled)
        # As a new primary has it: no claims, and the worker looks before its next heartbeat.
        await rows.run("DELETE FROM claim")
        async with asyncio.timeout(60):
            while not await rows.run("TABLE claim"):
                one.wake()
                await asyncio.sleep(0.02)
        await rows.make("t")
        await until(lambda: len(set(handled)) == 2)
        going.set()
        async with asyncio.timeout(60):
            while await rows.run("TABLE claim"):
                await asyncio.sleep(0.02)
    assert len(handled) == 2
    assert not caplog.records, "asyncio logs what a callback raises"


async def test_what_a_killed_worker_held_is_handled_again(url: str, rows: Rows) -> None:
    script = f"""
        import asyncio, os, signal
        from service.dispatch.queue import QueueDispatcher
        from storage.engine.database import Database
        async def die(item):
            os.kill(os.getpid(), signal.SIGKILL)
        async def main():
            database = Database.connect({url!r}, pool_size=2, name="dying")
            one = QueueDispatcher(
                database, heartbeat_seconds=0.3, dead_after_seconds=1.0, look_seconds=0.5
            )
            await one.run(die, concurrency=1, stop=asyncio.Event(), stop_seconds=1)
        asyncio.run(main())
    """
    await rows.make("s")
    process = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", textwrap.dedent(script)], check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert len(await rows.run("TABLE claim")) == 1
    handled: list[WorkItem] = []

    async def handle(again: WorkItem) -> None:
        handled.append(again)
        await rows.run(DONE, again.item_id)

    async with running(url, handle) as one:
        freed = 0
        async with asyncio.timeout(60):
            while not freed:
                freed = await one.sweep()
                await asyncio.sleep(0.1)
        await until(lambda: handled)
    assert len(handled) == 1


async def test_wake_ups_to_a_database_that_is_gone_are_lost_quietly(
    url: str, servers: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    item = WorkItem(
        kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=NOBODY, item_id=NOBODY
    )
    async with dispatcher(url) as one:
        with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")
        await one.wake_up([item])
        await one.want([item])
        assert await one.sweep() == 0
    said = capfd.readouterr().out
    assert "wake-ups lost" in said
    assert "memories not given priority" in said


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Yields a server of the test's own, to be crashed."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        with PostgresServer(Path(name) / "postgres") as server:
            migrations.upgrade(sqlalchemy_url(server.url))
            yield server


async def test_a_worker_outlives_a_crash_of_the_database(postgres: PostgresServer) -> None:
    rows = Rows(postgres.superuser_url)
    handled: list[WorkItem] = []
    crashed = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await crashed.wait()
        await rows.run(DONE, one.item_id)

    ((folder,),) = await rows.run("SHOW data_directory")
    process = int((Path(str(folder)) / "postmaster.pid").read_text().splitlines()[0])
    await rows.make("s")
    async with running(postgres.url, handle):
        await until(lambda: len(handled) == 1)
        os.kill(process, signal.SIGKILL)
        await until(lambda: not postgres.is_running())
        await asyncio.sleep(1.5)
        postgres.restart()
        # The claims are gone with the crash, and are there again with a heartbeat.
        async with asyncio.timeout(60):
            while not await rows.run("SELECT 1 FROM claim JOIN worker USING (worker_id)"):
                await asyncio.sleep(0.02)
        crashed.set()
        await rows.make("t")
        await until(lambda: len(set(handled)) == 2)
