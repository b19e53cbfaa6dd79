"""Answers without a waiting client: not begun, not continued, and resumed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, update

from service.domain.values.errors import Exhausted, NotFound
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.usecases.answers.answer import Answerer
from service.usecases.answers.ask import AskDone, Asker, AskStarted
from service.usecases.answers.ask_many import ask_many
from service.usecases.answers.interest import Interest
from service.usecases.answers.questions import Question
from service.usecases.answers.stored_answers import cancel
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.prism.schemas import SchemaRequest, Schemas
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, value
from storage.memories import job_results
from storage.tables import answer
from tests.integration.answers.test_cancelling import Slow
from tests.integration.support.scripted import Script, answerer
from tests.integration.support.statements import statements
from tests.integration.support.stored_answers import item_of, read_answer, store_question
from tests.integration.support.tree_rows import KEY, TREE, make_tree
from tests.integration.support.writing import drop_wake_ups
from tests.integration.tree.test_navigate import LEAVES, TAIL, Moves
from tests.support.gateways import gateway
from tests.support.runnable import runnable as due

#: Longer than any test takes: what has to expire is made to.
SECONDS = 3600.0


@pytest.fixture(autouse=True)
async def tree(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)


def asked(**said: Any) -> Question:
    return Question(
        session="s", memory="t", query="What of the king?", consistency=Consistency(), **said
    )


class Server:
    """The parts of a server process that questions need."""

    def __init__(self, database: Database, *, seconds: float = SECONDS, **limits: Any) -> None:
        self.database = database
        self.stopping = asyncio.Event()
        self.interest = Interest(database, seconds=seconds, stopping=self.stopping)
        self.watcher = ProgressWatcher(database)
        self.woken: list[WorkItem] = []
        self.wake_ups = WakeUps(drop_wake_ups)
        self.waiting = ConcurrencyLimiter(100)
        self.asker = Asker(
            *(database, self.wake_ups, self.watcher, b"key", self.waiting, self.interest), **limits
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        tasks = [asyncio.create_task(one.run()) for one in (self.watcher, self.interest)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ask_and_leave(self, **said: Any) -> WorkItem:
        """Asks, and leaves as soon as the answer has an id."""
        told = self.asker.ask(DEFAULT_TENANT, asked(**said), deadline=None)
        async with aclosing(told):
            first = await anext(told)
        assert isinstance(first, AskStarted)
        return item_of(first.answer_id)

    def ask(self, **said: Any) -> "Waits":
        return Waits(self.asker.ask(DEFAULT_TENANT, asked(**said), deadline=None))

    def resume(self, item: WorkItem) -> "Waits":
        return Waits(
            self.asker.resume(
                DEFAULT_TENANT, "s", item.item_id, after_event=0, after_piece=0, deadline=None
            )
        )


class Waits:
    """A client that waits for its answer, in a task."""

    def __init__(self, told: Any) -> None:
        self._told = told
        self._begun: asyncio.Future[WorkItem] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._wait())

    async def _wait(self) -> StoredAnswer:
        async with aclosing(self._told) as events:
            async for event in events:
                if isinstance(event, AskStarted):
                    self._begun.set_result(item_of(event.answer_id))
                if isinstance(event, AskDone):
                    return event.answer
        raise AssertionError("it ended without an answer")

    async def begun(self) -> WorkItem:
        return await asyncio.wait_for(self._begun, 60)

    async def answer(self) -> StoredAnswer:
        return await asyncio.wait_for(self.task, 60)

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def until(database: Database, item: WorkItem, **wanted: Any) -> StoredAnswer:
    """Returns the answer, once its row is so."""
    async with asyncio.timeout(60):
        while True:
            stored = await read_answer(database, item)
            if all(getattr(stored, name) == one for name, one in wanted.items()):
                return stored
            await asyncio.sleep(0.02)


async def expire(database: Database, item: WorkItem) -> None:
    """Lets the time pass for which an answer is wanted."""
    past = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, 1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            update(answer)
            .where(answer.c.answer_id == item.item_id)
            .values(wanted_until=past, ready_at=past)
        )


async def runnable(database: Database) -> set[UUID]:
    """Returns the answers that a worker would be given."""
    async with database.sweeping() as tx:
        return {one.item_id for one in await due(tx, 1000)} - {TREE}


def maker(database: Database, script: Script) -> Answerer:
    return answerer(database, gateway(script, database))


async def test_what_its_client_left_is_not_begun(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        item = await server.ask_and_leave()
        assert (await until(database, item, is_left=True)).status == "pending"
    assert await runnable(database) == set()
    await maker(database, script).make(item)
    assert (await read_answer(database, item)).status == "pending"
    assert script.asked == []


async def test_an_answer_without_clients_is_abandoned_and_says_so(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        item = await server.ask_and_leave()
        await until(database, item, is_left=True)
    await expire(database, item)
    assert await runnable(database) == {item.item_id}, "somebody has to look"
    await maker(database, script).make(item)
    stored = await read_answer(database, item)
    assert (stored.status, script.asked) == ("abandoned", [])
    assert "no client waited" in stored.failure
    assert await runnable(database) == set()


async def test_of_a_flood_only_what_was_begun_costs(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        items = [await server.ask_and_leave() for _ in range(40)]
        for item in items:
            await until(database, item, is_left=True)
        works = maker(database, script)
        for item in items:
            await works.make(item)
        assert script.asked == []
        # A client resumes one of them: that one is completed.
        back = server.resume(items[0])
        await until(database, items[0], is_left=False)
        await works.make(items[0])
        assert (await back.answer()).status == "complete"
    assert len(script.asked) == 3


async def test_what_is_under_way_stops_before_its_next_call(database: Database) -> None:
    slow = Slow()
    slow.reply = Moves("king", answer="It gave gold.")
    works = maker(database, slow)
    async with Server(database).running() as server:
        waits = server.ask()
        item = await waits.begun()
        making = asyncio.create_task(works.make(item))
        await asyncio.wait_for(slow.thinks.wait(), 60)
        await waits.leave()
        await until(database, item, is_left=True)
        await works.active.look()
        assert not making.done(), "it is made on for a while"
        await expire(database, item)
        await works.active.look()
        await asyncio.wait_for(making, 60)
        stored = await read_answer(database, item)
        assert (stored.status, len(slow.asked)) == ("abandoned", 1)
        # The call in flight completes, as it is paid for, and no further call is made.
        slow.release.set()
        back = server.resume(item)
        await until(database, item, status="pending")
        await works.make(item)
        assert (await back.answer()).text == "It gave gold."
    prompts = [one.text for one in slow.asked]
    assert len(prompts) == len(set(prompts)) == 3, "no call was paid for twice"
    assert slow.broken_off == 0


async def test_who_reads_it_wants_it(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        item = await server.ask_and_leave()
        await until(database, item, is_left=True)
        found = await server.asker.look_up(DEFAULT_TENANT, "s", item.item_id)
        assert found.answer.status == "pending"
        assert await runnable(database) == {item.item_id}
        await maker(database, script).make(item)
        found = await server.asker.look_up(DEFAULT_TENANT, "s", item.item_id)
        assert found.answer.status == "complete"


async def test_of_an_answer_that_is_not_there_no_departure_is_written(database: Database) -> None:
    server = Server(database)
    async with server.running():
        with statements() as sent:
            with pytest.raises(NotFound):
                await server.resume(item_of(uuid4())).answer()
            item = await server.ask_and_leave()
            await until(database, item, waiter=None)
        left = [one.values["answers"] for one in sent if "waiter = NULL" in one]
    assert left == [[item.item_id]]


async def test_one_of_two_waiting_clients_may_leave(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        first = server.ask()
        item = await first.begun()
        second = server.resume(item)
        other = await server.ask_and_leave()
        await first.leave()
        # Both left together: the one that is written down is of the other answer.
        await until(database, other, is_left=True)
        assert not (await read_answer(database, item)).is_left
        await maker(database, script).make(item)
        assert (await second.answer()).status == "complete"


async def test_who_goes_on_at_another_server_is_not_taken_for_gone(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as first, Server(database).running() as second:
        waits = first.ask()
        item = await waits.begun()
        again = second.resume(item)
        await until(database, item, waiter=second.interest.waiter)
        # The first one hears late that its client is gone.
        await waits.leave()
        other = await first.ask_and_leave()
        await until(database, other, is_left=True)
        assert (await read_answer(database, item)).waiter == second.interest.waiter
        await maker(database, script).make(item)
        assert (await again.answer()).status == "complete"


async def test_who_waits_long_is_written_down_again(database: Database) -> None:
    async with Server(database, seconds=1.0).running() as server:
        waits = server.ask()
        item = await waits.begun()
        async with asyncio.timeout(60):
            first = (await read_answer(database, item)).wanted_until
            while (await read_answer(database, item)).wanted_until == first:
                await asyncio.sleep(0.02)
        # Also when it was given up meanwhile, as after a time without the database.
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(
                update(answer)
                .where(answer.c.answer_id == item.item_id)
                .values(status="abandoned", failure="x")
            )
        stored = await until(database, item, status="pending")
        assert (stored.failure, stored.is_left) == ("", False)
        assert not waits.task.done()
        await waits.leave()


async def test_a_server_that_stops_leaves_nothing(database: Database) -> None:
    async with Server(database).running() as server:
        waits = server.ask()
        item = await waits.begun()
        other = await server.ask_and_leave()
        server.stopping.set()
        await waits.leave()
        await until(database, other, is_left=True)
    assert not (await read_answer(database, item)).is_left


async def test_the_answers_of_a_server_that_died_expire(database: Database) -> None:
    script = Script(reply=Moves("king"))
    # The task that records that its client left does not run here.
    item = await Server(database).ask_and_leave()
    assert not (await read_answer(database, item)).is_left
    await expire(database, item)
    await maker(database, script).make(item)
    assert (await read_answer(database, item)).status == "abandoned"
    assert script.asked == []


async def test_an_unattended_answer_is_made_in_any_case(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        kept = await server.ask_and_leave(unattended=True)
        other = await server.ask_and_leave()
        await until(database, other, is_left=True)
        await maker(database, script).make(kept)
    assert (await read_answer(database, kept)).status == "complete"


async def test_an_abandoned_answer_can_be_cancelled_for_good(database: Database) -> None:
    script = Script(reply=Moves("king"))
    item = await Server(database).ask_and_leave()
    await expire(database, item)
    await maker(database, script).make(item)
    ended = (await cancel(database, DEFAULT_TENANT, "s", item.item_id)).answer
    assert (ended.status, ended.failure) == ("cancelled", "")
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await job_results.ended(tx, [item]) == {item}


async def test_what_waits_for_its_model_is_left_and_resumed(database: Database) -> None:
    """A worker that wakes it finds no waiting client, and puts it aside again."""
    script = Script(reply=Moves("king"))
    async with Server(database).running() as server:
        item = await server.ask_and_leave()
        await until(database, item, is_left=True)
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(update(answer).values(ready_at=func.now()))
        await maker(database, script).make(item)
        assert await runnable(database) == set()
        back = server.resume(item)
        await until(database, item, is_left=False)
        assert await runnable(database) == {item.item_id}
        await maker(database, script).make(item)
        assert (await back.answer()).status == "complete"


async def pending(database: Database) -> int:
    async with database.transaction(DEFAULT_TENANT) as tx:
        counted = select(func.count_pending_answer(DEFAULT_TENANT, 1000))
        return int(value(await tx.fetch(counted)) or 0)


async def test_a_tenant_has_so_many_pending_and_no_more(database: Database) -> None:
    script = Script(reply=Moves("king"))
    async with Server(database, max_pending=2).running() as server:
        waits = [server.ask() for _ in range(2)]
        items = [await one.begun() for one in waits]
        for told in (
            server.asker.ask(DEFAULT_TENANT, asked(), deadline=None),
            ask_many(server.asker, server.waiting, DEFAULT_TENANT, [asked()] * 2, deadline=None),
        ):
            with pytest.raises(Exhausted) as refused:
                async with aclosing(told) as events:
                    await anext(events)
            assert refused.value.reason == "TOO_MANY_PENDING"
            assert refused.value.metadata == {"limit": "2"}
            assert refused.value.retry_seconds
        # Existing ones can still be read and joined.
        found = await server.asker.look_up(DEFAULT_TENANT, "s", items[0].item_id)
        assert found.answer.status == "pending"
        joined = server.resume(items[0])
        await maker(database, script).make(items[0])
        assert (await joined.answer()).status == (await waits[0].answer()).status == "complete"
        assert await pending(database) == 1
        # Of several at once none is stored where not all of them may be.
        with pytest.raises(Exhausted):
            await server.asker.begin(DEFAULT_TENANT, [asked()] * 2)
        assert await pending(database) == 1
        third = server.ask()
        await third.begun()
        for one in (waits[1], third):
            await one.leave()


async def test_those_that_were_left_do_not_count(database: Database) -> None:
    async with Server(database, max_pending=1).running() as server:
        for _ in range(3):
            item = await server.ask_and_leave()
            await until(database, item, is_left=True)
        assert await pending(database) == 0
        kept = await server.ask_and_leave(unattended=True)
        with pytest.raises(Exhausted):
            await server.ask_and_leave()
        await maker(database, Script(reply=Moves("king"))).make(kept)
        await server.ask_and_leave()


async def test_schemas_are_bounded_likewise(database: Database) -> None:
    server = Server(database)
    schemas = Schemas(database, server.wake_ups, max_pending=1)
    wanted = SchemaRequest(session="s", domain="d", example_query="q", model="")
    await schemas.generate(DEFAULT_TENANT, wanted)
    with pytest.raises(Exhausted) as refused:
        await schemas.generate(DEFAULT_TENANT, wanted)
    assert refused.value.reason == "TOO_MANY_PENDING"


_COUNT = """
SELECT FROM answer
WHERE tenant_id = %(tenant)s
    AND status = 'pending' AND (waiter IS NOT NULL OR wanted_until IS NULL)
ORDER BY answer_id LIMIT 1000
"""
_MANY = """
INSERT INTO answer (session_key, answer_id, tenant_id, query, status, revision, applied_position)
SELECT %(key)s, gen_random_uuid(), %(tenant)s, 'x', 'complete', 0, 1 FROM generate_series(1, 3000)
"""


async def test_counting_reads_its_index_whatever_statistics_say(database: Database) -> None:
    values = {"tenant": DEFAULT_TENANT, "key": KEY}

    async def plan() -> str:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute("SET LOCAL enable_sort = off")
            rows = await tx.fetch(f"EXPLAIN {_COUNT}", values)
            return "\n".join(row[0] for row in rows)

    plans = {"empty": await plan()}
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(_MANY, values)
    plans["not analyzed"] = await plan()
    await store_question(database, None, "?", revision=0, applied_position=1)
    plans["one of many"] = await plan()
    for said in plans.values():
        assert "answer_pending" in said, plans
        assert "Seq Scan" not in said, plans
        assert "Sort" not in said, plans
