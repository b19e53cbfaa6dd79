"""Dispatch: hints arrive, coalesce, exclude one another, and survive the dead."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from service.dispatch.port import Handler
from service.dispatch.procrastinate import ProcrastinateDispatcher
from service.dispatch.setup import DispatchMismatch, install, verify
from service.domain.work import WorkItem, WorkKind
from service.embedded.postgres import PostgresServer
from tests.harness import Servers


def item(number: int | None = None) -> WorkItem:
    identity = uuid4() if number is None else UUID(int=number)
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=UUID(int=1), session_key=UUID(int=2), item_id=identity
    )


HEARTBEATS = b"SELECT last_heartbeat FROM dispatch.procrastinate_workers"


def dispatcher(url: str, dead_after_seconds: float = 1.0) -> ProcrastinateDispatcher:
    return ProcrastinateDispatcher(
        url, heartbeat_seconds=0.3, dead_after_seconds=dead_after_seconds
    )


@asynccontextmanager
async def running(
    url: str, handler: Handler, concurrency: int = 4, stop_seconds: float = 5
) -> AsyncIterator[ProcrastinateDispatcher]:
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


async def idle(one: ProcrastinateDispatcher) -> None:
    """Until nothing waits, and all that was in hand is written as ended."""
    async with asyncio.timeout(60):
        while (left := await one.statistics()).queued or left.running:
            await asyncio.sleep(0.02)


async def sweeping(one: ProcrastinateDispatcher) -> None:
    while True:
        await one.sweep()
        await asyncio.sleep(0.1)


async def execute(servers: Servers, url: str, statement: bytes) -> list[tuple[object, ...]]:
    """As superuser, in the test's database.

    In a thread: the statement may wait for a lock of a transaction that a worker here has
    open, and that transaction can only end while the event loop runs.
    """

    def run() -> list[tuple[object, ...]]:
        with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return await asyncio.to_thread(run)


async def test_hints_are_handled_and_leave_nothing_behind(url: str, servers: Servers) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)

    items = [item() for _ in range(5)]
    async with running(url, handle) as one:
        await one.hint(items)
        await until(lambda: len(handled) == 5)
        await idle(one)
    assert sorted(handled, key=str) == sorted(items, key=str)
    for table in (b"jobs", b"events", b"workers"):
        assert await execute(servers, url, b"TABLE dispatch.procrastinate_" + table) == []


async def test_what_somebody_waits_for_passes_the_memories_that_wait(url: str) -> None:
    handled: list[WorkItem] = []
    going = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        await going.wait()
        handled.append(one)

    memories = [item() for _ in range(5)]
    asked = [replace(item(), kind=kind) for kind in (WorkKind.ANSWER, WorkKind.SCHEMA)]
    indexed = replace(item(), kind=WorkKind.INDEX)
    async with running(url, handle, concurrency=1) as one:
        await one.hint([indexed, *memories])
        await one.hint(asked)
        going.set()
        await until(lambda: len(handled) == 8)
    # One may have been in hand before the questions came.
    assert set(asked) <= set(handled[:3])


async def test_what_is_swept_keeps_its_place(url: str, servers: Servers) -> None:
    async with dispatcher(url) as one:
        await one.hint([replace(item(), kind=WorkKind.ANSWER)])
        query = b"SELECT priority FROM dispatch.procrastinate_jobs WHERE status = 'todo'"
        before = await execute(servers, url, query)
        lost = b"SET search_path = dispatch; UPDATE procrastinate_jobs SET status = 'doing'"
        await execute(servers, url, lost)
        assert await one.sweep() == 1
        assert await execute(servers, url, query) == before != [(0,)]


async def test_hints_for_one_item_coalesce(url: str) -> None:
    async with dispatcher(url) as one:
        await one.hint([item(1), item(2), item(1)])
        await one.hint([item(1)])
        assert (await one.statistics()).queued == 2


async def test_an_item_is_never_in_two_hands(url: str) -> None:
    hands = 0
    most = 0
    done = 0

    async def handle(_: WorkItem) -> None:
        nonlocal hands, most, done
        hands += 1
        most = max(most, hands)
        await asyncio.sleep(0.1)
        hands -= 1
        done += 1

    async with running(url, handle) as one, running(url, handle):
        for number in range(4):
            await one.hint([item(1)])
            await until(lambda number=number: done >= number or hands)
            await asyncio.sleep(0.05)
        await until(lambda: not hands and done >= 2)
    assert most == 1


async def test_a_handler_that_fails_does_not_stop_the_others(url: str) -> None:
    handled: list[int] = []

    async def handle(one: WorkItem) -> None:
        if one.item_id.int == 1:
            raise RuntimeError("a defect")
        handled.append(one.item_id.int)

    async with running(url, handle, concurrency=1) as one:
        await one.hint([item(1), item(2)])
        await until(lambda: handled == [2])


async def test_stopping_lets_the_handler_finish(url: str) -> None:
    events: list[str] = []

    async def handle(_: WorkItem) -> None:
        events.append("begun")
        await asyncio.sleep(0.5)
        events.append("ended")

    async with running(url, handle) as one:
        await one.hint([item()])
        await until(lambda: events == ["begun"])
    assert events == ["begun", "ended"]


async def test_a_handler_that_does_not_end_in_time_is_cancelled(url: str) -> None:
    events: list[str] = []

    async def handle(_: WorkItem) -> None:
        events.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cancelled")

    async with running(url, handle, stop_seconds=0.2) as one:
        await one.hint([item()])
        await until(lambda: events == ["begun"])
    assert events == ["begun", "cancelled"]
    async with dispatcher(url) as one:
        assert (await one.statistics()).running == 0


async def test_a_stopping_worker_says_that_it_lives_while_it_has_something_in_hand(
    url: str, servers: Servers
) -> None:
    handled: list[WorkItem] = []
    going = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await going.wait()

    beats: set[object] = set()
    freed = 0
    stop = asyncio.Event()
    # Patient, since the machine may stand still for longer than a heartbeat.
    async with dispatcher(url, dead_after_seconds=30) as one:
        task = asyncio.create_task(one.run(handle, concurrency=1, stop=stop, stop_seconds=60))
        await one.hint([item(1)])
        await until(lambda: handled)
        stop.set()
        async with asyncio.timeout(60):
            while len(beats) < 5:
                ((beat,),) = await execute(servers, url, HEARTBEATS)
                beats.add(beat)
                freed += await one.sweep()
                await asyncio.sleep(0.1)
        going.set()
        await task
    assert freed == 0
    assert handled == [item(1)]


async def test_cancelling_a_worker_leaves_none_behind(url: str) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)

    async with dispatcher(url) as one:
        task = asyncio.create_task(
            one.run(handle, concurrency=1, stop=asyncio.Event(), stop_seconds=1)
        )
        await one.hint([item(1)])
        await until(lambda: handled)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one.hint([item(2)])
        await asyncio.sleep(1.5)
        assert (await one.statistics()).queued == 1
    assert handled == [item(1)]


async def test_an_item_is_freed_though_its_end_could_not_be_written(
    url: str, servers: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        if not handled:
            await execute(
                servers, url, b"REVOKE DELETE ON dispatch.procrastinate_jobs FROM palimpsest_app"
            )
        handled.append(one)

    async with running(url, handle) as one:
        await one.hint([item(1)])
        await until(lambda: "end of work not written" in capfd.readouterr().out)
        await execute(
            servers, url, b"GRANT DELETE ON dispatch.procrastinate_jobs TO palimpsest_app"
        )
        # The worker lives, so that only it can know that nobody has the item in hand.
        assert await one.sweep() == 1
        await until(lambda: handled == [item(1), item(1)])
        await idle(one)
        assert await one.sweep() == 0


async def test_a_worker_that_was_taken_for_dead_works_on(url: str, servers: Servers) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)

    async with running(url, handle) as one:
        await one.hint([item(1)])
        await until(lambda: handled == [item(1)])
        await execute(servers, url, b"DELETE FROM dispatch.procrastinate_workers")
        await one.hint([item(2)])
        await until(lambda: handled == [item(1), item(2)])


async def test_batches_in_opposite_orders_do_not_deadlock(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with dispatcher(url) as one, dispatcher(url) as other:
        for batch in range(20):
            items = [item(batch * 1000 + number) for number in range(500)]
            await asyncio.gather(one.hint(items), other.hint(items[::-1]))
        assert (await one.statistics()).queued == 20 * 500
    assert "hints lost" not in capfd.readouterr().out


async def test_a_sweep_does_not_deadlock_with_who_forgets_the_same_worker(
    url: str, servers: Servers
) -> None:
    dead = b"""
        SET search_path = dispatch;
        INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour');
        UPDATE procrastinate_jobs SET status = 'doing',
            worker_id = (SELECT max(id) FROM procrastinate_workers)
    """
    waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%gone%'"
    async with dispatcher(url) as one:
        await one.hint([item()])
        await execute(servers, url, dead)
        # As the library forgets a worker: first it, then what it held.
        other = await psycopg.AsyncConnection.connect(servers.as_superuser(url))
        async with other:
            await other.execute("SET search_path = dispatch")
            await other.execute("SELECT 1 FROM procrastinate_workers FOR UPDATE")
            sweep = asyncio.create_task(one.sweep())
            async with asyncio.timeout(60):
                while not await execute(servers, url, waits):
                    await asyncio.sleep(0.02)
            await other.execute("UPDATE procrastinate_jobs SET worker_id = NULL")
            await other.rollback()
        assert await sweep == 1


@pytest.mark.parametrize("follow_up", [False, True])
async def test_what_a_killed_worker_held_is_handled_again(url: str, follow_up: bool) -> None:
    script = f"""
        import asyncio, os, signal
        from service.dispatch.procrastinate import ProcrastinateDispatcher
        async def die(item):
            os.kill(os.getpid(), signal.SIGKILL)
        async def main():
            one = ProcrastinateDispatcher({url!r}, heartbeat_seconds=0.3, dead_after_seconds=1.0)
            async with one:
                await one.run(die, concurrency=1, stop=asyncio.Event(), stop_seconds=1)
        asyncio.run(main())
    """
    async with dispatcher(url) as one:
        await one.hint([item(1)])
        process = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", textwrap.dedent(script)], check=False
        )
        assert process.returncode == -9
        assert (await one.statistics()).running == 1
        if follow_up:
            # The trap of the library's own recipe: the dead job cannot be queued again.
            await one.hint([item(1)])
            assert (await one.statistics()).queued == 1
    handled: list[WorkItem] = []

    async def handle(again: WorkItem) -> None:
        handled.append(again)

    async with running(url, handle) as one:
        freed = 0
        async with asyncio.timeout(60):
            while not freed:
                freed = await one.sweep()
                await asyncio.sleep(0.1)
        await until(lambda: handled == [item(1)])
        await asyncio.sleep(0.3)
        assert handled == [item(1)]


async def test_hints_to_a_database_that_is_gone_are_lost_quietly(
    url: str, servers: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    async with dispatcher(url) as one:
        with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")
        await one.hint([item()])
        assert await one.sweep() == 0
    assert "hints lost" in capfd.readouterr().out


def test_setting_up_twice_changes_nothing_and_another_release_is_refused(
    url: str, servers: Servers
) -> None:
    install(url)
    with psycopg.connect(servers.as_superuser(url)) as connection:
        connection.execute("COMMENT ON SCHEMA dispatch IS 'procrastinate 1.0'")
    with pytest.raises(DispatchMismatch, match=r"made by 'procrastinate 1\.0'"):
        install(url)


async def test_a_database_without_the_tables_is_refused(url: str, servers: Servers) -> None:
    await execute(servers, url, b"DROP SCHEMA dispatch CASCADE")
    with pytest.raises(ConnectionError, match="run `palimpsest migrate`"):
        async with dispatcher(url):
            pass


async def test_tables_of_another_release_are_worked_with(url: str, servers: Servers) -> None:
    await execute(servers, url, b"COMMENT ON SCHEMA dispatch IS 'procrastinate 1.0'")
    with pytest.raises(DispatchMismatch):
        await verify(url)
    async with dispatcher(url) as one:
        await one.hint([item(1)])
        assert (await one.statistics()).queued == 1


async def test_concurrent_set_ups_wait_for_each_other(url: str, servers: Servers) -> None:
    await execute(servers, url, b"DROP SCHEMA dispatch CASCADE")
    await asyncio.gather(*(asyncio.to_thread(install, url) for _ in range(4)))
    await verify(url)


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to be crashed, with the role that `install` expects."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        with PostgresServer(Path(name) / "postgres") as server:
            with psycopg.connect(server.superuser_url, autocommit=True) as connection:
                connection.execute("CREATE ROLE palimpsest_app")
                connection.execute("GRANT palimpsest_app TO palimpsest")
            install(server.url)
            yield server


async def test_a_worker_outlives_a_crash_of_the_database(postgres: PostgresServer) -> None:
    handled: list[WorkItem] = []
    crashed = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await crashed.wait()

    with psycopg.connect(postgres.superuser_url) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    process = int((Path(row[0]) / "postmaster.pid").read_text().splitlines()[0])
    async with running(postgres.url, handle) as one:
        await one.hint([item(1)])
        await until(lambda: handled == [item(1)])
        os.kill(process, signal.SIGKILL)
        await until(lambda: not postgres.is_running())
        # The handler ends while its end cannot be written.
        crashed.set()
        await asyncio.sleep(1.5)
        postgres.restart()
        sweeper = asyncio.create_task(sweeping(one))
        await one.hint([item(1), item(2)])
        await until(lambda: handled.count(item(1)) >= 2 and item(2) in handled)
        sweeper.cancel()


async def test_a_hint_is_a_statement_without_a_transaction_around_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    execute = psycopg.AsyncConnection._exec_command

    def noted(self: psycopg.AsyncConnection[Any], command: bytes, *rest: Any) -> Any:
        sent.append(command)
        return execute(self, command, *rest)

    async with dispatcher(url) as one:
        monkeypatch.setattr(psycopg.AsyncConnection, "_exec_command", noted)
        await one.hint([item()])
        assert (await one.statistics()).queued == 1
    assert sent == []
