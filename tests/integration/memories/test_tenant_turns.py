"""Tenants take turns in the queue by what their items cost, over all workers."""

import asyncio
from collections import Counter
from uuid import UUID, uuid4

import pytest

from service.dispatch.turns import CYCLE
from service.domain.values.work_items import WorkItem
from storage.engine.database import Database
from storage.engine.tasks import Preemption
from storage.memories import queue
from storage.memories.queue import NOBODY, UNBOUND, ClaimedItem, Done, QueueScan
from tests.integration.support.dispatching import DONE, Rows, dispatcher, rows, until

__all__ = ["rows"]

A, B, C = (UUID(int=number) for number in (3, 4, 5))


class Workers:
    """Workers with one slot each, whose items take as long as a test says."""

    def __init__(self, database: Database, seconds: dict[UUID, float], count: int = 1) -> None:
        self._database = database
        self._seconds = seconds
        self._done: dict[UUID, list[Done]] = {uuid4(): [] for _ in range(count)}
        self._after = dict.fromkeys(self._done, NOBODY)
        #: Tenants in the order of their turns.
        self.served: list[UUID] = []

    async def serve(self, turns: int) -> list[UUID]:
        """Gives each worker in turn an item, and returns their tenants. Items stay ready."""
        workers = list(self._done)
        before = len(self.served)
        for turn in range(turns):
            worker = workers[turn % len(workers)]
            scan = QueueScan(total=1, cycle=CYCLE, bound=UNBOUND, after=self._after[worker])
            taken = await queue.take(self._database, worker, done=self._done[worker], scan=scan)
            self._done[worker] = [self._end(one) for one in taken.items]
            if taken.items:
                self._after[worker] = taken.items[-1].item.tenant_id
                self.served.append(self._after[worker])
        return self.served[before:]

    def _end(self, one: ClaimedItem) -> Done:
        seconds = self._seconds.get(one.item.tenant_id, 1.0)
        return Done(item=one.item, more=True, seconds=seconds, charged=one.charged)


async def test_a_single_item_waits_for_one_of_a_tenant_with_many(
    database: Database, rows: Rows
) -> None:
    await rows.make("many", 300, ready=-100, tenant=A)
    workers = Workers(database, {})
    await workers.serve(20)
    await rows.make("one", tenant=B)
    assert B in await workers.serve(1)


@pytest.mark.parametrize("between", [1, 2, 5])
async def test_each_single_item_that_comes_after_a_pause_is_next(
    database: Database, rows: Rows, between: int
) -> None:
    """What a tenant was charged before is past when another has worked alone since."""
    await rows.make("many", 300, ready=-100, tenant=A)
    await rows.make("one", tenant=B, ready=-1)
    workers = Workers(database, {})
    await workers.serve(20)
    for _ in range(4):
        await rows.run("UPDATE memory SET has_work = false WHERE tenant_id = %s", B)
        # The one of B that is worked on, and then A's.
        await workers.serve(1 + between)
        await rows.run("UPDATE memory SET has_work = true WHERE tenant_id = %s", B)
        assert await workers.serve(1) == [B]


async def test_no_class_of_work_lets_a_tenant_pass_another(database: Database, rows: Rows) -> None:
    """The tenant with many has work of classes that go first within a tenant."""
    await rows.make("many", 30, ready=-1, tenant=A)
    scan = QueueScan(total=30, cycle=CYCLE, bound=UNBOUND, after=NOBODY)
    claimed = await queue.take(database, uuid4(), done=(), scan=scan)
    await queue.want(database, [one.item for one in claimed.items])
    await rows.run("DELETE FROM claim")
    workers = Workers(database, {})
    await workers.serve(20)
    await rows.make("one", ready=-3600, tenant=B)
    assert B in await workers.serve(1)


@pytest.mark.parametrize("count", [1, 3])
async def test_tenants_share_time_and_not_items(database: Database, rows: Rows, count: int) -> None:
    seconds = {A: 0.1, B: 1.0, C: 0.4}
    for tenant in seconds:
        await rows.make(f"of {tenant.int} ", 10, ready=-100, tenant=tenant)
    workers = Workers(database, seconds, count)
    # What items take is known after some.
    await workers.serve(60)
    served = Counter(await workers.serve(300))
    spent = {tenant: served[tenant] * seconds[tenant] for tenant in seconds}
    assert max(spent.values()) - min(spent.values()) <= 2 * count * max(seconds.values())


async def test_each_of_hundreds_of_tenants_has_its_turn(database: Database, rows: Rows) -> None:
    """More of them than one scan considers."""
    tenants = [UUID(int=number) for number in range(10, 310)]
    assert len(tenants) > queue.SCAN_TENANTS
    await rows.run(
        "INSERT INTO tenant (tenant_id, name)"
        " SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid, n::text"
        " FROM generate_series(10, 309) n"
    )
    for tenant in tenants:
        await rows.make(f"of {tenant.int} ", ready=-100, tenant=tenant)
    await rows.make("many", 200, ready=-200, tenant=tenants[7])
    workers = Workers(database, {}, 2)
    assert set(await workers.serve(len(tenants))) == set(tenants)
    assert max(Counter(await workers.serve(len(tenants))).values()) <= 2


async def test_a_tenant_without_work_saves_nothing_up(database: Database, rows: Rows) -> None:
    await rows.make("a", 10, ready=-100, tenant=A)
    await rows.make("b", 10, ready=-100, tenant=B)
    workers = Workers(database, {})
    await workers.serve(4)
    await rows.run("UPDATE memory SET has_work = false WHERE tenant_id = %s", B)
    await workers.serve(50)
    await rows.run("UPDATE memory SET has_work = true WHERE tenant_id = %s", B)
    served = Counter(await workers.serve(20))
    assert abs(served[A] - served[B]) <= 2


async def test_what_an_item_took_is_charged_instead_of_what_was_expected(
    database: Database, rows: Rows
) -> None:
    await rows.make("a", 10, ready=-100, tenant=A)
    await rows.make("b", 10, ready=-100, tenant=B)
    seconds = {A: 1.0, B: 1.0}
    workers = Workers(database, seconds)
    await workers.serve(20)
    # One item of A takes as long as 20.
    seconds[A] = 20.0
    while (await workers.serve(1))[0] != A:
        pass
    seconds[A] = 1.0
    assert Counter(await workers.serve(18))[B] >= 17


@pytest.mark.parametrize(("tenants", "waits"), [((), True), ((A,), True), ((A, B), False)])
async def test_whether_another_tenant_waits(
    database: Database, rows: Rows, tenants: tuple[UUID, ...], waits: bool
) -> None:
    await rows.make("a", tenant=A, ready=-1)
    await rows.make("b", tenant=B, ready=-1)
    await rows.make("later", tenant=C, ready=3600)
    assert await queue.waits(database, tenants) is waits


async def test_claimed_work_does_not_wait(database: Database, rows: Rows) -> None:
    await rows.make("a", tenant=A, ready=-1)
    await rows.make("b", tenant=B, ready=-1)
    scan = QueueScan(total=2, cycle=CYCLE, bound=UNBOUND, after=NOBODY)
    await queue.take(database, uuid4(), done=(), scan=scan)
    assert not await queue.waits(database, ())


async def test_the_turns_of_tenants_that_are_gone_are_removed(
    database: Database, rows: Rows
) -> None:
    await rows.make("a", tenant=A, ready=-1)
    await rows.make("b", tenant=B, ready=-1)
    await Workers(database, {}).serve(2)
    await rows.run("INSERT INTO tenant_turn VALUES (%s, 1, 1, 0)", C)
    await queue.forget_tenants(database)
    left = await rows.run("SELECT tenant_id FROM tenant_turn")
    assert {tenant for (tenant,) in left} == {NOBODY, A, B}


@pytest.mark.parametrize("slots", [1, 4])
async def test_an_item_of_many_steps_gives_way_after_the_step_that_it_is_in(
    url: str, rows: Rows, slots: int
) -> None:
    """Tenant A has one memory for each slot, with steps without end; then one of B comes."""
    turns: dict[WorkItem, Preemption] = {}
    steps: list[UUID] = []
    going = asyncio.Event()

    async def handle(item: WorkItem) -> float | None:
        if item.tenant_id != A:
            steps.append(item.tenant_id)
            await rows.run(DONE, item.item_id)
            return None
        turn = turns[item] = Preemption()
        while not turn.is_set() and not going.is_set():
            turn.begin()
            steps.append(A)
            await asyncio.sleep(0.05)
        return 0.0

    def give_way(item: WorkItem) -> bool:
        if item not in turns:
            return False
        turns[item].request()
        return True

    await rows.make("long", slots, ready=-100, tenant=A)
    async with dispatcher(url, dead_after_seconds=3600) as one:
        one._look_seconds = 3600
        stop = asyncio.Event()
        task = asyncio.create_task(
            one.run(handle, concurrency=slots, stop=stop, stop_seconds=60, give_way=give_way)
        )
        await until(lambda: len(steps) >= 3 * slots)
        assert set(steps) == {A}
        await rows.make("single", tenant=B, ready=-1)
        one.wake()
        await until(lambda: B in steps)
        # And A goes on.
        count = len(steps)
        await until(lambda: len(steps) > count + 3 * slots)
        going.set()
        stop.set()
        await task
    assert Counter(steps)[B] == 1


async def test_a_turn_that_is_asked_for_at_once_makes_progress() -> None:
    turn = Preemption()
    turn.request()
    assert not turn.is_set()
    turn.begin()
    assert turn.is_set()
