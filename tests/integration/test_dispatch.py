"""Dispatch: what is runnable is taken once, in turns, and survives the dead."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

import migrations
from service.dispatch.hands import MOST_TURNS
from service.dispatch.port import Handler, NotNow
from service.dispatch.queue import QueueDispatcher
from service.domain.tenancy import DEFAULT_TENANT
from service.domain.work import WorkItem, WorkKind
from service.embedded.postgres import PostgresServer
from storage import queue
from storage.connections import sqlalchemy_url
from storage.database import Database
from storage.errors import StorageError
from storage.queue import NOBODY, Lane, Look
from storage.signals import Signals
from tests.harness import Servers

#: A memory at its first revision that has work since so long ago.
_MAKE = """
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO tenant (tenant_id, name) VALUES ('{tenant}', '{tenant}') ON CONFLICT DO NOTHING;
INSERT INTO session (session_key, tenant_id, name)
SELECT md5('{name}' || n)::uuid, '{tenant}', '{name}' || n FROM generate_series(1, {count}) n;
INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, has_work, ready_at)
SELECT md5('{name}' || n)::uuid, md5('m{name}' || n)::uuid, '{tenant}', 'm', 'prism', '{{}}', true,
    now() + make_interval(secs => {ready}) + make_interval(secs => n * 0.001)
FROM generate_series(1, {count}) n;
INSERT INTO revision (session_key, memory_id, revision, tenant_id, from_position, to_position,
    kind, epoch, digest)
SELECT session_key, memory_id, 0, tenant_id, 0, 0, 'create', 0, ''
FROM memory WHERE session_key IN
    (SELECT md5('{name}' || n)::uuid FROM generate_series(1, {count}) n);
COMMIT
"""
_DONE = "UPDATE memory SET has_work = false WHERE memory_id = %s"


class Rows:
    """The tables, as their superuser."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """In a thread: it may wait for a lock that a worker here has."""

        def run() -> list[tuple[object, ...]]:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(statement.encode(), values or None)
                return cursor.fetchall() if cursor.description else []

        return await asyncio.to_thread(run)

    async def make(
        self, name: str, count: int = 1, *, ready: float = 0, tenant: UUID = DEFAULT_TENANT
    ) -> None:
        """Makes memories with work, one a session, ready since or in so many seconds."""
        await self.run(_MAKE.format(name=name, count=count, ready=ready, tenant=tenant))

    async def names(self, items: Sequence[WorkItem]) -> list[str]:
        """The names of the items' sessions."""
        found = await self.run("SELECT session_key, name FROM session")
        known = {row[0]: str(row[1]) for row in found}
        return [known[one.session_key] for one in items]


@pytest.fixture
def rows(servers: Servers, url: str) -> Rows:
    return Rows(servers.as_superuser(url))


@asynccontextmanager
async def dispatcher(url: str, dead_after_seconds: float = 1.0) -> AsyncIterator[QueueDispatcher]:
    database = Database.connect(url, pool_size=4, name="test")
    signals = Signals(database, url, name="test-signals")
    made = QueueDispatcher(
        database, heartbeat_seconds=0.3, dead_after_seconds=dead_after_seconds, look_seconds=0.5
    )
    signals.subscribe(queue.CHANNEL, lambda _: made.wake())
    listening = asyncio.create_task(signals.run())
    try:
        yield made
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await database.close()


@asynccontextmanager
async def running(
    url: str, handler: Handler, concurrency: int = 4, stop_seconds: float = 5
) -> AsyncIterator[QueueDispatcher]:
    stop = asyncio.Event()
    async with dispatcher(url) as one:
        task = asyncio.create_task(
            one.run(handler, concurrency=concurrency, stop=stop, stop_seconds=stop_seconds)
        )
        try:
            yield one
        finally:
            stop.set()
            await asyncio.wait_for(task, 60)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def take(
    database: Database, *lanes: Lane, total: int = 1, after: UUID = NOBODY
) -> list[WorkItem]:
    """What a look brings, of a worker that nobody knows."""
    looks = [Look(lane=lane, quota=total, after=after) for lane in lanes]
    found = await queue.take(database, uuid4(), done=(), looks=looks, total=total)
    return [item for _, item in found.items]


async def test_what_is_runnable_is_handled_and_leaves_nothing_behind(url: str, rows: Rows) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        await rows.run(_DONE, one.item_id)
        handled.append(one)

    async with running(url, handle):
        await rows.make("s", 5)
        await rows.make("later", ready=3600)
        await until(lambda: len(handled) == 5)
    assert sorted(await rows.names(handled)) == ["s1", "s2", "s3", "s4", "s5"]
    for table in ("claim", "worker", "wanted"):
        assert await rows.run(f"TABLE {table}") == []


async def test_a_hint_wakes_a_worker_before_it_looks_by_itself(url: str, rows: Rows) -> None:
    handled = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        await rows.run(_DONE, one.item_id)
        handled.set()

    async with dispatcher(url) as one:
        one._look_seconds = 3600
        stop = asyncio.Event()
        task = asyncio.create_task(one.run(handle, concurrency=1, stop=stop, stop_seconds=5))
        async with asyncio.timeout(60):
            # It listens, and has looked.
            while not await rows.run("SELECT 1 FROM worker"):
                await asyncio.sleep(0.02)
            await rows.make("s")
            item = WorkItem(
                kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=NOBODY, item_id=NOBODY
            )
            while not handled.is_set():
                await one.hint([item])
                await asyncio.sleep(0.1)
        stop.set()
        await task


async def test_memories_that_somebody_waits_for_go_first_and_then_the_newest(
    database: Database, rows: Rows
) -> None:
    await rows.make("old", 50, ready=-100)
    await rows.make("new", 2, ready=-3)
    await rows.make("waited", ready=-50)
    ((key, memory_id),) = await rows.run(
        "SELECT session_key, memory_id FROM memory JOIN session USING (session_key)"
        " WHERE session.name = 'waited1'"
    )
    item = WorkItem(
        kind=WorkKind.MEMORY,
        tenant_id=DEFAULT_TENANT,
        session_key=UUID(str(key)),
        item_id=UUID(str(memory_id)),
    )
    await queue.want(database, [item, item])
    found = await take(database, Lane.WANTED, Lane.RECENT, Lane.BACKLOG, total=5)
    assert await rows.names(found) == ["waited1", "new2", "new1", "old1", "old2"]


async def test_tenants_have_turns_whatever_another_has_left_behind(
    database: Database, rows: Rows
) -> None:
    tenants = [UUID(int=n) for n in (3, 4, 5)]
    await rows.make("many", 50, ready=-100, tenant=tenants[0])
    await rows.make("few", 2, ready=-50, tenant=tenants[1])
    await rows.make("one", ready=-20, tenant=tenants[2])
    found = await take(database, Lane.BACKLOG, total=3)
    assert await rows.names(found) == ["many1", "few1", "one1"]
    # From the one behind the last that had its turn; and when all had theirs, what is left.
    found = await take(database, Lane.BACKLOG, total=4, after=tenants[0])
    assert await rows.names(found) == ["few2", "many2", "many3", "many4"]


async def test_a_look_ends_after_so_many_tenants_and_says_so(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LOOK_TENANTS", 2)
    for number in (3, 4, 5):
        await rows.make(f"put off {number} ", ready=3600, tenant=UUID(int=number))
    await rows.make("ready", tenant=UUID(int=9), ready=-1)
    after, looks = NOBODY, 0
    while True:
        looks += 1
        found = await queue.take(
            database,
            uuid4(),
            done=(),
            looks=[Look(lane=Lane.BACKLOG, quota=1, after=after)],
            total=1,
        )
        if found.items:
            break
        assert found.more
        after = found.ended[Lane.BACKLOG]
    assert looks == 2
    assert await rows.names([found.items[0][1]]) == ["ready1"]


async def test_two_workers_never_take_the_same(url: str, rows: Rows) -> None:
    await rows.make("s", 300, ready=-100)
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await asyncio.sleep(0.01)
        await rows.run(_DONE, one.item_id)

    async with running(url, handle, 8), running(url, handle, 8):
        await until(lambda: len(handled) >= 300)
    assert len(handled) == len(set(handled)) == 300


async def test_a_handler_that_fails_does_not_stop_the_others(
    url: str, rows: Rows, capfd: pytest.CaptureFixture[str]
) -> None:
    await rows.make("bad", ready=-100)
    await rows.make("good", 3, ready=-50)
    tried: list[str] = []

    async def handle(one: WorkItem) -> None:
        (name,) = await rows.names([one])
        tried.append(name)
        if name == "bad1":
            raise RuntimeError("a defect")
        await rows.run(_DONE, one.item_id)

    async with running(url, handle, concurrency=1):
        await until(lambda: tried.count("bad1") == 2)
    assert tried.count("bad1") == 2, "it is left for a while"
    assert {"good1", "good2", "good3"} < set(tried)
    assert "work failed" in capfd.readouterr().out


async def test_what_is_not_to_be_taken_now_is_left_to_nobody_else(url: str, rows: Rows) -> None:
    await rows.make("s")
    begun: list[float] = []
    loop = asyncio.get_running_loop()

    async def handle(one: WorkItem) -> None:
        begun.append(loop.time())
        if len(begun) == 1:
            raise NotNow(1.0)
        await rows.run(_DONE, one.item_id)

    async with running(url, handle), running(url, handle):
        await until(lambda: len(begun) == 2)
    assert begun[1] - begun[0] >= 1.0


async def test_what_comes_back_for_ever_does_not_keep_a_worker_from_the_rest(
    url: str, rows: Rows, capfd: pytest.CaptureFixture[str]
) -> None:
    await rows.make("for ever", ready=-100)
    times = 0

    async def handle(_: WorkItem) -> None:
        nonlocal times
        times += 1

    async with running(url, handle, concurrency=1):
        await until(lambda: "again and again" in capfd.readouterr().out)
        before = times
        await rows.make("other", ready=-1)
        await until(lambda: times > before)
    assert before >= MOST_TURNS


async def test_stopping_lets_the_handler_finish(url: str, rows: Rows) -> None:
    events: list[str] = []

    async def handle(one: WorkItem) -> None:
        events.append("begun")
        await asyncio.sleep(0.5)
        await rows.run(_DONE, one.item_id)
        events.append("ended")

    async with running(url, handle):
        await rows.make("s")
        await until(lambda: events == ["begun"])
    assert events == ["begun", "ended"]


async def test_a_handler_that_does_not_end_in_time_is_cancelled(url: str, rows: Rows) -> None:
    events: list[str] = []

    async def handle(_: WorkItem) -> None:
        events.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cancelled")

    async with running(url, handle, stop_seconds=0.2):
        await rows.make("s")
        await until(lambda: events == ["begun"])
    assert events == ["begun", "cancelled"]
    assert await rows.run("TABLE claim") == []


async def test_a_stopping_worker_says_that_it_lives_while_it_has_something_in_hand(
    url: str, rows: Rows
) -> None:
    handled: list[WorkItem] = []
    going = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await going.wait()

    beats: set[object] = set()
    freed = 0
    stop = asyncio.Event()
    await rows.make("s")
    # Patient, since the machine may stand still for longer than a heartbeat.
    async with dispatcher(url, dead_after_seconds=30) as one:
        task = asyncio.create_task(one.run(handle, concurrency=1, stop=stop, stop_seconds=60))
        await until(lambda: handled)
        stop.set()
        async with asyncio.timeout(60):
            while len(beats) < 5:
                ((beat,),) = await rows.run("SELECT beat_at FROM worker")
                beats.add(beat)
                freed += await one.sweep()
                await asyncio.sleep(0.1)
        going.set()
        await task
    assert freed == 0
    assert len(handled) == 1


async def test_cancelling_a_worker_leaves_none_behind(url: str, rows: Rows) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await asyncio.Event().wait()

    await rows.make("s", 2)
    async with dispatcher(url) as one:
        task = asyncio.create_task(
            one.run(handle, concurrency=1, stop=asyncio.Event(), stop_seconds=1)
        )
        await until(lambda: handled)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        statistics = await one.statistics()
    assert (statistics.queued, statistics.running) == (2, 0)
    assert len(handled) == 1


async def test_what_was_taken_by_a_look_without_an_answer_is_given_back(
    url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is there, and the worker was never told."""
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
        await rows.run(_DONE, one.item_id)
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
        await rows.run(_DONE, one.item_id)

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
        await rows.run(_DONE, one.item_id)

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
        from storage.database import Database
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
        await rows.run(_DONE, again.item_id)

    async with running(url, handle) as one:
        freed = 0
        async with asyncio.timeout(60):
            while not freed:
                freed = await one.sweep()
                await asyncio.sleep(0.1)
        await until(lambda: handled)
    assert len(handled) == 1


async def test_who_waits_no_more_is_forgotten(database: Database, rows: Rows) -> None:
    await rows.make("s", 2)
    found = await take(database, Lane.BACKLOG, total=2)
    await queue.want(database, found)
    await rows.run(_DONE, found[0].item_id)
    await queue.sweep(database, dead_after_seconds=15)
    ((left,),) = await rows.run("SELECT memory_id FROM wanted")
    assert left == found[1].item_id
    await rows.run("UPDATE wanted SET wanted_at = now() - interval '61 seconds'")
    await queue.sweep(database, dead_after_seconds=15)
    assert await rows.run("TABLE wanted") == []


async def test_hints_to_a_database_that_is_gone_are_lost_quietly(
    url: str, servers: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    item = WorkItem(
        kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=NOBODY, item_id=NOBODY
    )
    async with dispatcher(url) as one:
        with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")
        await one.hint([item])
        await one.want([item])
        assert await one.sweep() == 0
    said = capfd.readouterr().out
    assert "hints lost" in said
    assert "not told that somebody waits" in said


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to be crashed."""
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
        await rows.run(_DONE, one.item_id)

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
