"""Events, texts, wake-ups and indexed words, which are written once and in order."""

import asyncio
from typing import Any
from unittest import mock

from service.domain.answers.answer_updates import TextPiece
from service.domain.answers.trajectory import Action, Event, EventKind
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.log.append import Appender
from storage.answers import texts, trajectories
from storage.engine.database import Transaction
from storage.search import chunk_index
from verification.chaos.history import ModelCalled
from verification.mutants.changes import Change, Drop, Patch, Sql
from verification.mutants.mutant import Chain, Layer, Scenario
from verification.mutants.reads import question
from verification.mutants.servers import server
from verification.mutants.waking import LOOK
from verification.mutants.world import PATIENCE_SECONDS, PRISM, Worker, World


async def taken_at_once(world: World) -> None:
    """A worker is so quick that it gets a wake-up before its sender continues."""
    await world.begin(m=PRISM)
    worker = Worker(world, "quick")
    worked = asyncio.Event()
    async with server(world, "a") as api:

        async def work(items: Any) -> None:
            for item in items:
                before = _calls(world)
                await worker.handle(item)
                world.counted["worked"] += _calls(world) > before
            worked.set()

        api.wake_ups._wake_up = work
        await api.append("p", 1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worked.wait()


def _calls(world: World) -> int:
    return sum(isinstance(one, ModelCalled) for one in world.events)


def _wakes_first(write: Any) -> Any:
    async def wrong(self: Appender, tx: Transaction, entries: Any) -> Any:
        keys = {entry.submission.session_key for entry in entries}
        self._wake_ups.add(_memory_of(tx, key) for key in keys)
        await self._wake_ups.flush()
        add = self._wake_ups.add
        self._wake_ups.add = lambda _, wanted=False: None  # type: ignore[method-assign, misc]
        try:
            return await write(self, tx, entries)
        finally:
            self._wake_ups.add = add  # type: ignore[method-assign]

    return wrong


def _memory_of(tx: Transaction, key: Any) -> WorkItem:
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=tx.tenant_id, session_key=key, item_id=memory_id(key, "m")
    )


async def written_twice(world: World) -> None:
    """A worker that takes an answer over writes its first event again, with another text."""
    item = await question(world)
    answer = (item.session_key, item.item_id)
    for worker in ("slow", "quick"):
        event = Event(ordinal=1, kind=EventKind.LEAF, action=Action.ENTER, text=worker)
        async with world.database(worker).transaction(DEFAULT_TENANT) as tx:
            await trajectories.append(tx, answer, event)
            stored = await trajectories.list_events(tx, answer, 0)
        world.counted["stored already"] += [one.text for one in stored] == ["slow"] != [worker]
    world.expect(
        "an event is stored twice",
        "SELECT ordinal, event ->> 'text' FROM trajectory_event WHERE session_key = %s",
        (1, "slow"),
    )


async def text_written_twice(world: World) -> None:
    """Two workers write one answer, and each streams its text."""
    item = await question(world)
    answer = (item.session_key, item.item_id)
    for worker in ("slow", "quick"):
        async with world.database(worker).transaction(DEFAULT_TENANT) as tx:
            if not await texts.append(tx, answer, [TextPiece(ordinal=1, text=worker)]):
                world.counted["stored already"] += 1
    world.expect(
        "an answer's text is by two workers",
        "SELECT ordinal, text FROM answer_text WHERE session_key = %s",
        (1, "slow"),
    )


async def indexed_late(world: World) -> None:
    """A worker that read an index when there was one chunk writes it when there are two."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        for after in (0, 1):
            await api.append("p", after + 1)
            async with world.database("quick").transaction(DEFAULT_TENANT) as tx:
                await chunk_index.write_words(tx, world.key, after)
    with mock.patch.object(chunk_index, "WORDS_CHUNKS", 1):
        try:
            async with world.database("slow").transaction(DEFAULT_TENANT) as tx:
                await chunk_index.write_words(tx, world.key, 0)
        except chunk_index.Overtaken:
            world.counted["overtaken"] += 1
    world.expect(
        "the index goes back",
        "SELECT indexed_position FROM session WHERE session_key = %s",
        (2,),
    )


def _twice(table: str) -> tuple[Drop, Sql]:
    """Rows of a table may be there twice."""
    return (
        Drop(table=table, name=f"{table}_pkey"),
        Sql(of=rf"INSERT INTO {table} \(", cut=r"ON CONFLICT DO NOTHING"),
    )


_POSITION = Sql(
    of=r"^UPDATE session SET indexed_position",
    cut=r" AND session\.indexed_position = %\(\w+\)s(::\w+)?",
)


def _one(
    name: str, scenario: Scenario, what: str, change: tuple[Change, ...], counter: str
) -> Chain:
    layer = Layer(name="once", what=what, change=change, counter=counter)
    return Chain(name=name, scenario=scenario, layers=(layer,))


STORED_ONCE = (
    Chain(
        name="early wake-up",
        scenario=taken_at_once,
        layers=(
            Layer(
                name="order",
                what="a wake-up is sent before its cause is committed",
                change=(Patch(where=Appender, name="_write_locked", to=_wakes_first),),
                counter="worked",
            ),
            LOOK,
        ),
    ),
    _one(
        "two events",
        written_twice,
        "an event of a trajectory may be stored twice",
        _twice("trajectory_event"),
        "stored already",
    ),
    _one(
        "two texts",
        text_written_twice,
        "a piece of an answer's text may be stored twice",
        _twice("answer_text"),
        "stored already",
    ),
    _one(
        "late index",
        indexed_late,
        "an index is extended from any position",
        (_POSITION,),
        "overtaken",
    ),
)
