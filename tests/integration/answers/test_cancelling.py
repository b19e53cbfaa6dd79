"""Cancelling answers: before, while and after they are made."""

import asyncio
import random
from contextlib import suppress
from uuid import uuid4

import pytest

from service.domain.values.errors import Cancelled, NotFound
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.usecases.answers.answer import Answerer
from service.usecases.answers.ask import Asker
from service.usecases.answers.interest import Interest
from service.usecases.answers.stored_answers import cancel
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.answers import answers
from storage.engine.database import Database
from tests.integration.support.scripted import Script, answerer
from tests.integration.support.stored_answers import read_told
from tests.integration.support.tree_rows import KEY, make_tree
from tests.integration.support.writing import drop_wake_ups
from tests.integration.tree.test_navigate import LEAVES, TAIL, Moves, ask
from tests.support.gateways import gateway


@pytest.fixture(autouse=True)
async def tree(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)


class Slow(Script):
    """A model that thinks until it is released."""

    def __init__(self) -> None:
        super().__init__(reply=Moves("cat"), meanwhile=self.think)
        self.thinks, self.release = asyncio.Event(), asyncio.Event()
        self.broken_off = 0

    async def think(self) -> None:
        self.thinks.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.broken_off += 1
            raise


def maker(database: Database, script: Script) -> Answerer:
    return answerer(database, gateway(script, database))


async def cancelled(database: Database, item: WorkItem) -> str:
    return (await cancel(database, DEFAULT_TENANT, "s", item.item_id)).answer.status


async def test_an_answer_that_was_not_begun_is_not_begun(database: Database) -> None:
    item, script = await ask(database), Script(reply=Moves("cat"))
    assert await cancelled(database, item) == "cancelled"
    await maker(database, script).make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.text, events, script.asked) == ("cancelled", "", [], [])


async def test_what_is_under_way_ends_at_the_next_look(database: Database) -> None:
    item, slow = await ask(database), Slow()
    answers_here = maker(database, slow)
    making = asyncio.create_task(answers_here.make(item))
    await asyncio.wait_for(slow.thinks.wait(), 60)
    await answers_here.active.look()
    assert not making.done(), "nobody cancelled it"
    assert await cancelled(database, item) == "cancelled"
    await answers_here.active.look()
    await asyncio.wait_for(making, 60)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.attempts, events) == ("cancelled", 0, [])
    # Nothing is registered any more: the next check sends no query.
    await answers_here.active.look()


async def test_others_that_are_under_way_go_on(database: Database) -> None:
    unwanted, wanted, slow = await ask(database), await ask(database), Slow()
    answers_here = maker(database, slow)
    making = [asyncio.create_task(answers_here.make(one)) for one in (unwanted, wanted)]
    await asyncio.wait_for(slow.thinks.wait(), 60)
    await cancelled(database, unwanted)
    await answers_here.active.look()
    await asyncio.wait_for(making[0], 60)
    slow.release.set()
    await asyncio.wait_for(making[1], 60)
    assert [(await read_told(database, one))[0].status for one in (unwanted, wanted)] == [
        "cancelled",
        "complete",
    ]


async def test_a_worker_that_stops_is_no_answer_that_was_cancelled(database: Database) -> None:
    item, slow = await ask(database), Slow()
    making = asyncio.create_task(maker(database, slow).make(item))
    await asyncio.wait_for(slow.thinks.wait(), 60)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert (await read_told(database, item))[0].status == "pending"


async def test_what_is_complete_stays_so_and_twice_is_once(database: Database) -> None:
    item, other = await ask(database), await ask(database)
    await maker(database, Script(reply=Moves("cat"))).make(item)
    before, _ = await read_told(database, item)
    assert await cancelled(database, item) == "complete"
    assert (await read_told(database, item))[0] == before
    assert [await cancelled(database, other) for _ in range(2)] == ["cancelled"] * 2
    for session in ("s", "none"):
        with pytest.raises(NotFound) as refused:
            await cancel(database, DEFAULT_TENANT, session, uuid4())
        expected = "ANSWER_NOT_FOUND" if session == "s" else "SESSION_NOT_FOUND"
        assert refused.value.reason == expected


async def test_of_a_cancellation_and_an_end_at_once_one_wins(database: Database) -> None:
    lots, won = random.Random(7), set[str]()
    # As long as a race takes here: a call that begins so much later is second, on any machine.
    loop, head_start = asyncio.get_running_loop(), 0.005

    async def complete(item: WorkItem) -> bool:
        await asyncio.sleep(lots.random() * head_start)
        async with database.transaction(DEFAULT_TENANT) as tx:
            return await answers.complete(tx, KEY, item.item_id, text="x", citations=[], model="m")

    async def end(item: WorkItem) -> str:
        await asyncio.sleep(lots.random() * head_start)
        return await cancelled(database, item)

    for _ in range(100):
        item = await ask(database)
        began = loop.time()
        was_complete, told = await asyncio.gather(complete(item), end(item))
        head_start = loop.time() - began
        stored, _ = await read_told(database, item)
        assert stored.status == told == ("complete" if was_complete else "cancelled")
        assert stored.text == ("x" if was_complete else "")
        won.add(told)
    assert won == {"complete", "cancelled"}


async def test_who_waits_hears_that_it_was_cancelled(database: Database) -> None:
    item = await ask(database)
    watcher = ProgressWatcher(database)
    running = asyncio.create_task(watcher.run())
    interest = Interest(database, seconds=60)
    asker = Asker(
        database, WakeUps(drop_wake_ups), watcher, b"key", ConcurrencyLimiter(10), interest
    )

    async def wait() -> None:
        told = asker.resume(
            DEFAULT_TENANT, "s", item.item_id, after_event=0, after_piece=0, deadline=None
        )
        assert [event async for event in told] == []

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await cancelled(database, item)
    for one in waiting:
        with pytest.raises(Cancelled) as refused:
            await asyncio.wait_for(one, 60)
        assert refused.value.reason == "ANSWER_CANCELLED"
        assert refused.value.metadata == {"answer": str(item.item_id)}
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
