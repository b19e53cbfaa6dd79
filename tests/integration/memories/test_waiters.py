"""Waiting calls: only those whose memory or answer changed are checked, and none is missed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from service.domain.answers.answer_updates import Listener, TextPiece
from service.domain.prism.spec import PrismSpec
from service.domain.tree.recording import Statistics
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import BudgetExhausted, CallBound
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import progress_watcher
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.watch import Watches
from storage.answers import answers, texts, trajectories
from storage.engine.database import Database
from storage.engine.signals import Signals
from storage.log import sessions
from storage.memories import queue, revisions, stalls, waiting
from storage.memories.progress import Progress
from storage.spend import budgets
from storage.tree import trees
from tests.integration.answers.test_trajectories import EVENT
from tests.integration.support.dispatching import Rows, rows
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    STATE,
    TREE,
    Script,
    add_memory,
    make,
    prism_method,
    state_method,
)
from tests.integration.support.statements import Statement, statements
from tests.integration.support.stored_answers import store_question
from tests.integration.support.waits import GONE
from tests.integration.support.writing import drop_wake_ups

__all__ = ["rows"]

NO_MONEY = BudgetExhausted(
    "no money", {}, asked=CallBound(tokens=1, micro_usd=None), resume_seconds=9
)
#: Of the statement that looks how far memories are that are waited for.
LOOK = "AS w (session_key, memory_id, number)"
#: Longer than any test.
NEVER = 3600.0
#: Shorter than any look at all that wait was apart in earlier releases.
A_WHILE_SECONDS = 0.3


@asynccontextmanager
async def watching(database: Database, **options: Any) -> AsyncIterator[ProgressWatcher]:
    made = ProgressWatcher(database, **options)
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off the look for missed changes, so that only notifications wake a reader."""
    monkeypatch.setattr(progress_watcher, "MISSED_SECONDS", NEVER)


@pytest.fixture
async def other(url: str) -> AsyncIterator[Database]:
    """Yields connections of another process, whose commits notify no reader here."""
    made = Database.connect(url, pool_size=2, name="other")
    yield made
    await made.close()


async def several(database: Database, number: int) -> list[tuple[UUID, UUID]]:
    """Memories that are a chunk behind; their keys."""
    await make(database, ["a"])
    keys = [(KEY, memory_id(KEY, f"m{one}")) for one in range(1, number)]
    for key in keys:
        await add_memory(database, key[1], f"m{keys.index(key) + 1}", SPEC, head=1)
    return [(KEY, MEMORY), *keys]


async def first_looks(
    stack: AsyncExitStack, watcher: ProgressWatcher, keys: Sequence[tuple[UUID, UUID]]
) -> list[Any]:
    """Waits for memories that have been looked at once."""
    looks = [
        await stack.enter_async_context(
            aclosing(watcher.progress(DEFAULT_TENANT, key, deleted=GONE, deadline=None))
        )
        for key in keys
    ]
    for one in looks:
        assert (await anext(one)).revision == 0
    return looks


def looked_at(sent: Sequence[Statement]) -> list[UUID]:
    """Returns the memories whose progress was read for waiting readers."""
    return [
        UUID(word)
        for one in sent
        if LOOK in one
        for word in one.values["memories"].strip("{}").split(",")
    ]


async def step(database: Database) -> None:
    """A step of the first memory."""
    await prism_method(database, Script()).drain(ITEM)


@pytest.mark.usefixtures("told_only")
async def test_where_nothing_changes_nothing_is_checked(database: Database) -> None:
    keys = await several(database, 8)
    async with watching(database) as watcher, AsyncExitStack() as stack:
        looks = await first_looks(stack, watcher, keys)
        coming = [asyncio.ensure_future(anext(one)) for one in looks]
        with statements() as sent:
            await asyncio.sleep(A_WHILE_SECONDS)
        assert sent == []
        for one in coming:
            one.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


@pytest.mark.usefixtures("told_only")
async def test_a_change_wakes_only_calls_that_wait_for_it(database: Database) -> None:
    keys = await several(database, 8)
    async with watching(database) as watcher, AsyncExitStack() as stack:
        looks = await first_looks(stack, watcher, keys)
        again = await first_looks(stack, watcher, keys[:1])
        coming = [asyncio.ensure_future(anext(one)) for one in (*looks, *again)]
        with statements() as sent:
            await step(database)
            changed = await asyncio.gather(coming[0], coming[-1])
        assert [one.applied_position for one in changed] == [1, 1]
        assert set(looked_at(sent)) == {MEMORY}
        assert not any(one.done() for one in coming[1:-1])
        for one in coming:
            one.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


@pytest.mark.usefixtures("told_only")
async def test_changes_that_come_together_share_one_look(
    database: Database, other: Database
) -> None:
    keys = await several(database, 8)
    async with watching(database) as watcher, AsyncExitStack() as stack:
        looks = await first_looks(stack, watcher, keys)
        async with other.transaction(DEFAULT_TENANT) as tx:
            await tx.execute("UPDATE memory SET seal_position = 7")
        coming = [asyncio.ensure_future(anext(one)) for one in looks]
        await asyncio.sleep(0)
        with statements() as sent:
            for _, identity in keys:
                watcher.wake([identity.hex])
            changed = await asyncio.gather(*coming)
        assert [one.seal_position for one in changed] == [7] * 8
        assert sorted(looked_at(sent)) == sorted(identity for _, identity in keys)
        assert sum(LOOK in one for one in sent) == 1


@pytest.mark.parametrize("missed_seconds", [0.05, NEVER])
async def test_a_change_without_a_notification_is_found(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch, missed_seconds: float
) -> None:
    """By the look that does not depend on it, or because it may have been missed."""
    monkeypatch.setattr(progress_watcher, "MISSED_SECONDS", missed_seconds)
    keys = await several(database, 3)
    async with watching(database) as watcher, AsyncExitStack() as stack:
        looks = await first_looks(stack, watcher, keys)
        coming = [asyncio.ensure_future(anext(one)) for one in looks]
        await step(other)
        if missed_seconds == NEVER:
            await asyncio.sleep(A_WHILE_SECONDS)
            assert not any(one.done() for one in coming)
            watcher.wake(None)
        assert (await coming[0]).applied_position == 1
        assert not any(one.done() for one in coming[1:])
        for one in coming:
            one.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


@pytest.mark.usefixtures("told_only")
async def test_a_change_while_a_client_is_busy_is_sent_when_it_waits_again(
    database: Database,
) -> None:
    (key,) = await several(database, 1)
    async with watching(database) as watcher, AsyncExitStack() as stack:
        (looks,) = await first_looks(stack, watcher, [key])
        with statements() as sent:
            await step(database)
            await asyncio.sleep(A_WHILE_SECONDS)
        # No progress is read ahead of its next request.
        assert looked_at(sent) == []
        assert (await anext(looks)).applied_position == 1


@pytest.mark.usefixtures("told_only")
async def test_the_rest_of_a_full_look_arrives_without_a_notification(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.domain.answers.answer_updates.LOOK_EVENTS", 2)
    await make(database, ["a"])
    item = await store_question(database, MEMORY, "?", revision=0, applied_position=0)
    async with other.transaction(DEFAULT_TENANT) as tx:
        for ordinal in range(1, 8):
            await trajectories.append(tx, (KEY, item.item_id), replace(EVENT, ordinal=ordinal))
    async with watching(database) as watcher:
        looks = watcher.told(Listener(item=item), deleted=GONE, deadline=None)
        async with aclosing(looks):
            heard: list[int] = []
            while len(heard) < 7:
                heard += [one.ordinal for one in (await anext(looks)).events]
    assert heard == list(range(1, 8))


async def test_what_is_waited_for_is_said_once_and_what_is_watched_is_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_watcher, "WANT_SECONDS", NEVER)
    await make(database, ["a"])
    wanted: list[Sequence[WorkItem]] = []
    async with watching(database, want=wanted.append) as watcher:
        watches = Watches(database, watcher, Limits())
        watch = watches.watch(DEFAULT_TENANT, "s", "m", None, deadline=None)
        async with (
            aclosing(watch),
            aclosing(
                watcher.progress_of_read(DEFAULT_TENANT, (KEY, MEMORY), deleted=GONE, deadline=None)
            ) as reads,
        ):
            await anext(watch)
            following = asyncio.ensure_future(anext(watch))
            await anext(reads)
            assert wanted == [[ITEM]]
            await step(database)
            await asyncio.gather(anext(reads), following)
    assert wanted == [[ITEM]]


async def test_what_is_still_waited_for_goes_first_again_when_that_was_forgotten(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a step that failed, or after a minute."""
    monkeypatch.setattr(progress_watcher, "WANT_SECONDS", 0.1)
    await make(database, ["a"])
    wake_ups = WakeUps(drop_wake_ups, partial(queue.want, database))
    passing = asyncio.create_task(wake_ups.run())

    async def is_wanted() -> bool:
        return bool(await rows.run("SELECT 1 FROM wanted WHERE memory_id = %s", MEMORY))

    async with watching(database, want=partial(wake_ups.add, wanted=True)) as watcher:
        looks = watcher.progress_of_read(DEFAULT_TENANT, (KEY, MEMORY), deleted=GONE, deadline=None)
        async with aclosing(looks), asyncio.timeout(60):
            await anext(looks)
            for _ in range(2):
                while not await is_wanted():
                    await asyncio.sleep(0.02)
                await rows.run("DELETE FROM wanted")
    passing.cancel()
    await asyncio.gather(passing, return_exceptions=True)


async def test_what_is_said_again_is_each_memory_once_and_tenants_in_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_watcher, "WANT_SECONDS", 0.1)

    async def behind(_: object, keys: Sequence[tuple[UUID, UUID]]) -> dict[UUID, Progress]:
        """Memories that are there, and never get on."""
        nothing = Progress(
            revision=0, applied_position=0, stall_cause=None, stall_position=0, held_reason=None
        )
        return {identity: nothing for _, identity in keys}

    async def read(tenant: UUID, one: UUID) -> None:
        async for _ in watcher.progress_of_read(tenant, (KEY, one), deleted=GONE, deadline=None):
            pass

    monkeypatch.setattr(progress_watcher, "read_progress", behind)
    many, few = UUID(int=3), UUID(int=4)
    wanted: list[Sequence[WorkItem]] = []
    keys = [(many, UUID(int=1)), (many, UUID(int=1)), (many, UUID(int=2)), (few, UUID(int=5))]
    async with watching(database, want=wanted.append) as watcher, asyncio.timeout(60):
        reads = [asyncio.create_task(read(tenant, one)) for tenant, one in keys]
        while not (again := [one for one in wanted if len(one) > 1]):
            await asyncio.sleep(0.02)
        for reading in reads:
            reading.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    assert [one.item_id.int for one in again[0]] == [1, 5, 2]


@pytest.mark.usefixtures("told_only")
async def test_a_commit_of_another_process_is_notified(
    database: Database, other: Database, url: str
) -> None:
    here, there = (Signals(one, url, name="test") for one in (database, other))
    other.on_change(partial(there.send, progress_watcher.CHANGES))
    keys = await several(database, 3)
    async with watching(database) as watcher, AsyncExitStack() as stack:
        listening = asyncio.Event()
        here.subscribe(progress_watcher.CHANGES, watcher.wake)
        here.subscribe(progress_watcher.CHANGES, lambda _: listening.set())
        running = [asyncio.create_task(one.run()) for one in (here, there)]
        await listening.wait()
        looks = await first_looks(stack, watcher, keys)
        coming = [asyncio.ensure_future(anext(one)) for one in looks]
        with statements() as sent:
            await step(other)
            assert (await coming[0]).applied_position == 1
        assert set(looked_at(sent)) == {MEMORY}
        assert not any(one.done() for one in coming[1:])
        for task in (*coming, *running):
            task.cancel()
        await asyncio.gather(*coming, *running, return_exceptions=True)


# Notifications


class Notifications:
    """The ids in notifications."""

    def __init__(self, database: Database) -> None:
        self._words: list[str] = []
        database.on_change(self._words.extend)

    def take(self) -> list[str]:
        """Returns those since the last time."""
        taken = self._words.copy()
        self._words.clear()
        return taken


async def test_a_step_is_notified_after_its_commit_and_a_rollback_never(
    database: Database,
) -> None:
    await make(database, ["a"])
    told = Notifications(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
        assert held is not None
    new = revisions.NewRevision(kind="step", to_position=1, digest=b"")

    async def break_off() -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.lock_head(tx, KEY)
            await revisions.commit_revision(tx, held, new, has_work=False)
            raise LookupError

    with pytest.raises(LookupError):
        await break_off()
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.lock_head(tx, KEY)
        await revisions.commit_revision(tx, held, new, has_work=False)
        assert told.take() == []
    assert told.take() == [MEMORY.hex]


async def test_whatever_stops_or_continues_a_memory_is_notified(database: Database) -> None:
    await make(database, ["a"], TREE)
    told = Notifications(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, TreeSpec.kind)
        assert held is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        await waiting.back_off_memory(tx, held, model=None, cause="no reply", seconds=9)
    assert told.take() == [MEMORY.hex]
    async with database.transaction(DEFAULT_TENANT) as tx:
        await budgets.hold(tx, held, NO_MONEY)
    assert told.take() == [MEMORY.hex]
    async with database.transaction(DEFAULT_TENANT) as tx:
        await stalls.stall(tx, held)
        await stalls.add_dead_letter(tx, held, to_position=1, cause="no", resolution=None)
    assert told.take() == [MEMORY.hex]
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry_some(tx, KEY, 9) == ([(KEY, MEMORY)], False)
    assert told.take() == [MEMORY.hex]
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await trees.want_seal(tx, held, 1)
    assert told.take() == [MEMORY.hex]


async def test_an_idle_state_memory_is_notified(database: Database) -> None:
    await make(database, ["a"], STATE)
    told = Notifications(database)
    await state_method(database, Script()).drain(ITEM)
    assert told.take() == [MEMORY.hex]


async def test_all_changes_of_an_answer_are_notified(database: Database) -> None:
    await make(database, ["a"])
    item = await store_question(
        database, MEMORY, "?", revision=0, applied_position=0, tells_text=True
    )
    key, told = (KEY, item.item_id), Notifications(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await trajectories.append(tx, key, EVENT)
    assert told.take() == [item.item_id.hex]
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await texts.append(tx, key, [TextPiece(ordinal=1, text="x")])
    assert told.take() == [item.item_id.hex]
    for is_first in (True, False):
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert is_first == await answers.complete(
                tx, *key, text="x", citations=[], model="m", statistics=Statistics()
            )
        assert told.take() == [item.item_id.hex] * is_first
