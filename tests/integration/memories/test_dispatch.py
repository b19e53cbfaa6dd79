"""Dispatch: runnable work is claimed once, in turns."""

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from service.app.worker import Worker
from service.dispatch.claimed_work import MOST_TURNS, NotNow
from service.dispatch.turns import CYCLE, Turns
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.gateway.bulkhead import Bulkhead
from service.settings.config import Config
from storage.engine.database import Database
from storage.memories import queue
from storage.memories.queue import NOBODY, UNBOUND, QueueBatch, QueueScan, WorkClass
from tests.integration.support.dispatching import DONE, Rows, dispatcher, rows, running, take, until

__all__ = ["rows"]


async def test_what_is_runnable_is_handled_and_leaves_nothing_behind(url: str, rows: Rows) -> None:
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        await rows.run(DONE, one.item_id)
        handled.append(one)

    async with running(url, handle):
        await rows.make("s", 5)
        await rows.make("later", ready=3600)
        await until(lambda: len(handled) == 5)
    assert sorted(await rows.names(handled)) == ["s1", "s2", "s3", "s4", "s5"]
    for table in ("claim", "worker", "wanted"):
        assert await rows.run(f"TABLE {table}") == []


async def test_a_wake_up_wakes_a_worker_before_it_looks_by_itself(url: str, rows: Rows) -> None:
    handled = asyncio.Event()

    async def handle(one: WorkItem) -> None:
        await rows.run(DONE, one.item_id)
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
                await one.wake_up([item])
                await asyncio.sleep(0.1)
        stop.set()
        await task


async def test_memories_that_a_client_waits_for_go_first_and_then_the_newest(
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
    found = await take(database, WorkClass.WANTED, WorkClass.RECENT, WorkClass.BACKLOG, total=5)
    assert await rows.names(found) == ["waited1", "new2", "old1", "new1", "old2"]


async def test_what_has_had_its_turn_stands_after_what_has_just_come(
    database: Database, rows: Rows
) -> None:
    class Endless:
        async def drain(self, *_: object, **__: object) -> float:
            return 0.0

    bulkhead = Bulkhead(silent_seconds=60, slots=1, concurrency=2)
    none: Any = None
    endless = cast(Any, Endless())
    worker = Worker(*(database, none, none, none, endless, *(none,) * 7, bulkhead, none), Config())
    await rows.make("long", ready=-30)
    (long,) = await take(database, WorkClass.BACKLOG)
    await rows.make("fresh")
    await worker.handle(long)
    await rows.run("DELETE FROM claim")
    assert await rows.names(await take(database, WorkClass.RECENT, total=2)) == ["fresh1"]
    assert await take(database, WorkClass.BACKLOG) == [long]


async def test_tenants_have_turns_whatever_another_has_left_behind(
    database: Database, rows: Rows
) -> None:
    tenants = [UUID(int=n) for n in (3, 4, 5)]
    await rows.make("many", 50, ready=-100, tenant=tenants[0])
    await rows.make("few", 2, ready=-50, tenant=tenants[1])
    await rows.make("one", ready=-20, tenant=tenants[2])
    found = await take(database, WorkClass.BACKLOG, total=3)
    assert await rows.names(found) == ["many1", "few1", "one1"]
    # From the one after the last that had its turn; and when all had theirs, what is left.
    found = await take(database, WorkClass.BACKLOG, total=4, after=tenants[0])
    assert await rows.names(found) == ["few2", "many2", "many3", "many4"]


async def test_a_look_ends_after_so_many_tenants_and_says_so(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SCAN_TENANTS", 2)
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
            scan=QueueScan(total=1, cycle=CYCLE, bound=UNBOUND, after=after),
        )
        if found.items:
            break
        assert found.more
        after = found.ended
    assert looks == 2
    assert await rows.names([found.items[0].item]) == ["ready1"]
    # Many that are put off are passed in fewer.
    await rows.run("DELETE FROM claim")
    wide = QueueScan(total=1, cycle=CYCLE, bound=UNBOUND, after=NOBODY, is_wide=True)
    found = await queue.take(database, uuid4(), done=(), scan=wide)
    assert await rows.names([one.item for one in found.items]) == ["ready1"]


async def test_two_workers_never_take_the_same(url: str, rows: Rows) -> None:
    await rows.make("s", 300, ready=-100)
    handled: list[WorkItem] = []

    async def handle(one: WorkItem) -> None:
        handled.append(one)
        await asyncio.sleep(0.01)
        await rows.run(DONE, one.item_id)

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
        await rows.run(DONE, one.item_id)

    async with running(url, handle, concurrency=1):
        await until(lambda: tried.count("bad1") == 2)
    assert tried.count("bad1") == 2, "it is left for a while"
    assert {"good1", "good2", "good3"} < set(tried)
    assert "work failed" in capfd.readouterr().out


async def test_offered_work_leaves_slots_to_work_that_a_client_waits_for(
    url: str, rows: Rows
) -> None:
    """Returns the last offer, which is all the work that there is."""
    going = asyncio.Event()
    begun: list[UUID] = []

    async def handle(one: WorkItem) -> None:
        begun.append(one.item_id)
        await going.wait()
        if one.kind is WorkKind.MEMORY:
            await rows.run(DONE, one.item_id)

    offers = [
        [
            WorkItem(
                kind=WorkKind.INDEX,
                tenant_id=DEFAULT_TENANT,
                session_key=UUID(int=number),
                item_id=UUID(int=number),
            )
            for number in numbers
        ]
        for numbers in (range(100, 120), range(200, 220))
    ]
    async with dispatcher(url, dead_after_seconds=3600) as one:
        for items in offers:
            await one.offer(items)
        stop = asyncio.Event()
        task = asyncio.create_task(one.run(handle, concurrency=8, stop=stop, stop_seconds=3600))
        await until(lambda: len(begun) >= 7)
        await rows.make("s")
        ((key, memory),) = await rows.run("SELECT session_key, memory_id FROM memory")
        waited = WorkItem(
            kind=WorkKind.MEMORY,
            tenant_id=DEFAULT_TENANT,
            session_key=UUID(str(key)),
            item_id=UUID(str(memory)),
        )
        await one.want([waited])
        await until(lambda: waited.item_id in begun)
        stop.set()
        going.set()
        await task
    assert [one.int for one in begun[:7]] == list(range(200, 207))
    assert begun[7:] == [waited.item_id]


async def test_a_worker_outlives_a_defect_where_it_counts_turns(
    url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    handled: list[WorkItem] = []
    count = Turns.count
    failed = 0

    def fail_once(turns: Turns, taken: QueueBatch) -> None:
        nonlocal failed
        if not failed:
            failed += 1
            raise KeyError("a defect")
        count(turns, taken)

    async def handle(one: WorkItem) -> None:
        await rows.run(DONE, one.item_id)
        handled.append(one)

    monkeypatch.setattr(Turns, "count", fail_once)
    async with running(url, handle):
        await until(lambda: failed)
        await rows.make("s")
        await until(lambda: handled)
    assert "no work taken" in capfd.readouterr().out


async def test_work_that_is_not_due_is_given_to_no_worker(url: str, rows: Rows) -> None:
    await rows.make("s")
    begun: list[float] = []
    loop = asyncio.get_running_loop()

    async def handle(one: WorkItem) -> None:
        begun.append(loop.time())
        if len(begun) == 1:
            raise NotNow(1.0)
        await rows.run(DONE, one.item_id)

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
        await until(lambda: "claimed again too often" in capfd.readouterr().out)
        before = times
        await rows.make("other", ready=-1)
        await until(lambda: times > before)
    assert before >= MOST_TURNS


async def test_stopping_lets_the_handler_finish(url: str, rows: Rows) -> None:
    events: list[str] = []

    async def handle(one: WorkItem) -> None:
        events.append("begun")
        await asyncio.sleep(0.5)
        await rows.run(DONE, one.item_id)
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
    # Patient, since the machine may be suspended for longer than a heartbeat.
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


async def test_others_go_on_with_what_a_stopping_worker_has_finished(url: str, rows: Rows) -> None:
    """While its slowest handler has not ended."""
    begun: set[str] = set()
    taken: set[str] = set()
    short, long, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(one: WorkItem) -> None:
        (name,) = await rows.names([one])
        begun.add(name)
        if name == "held1":
            raise NotNow(3600)
        await (short if name == "short1" else long).wait()

    async def take_over(one: WorkItem) -> None:
        await rows.run(DONE, one.item_id)
        taken.update(await rows.names([one]))

    for name in ("short", "held", "long"):
        await rows.make(name)
    # Patient, since the machine may be suspended for longer than a heartbeat.
    async with dispatcher(url, dead_after_seconds=3600) as one:
        task = asyncio.create_task(one.run(handle, concurrency=3, stop=stop, stop_seconds=3600))
        await until(lambda: len(begun) == 3)
        async with running(url, take_over):
            stop.set()
            short.set()
            await until(lambda: taken == {"short1", "held1"})
            assert not task.done()
            long.set()
            await task
            await until(lambda: "long1" in taken)
    assert await rows.run("TABLE claim") == []


async def test_cancelling_a_worker_leaves_none_behind(
    url: str, database: Database, rows: Rows
) -> None:
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
        facts = await queue.read_facts(database, dead_after_seconds=15)
    assert (facts.queued, facts.running) == (2, 0)
    assert len(handled) == 1


async def test_who_waits_no_more_is_forgotten(database: Database, rows: Rows) -> None:
    await rows.make("s", 2)
    found = await take(database, WorkClass.BACKLOG, total=2)
    await queue.want(database, found)
    await rows.run(DONE, found[0].item_id)
    await queue.sweep(database, dead_after_seconds=15)
    ((left,),) = await rows.run("SELECT memory_id FROM wanted")
    assert left == found[1].item_id
    await rows.run("UPDATE wanted SET wanted_at = now() - interval '61 seconds'")
    await queue.sweep(database, dead_after_seconds=15)
    assert await rows.run("TABLE wanted") == []


async def test_a_wish_that_is_said_again_is_not_forgotten_and_a_new_one_keeps_its_turn(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RENEW_SECONDS", 3600)
    await rows.make("s", 2)
    old, new = await take(database, WorkClass.BACKLOG, total=2)
    await queue.want(database, [old, new])
    await rows.run(
        "UPDATE wanted SET wanted_at = now() - interval '2 hours' WHERE memory_id = %s",
        old.item_id,
    )
    ((before,),) = await rows.run("SELECT wanted_at FROM wanted WHERE memory_id = %s", new.item_id)
    await queue.want(database, [old, new])
    await queue.sweep(database, dead_after_seconds=15)
    kept = await rows.run("SELECT memory_id FROM wanted ORDER BY wanted_at")
    assert kept == [(new.item_id,), (old.item_id,)]
    assert await rows.run("SELECT wanted_at FROM wanted WHERE memory_id = %s", new.item_id) == [
        (before,)
    ]
