"""Events of answers that are waited for: each once, in order, all of them before the answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import pytest

from service.domain.answers import answer_updates
from service.domain.answers.answer_updates import AnswerUpdate, Listener, TextPiece
from service.domain.answers.trajectory import (
    Event,
)
from service.domain.tree.recording import Statistics
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.usecases.memories import progress_watcher
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.answers import answers, texts, trajectories
from storage.engine.database import Database, Transaction
from tests.integration.answers.test_trajectories import EVENT
from tests.integration.support.statements import statements
from tests.integration.support.tree_rows import KEY, make_tree
from tests.integration.support.waits import GONE
from tests.integration.tree.test_navigate import ask


@pytest.fixture
async def watcher(database: Database) -> AsyncIterator[ProgressWatcher]:
    await make_tree(database, ["a"])
    made = ProgressWatcher(database)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def tell(database: Database, item: WorkItem, *ordinals: int) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        for ordinal in ordinals:
            key = (KEY, item.item_id)
            await trajectories.append(tx, key, replace(EVENT, ordinal=ordinal))


async def settle(database: Database, item: WorkItem) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await answers.complete(
            tx, KEY, item.item_id, text="x", citations=[], model="m", statistics=Statistics()
        )


async def question(database: Database) -> WorkItem:
    return await ask(database, revision=1, applied=1)


async def all_of(looks: Any) -> tuple[list[int], bool]:
    """Returns the ordinals of the events, and whether the answer was complete."""
    events: list[Event] = []
    settled = False
    async with aclosing(looks):
        async for told in looks:
            assert not settled, "nothing follows"
            events += told.events
            settled = told.settled
    return [event.ordinal for event in events], settled


async def test_events_so_far_are_sent_and_then_new_ones(
    database: Database, watcher: ProgressWatcher
) -> None:
    item = await question(database)
    await tell(database, item, 1, 2)
    looks = watcher.told(Listener(item=item), deleted=GONE, deadline=None)
    async with aclosing(looks):
        first = await anext(looks)
        assert first == AnswerUpdate(
            events=tuple(replace(EVENT, ordinal=n, reply="") for n in (1, 2)), settled=False
        )
        await tell(database, item, 3)
        assert [event.ordinal for event in (await anext(looks)).events] == [3]
        await tell(database, item, 4)
        await settle(database, item)
        assert await all_of(looks) == ([4], True)


async def test_a_look_shows_no_more_than_its_limit_and_the_next_go_on(
    database: Database, watcher: ProgressWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_updates, "LOOK_EVENTS", 2)
    item = await question(database)
    await tell(database, item, *range(1, 8))
    await settle(database, item)
    assert await all_of(watcher.told(Listener(item=item), deleted=GONE, deadline=None)) == (
        list(range(1, 8)),
        True,
    )


async def test_an_event_waits_for_those_in_front_of_it(
    database: Database, watcher: ProgressWatcher
) -> None:
    item = await question(database)
    await tell(database, item, 2, 3)
    looks = watcher.told(Listener(item=item), deleted=GONE, deadline=None)
    async with aclosing(looks):
        coming = asyncio.ensure_future(anext(looks))
        await asyncio.sleep(30 * progress_watcher.GATHER_SECONDS)
        assert not coming.done()
        await tell(database, item, 1)
        assert [event.ordinal for event in (await coming).events] == [1, 2, 3]


async def test_an_answer_that_failed_ends_the_wait_whatever_is_missing(
    database: Database, watcher: ProgressWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_updates, "LOOK_EVENTS", 2)
    item = await question(database)
    await tell(database, item, 2, 3)
    await settle(database, item)
    assert await all_of(watcher.told(Listener(item=item), deleted=GONE, deadline=None)) == (
        [],
        True,
    )


async def test_a_look_that_began_too_early_is_not_the_last_one(
    database: Database, watcher: ProgressWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_updates, "LOOK_EVENTS", 2)
    read_new, looks = trajectories.read_new, 0

    async def late(tx: Transaction, heard: Any, limit: int) -> Any:
        nonlocal looks
        looks += 1
        # The second look does not know yet what the first one found.
        if looks != 2:
            return await read_new(tx, heard, limit)
        begun = {(session, answer, 0): (session, answer, at) for session, answer, at in heard}
        found = await read_new(tx, begun, limit)
        return {begun[key]: events for key, events in found.items()}

    monkeypatch.setattr(trajectories, "read_new", late)
    item = await question(database)
    await tell(database, item, *range(1, 6))
    await settle(database, item)
    assert await all_of(watcher.told(Listener(item=item), deleted=GONE, deadline=None)) == (
        list(range(1, 6)),
        True,
    )


async def test_a_slow_listener_misses_nothing(database: Database, watcher: ProgressWatcher) -> None:
    item = await question(database)
    heard: list[int] = []
    looks = watcher.told(Listener(item=item), deleted=GONE, deadline=None)
    async with aclosing(looks):
        await tell(database, item, 1)
        async for told in looks:
            heard += [event.ordinal for event in told.events]
            if told.settled:
                break
            # While it is busy others are written, and looked at.
            await tell(database, item, len(heard) + 1, len(heard) + 2)
            if len(heard) > 4:
                await settle(database, item)
            await asyncio.sleep(10 * progress_watcher.GATHER_SECONDS)
    assert heard == list(range(1, len(heard) + 1))
    assert len(heard) >= 7


async def test_the_deadline_ends_the_wait_without_an_answer(
    database: Database, watcher: ProgressWatcher
) -> None:
    item = await question(database)
    await tell(database, item, 1)
    # Long enough for a look before it, on any machine.
    deadline = asyncio.get_running_loop().time() + 3.0
    assert await all_of(watcher.told(Listener(item=item), deleted=GONE, deadline=deadline)) == (
        [1],
        False,
    )


async def test_all_that_wait_are_looked_after_with_one_query(
    database: Database, watcher: ProgressWatcher
) -> None:
    items = [await question(database) for _ in range(5)]
    for item in items:
        await tell(database, item, 1)
    listening = [watcher.told(Listener(item=item), deleted=GONE, deadline=None) for item in items]
    with statements() as sent:
        firsts = await asyncio.gather(*(anext(looks) for looks in listening))
    assert [len(told.events) for told in firsts] == [1] * 5
    # The first look may have come before all were there.
    assert 1 <= sum("trajectory_event" in one for one in sent) <= 2
    for looks in listening:
        await looks.aclose()


async def write(database: Database, item: WorkItem, *ordinals: int) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        pieces = [TextPiece(ordinal=ordinal, text=str(ordinal)) for ordinal in ordinals]
        assert await texts.append(tx, (KEY, item.item_id), pieces)


async def test_all_of_the_text_comes_before_the_end_for_those_who_want_it(
    database: Database, watcher: ProgressWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_updates, "LOOK_EVENTS", 2)
    item = await question(database)
    await write(database, item, *range(1, 6))
    await tell(database, item, 1)
    await settle(database, item)

    async def heard(listener: Listener) -> tuple[list[int], list[int]]:
        events: list[int] = []
        pieces: list[int] = []
        async with aclosing(watcher.told(listener, deleted=GONE, deadline=None)) as looks:
            async for told in looks:
                events += [one.ordinal for one in told.events]
                pieces += [one.ordinal for one in told.pieces]
        return events, pieces

    first, late, silent = await asyncio.gather(
        heard(Listener(item=item, hears_text=True)),
        heard(Listener(item=item, hears_text=True, event=1, piece=3)),
        heard(Listener(item=item)),
    )
    assert (first, late, silent) == (([1], [1, 2, 3, 4, 5]), ([], [4, 5]), ([1], []))


async def test_a_client_that_does_not_read_delays_no_other(
    database: Database, watcher: ProgressWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_updates, "LOOK_EVENTS", 2)
    item = await question(database)
    await tell(database, item, 1)
    idle = watcher.told(Listener(item=item), deleted=GONE, deadline=None)
    async with aclosing(idle):
        assert [one.ordinal for one in (await anext(idle)).events] == [1]
        await tell(database, item, *range(2, 8))
        await settle(database, item)
        assert await all_of(watcher.told(Listener(item=item), deleted=GONE, deadline=None)) == (
            list(range(1, 8)),
            True,
        )
        assert await all_of(idle) == (list(range(2, 8)), True)
