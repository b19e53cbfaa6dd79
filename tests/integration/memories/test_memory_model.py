"""Random histories of memories, against a model of what they must be.

Producers, workers that are killed wherever they wait, editors, and readers run
at once on one session. `PALIMPSEST_TEST_MODEL_SEED` and `PALIMPSEST_TEST_MODEL_ROUNDS` choose
other histories, and longer ones.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.prism.amendments import Op
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import Encoding, PrismSpec, StepScope
from service.domain.prompting.flows import ModelRequest
from service.domain.values.errors import PalimpsestError
from service.domain.values.json_values import canonical
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Config, Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.edit import Edit, Editor, MemoryUpdate, Target
from service.usecases.memories.history import History
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.watch import Committed, Watches
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.log import chunks as log
from storage.log import sessions
from storage.memories import revisions
from storage.memories.memories import StoredMemory
from tests.integration.support import memory_model as model
from tests.integration.support.scripted import Script, prism_method
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.contents import ReviseContent, content_of
from tests.support.runnable import runnable as runnable_now

pytestmark = pytest.mark.prove

SEED = int(os.environ.get("PALIMPSEST_TEST_MODEL_SEED", "1"))
ROUNDS = int(os.environ.get("PALIMPSEST_TEST_MODEL_ROUNDS", "1"))
#: Things that people do in one round.
OPERATIONS = 60

KEY = session_key(DEFAULT_TENANT, "s")
FIELDS = "log: dict[str, str]\n    items: list[str]\n    notes: dict[str, str]\n"
SOURCE = f"class M:\n    {FIELDS}"
SPEC = PrismSpec(schema_source=SOURCE, chunk_tokens=12, model="test/scripted", fold_tokens=150)
SPECS = {
    "plain": replace(SPEC, task="plain"),
    "small": replace(SPEC, task="small", memory_tokens=60, on_failure=OnFailure.SKIP),
    "focus": replace(SPEC, task="focus", memory_tokens=60, steps=StepScope.FOCUSED),
    "place": replace(SPEC, task="place", encoding=Encoding.IN_PLACE, linger_ms=40),
}
CONFIG = Config(step_backoff_seconds=0.001, step_tries=2, drain_seconds=0.2)


async def cut_off(doing: Awaitable[Any], seconds: float | None) -> bool:
    """Does it, or kills it after so long wherever it waits; whether it got to its end."""
    task = asyncio.ensure_future(doing)
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        task.cancel()
    await asyncio.wait((task,))
    if task.cancelled():
        return False
    task.result()
    return True


class Scripted(Script):
    """A model that takes its time, and fails now and then."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    async def complete(self, ask: ModelRequest, model_: str, plan: CallPlan) -> Completion:
        world = self._world
        await asyncio.sleep(world.random.random() * 0.01)
        if isinstance(content_of(ask), ReviseContent):
            positions = tuple(world.texts.index(text) + 1 for text in content_of(ask).texts)
            world.expected[content_of(ask).task].asked.setdefault(positions, []).append(ask)
        if world.is_rough and world.random.random() < 0.08:
            raise ModelFailure("it is tired", retryable=world.random.random() < 0.7)
        world.replies += 1
        number = world.replies
        self.reply = lambda ask, _: model.reply(ask, number, world.texts)
        return await super().complete(ask, model_, plan)


class World:
    """A session with memories, and all clients and workers that use them."""

    def __init__(self, database: Database, seed: int) -> None:
        self.random = random.Random(seed)
        self.database = database
        limits = Limits()
        wake_ups = WakeUps(drop_wake_ups)
        self.watcher = ProgressWatcher(database)
        self.memories = memories_of(database, wake_ups, self.watcher, b"token-key", limits)
        self.editor = Editor(database, self.memories, limits)
        self.history = History(database, use_cases())
        self.watches = Watches(database, self.watcher, limits)
        self.appender = Appender(database, wake_ups, b"token-key", limits)
        self.expected = {name: model.Expected() for name in SPECS}
        #: What was sent to the log.
        self.texts: list[str] = []
        self.replies = 0
        self.changes = 0
        #: What some worker works on; others rarely take it, as when a lock has run out.
        self.in_hands: list[WorkItem] = []
        #: Whether models fail and workers are killed.
        self.is_rough = True
        self.stopping = asyncio.Event()

    async def stored(self, name: str) -> StoredMemory:
        return await self.memories.get(DEFAULT_TENANT, "s", name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(one.run()) for one in (self.watcher, self.appender)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def work(self) -> None:
        """Finds work as workers do; is killed at times, wherever it waits."""
        while not self.stopping.is_set():
            worker = prism_method(self.database, Scripted(self), CONFIG, window=20_000)
            with suppress(StorageError):
                async with self.database.sweeping() as tx:
                    items = await runnable_now(tx, 100)
                self.random.shuffle(items := list(items))
                for item in items:
                    if item in self.in_hands and self.random.random() < 0.9:
                        continue
                    self.in_hands.append(item)
                    killed = self.is_rough and self.random.random() < 0.5
                    seconds = self.random.random() * 0.05 if killed else None
                    try:
                        await cut_off(worker.drain(item), seconds)
                    finally:
                        self.in_hands.remove(item)
            await asyncio.sleep(0.005)

    async def produce(self, name: str, count: int) -> None:
        """Appends texts, each until it is acked, though acks are lost at times."""
        sequence = 0
        while sequence < count:
            batch = [
                f"{self.random.getrandbits(48):012x}" for _ in range(self.random.randint(1, 4))
            ]
            self.texts += batch
            while True:
                sent = submission("s", batch, first=sequence + 1, producer=name)
                seconds = self.random.random() * 0.01 if self.random.random() < 0.2 else None
                with suppress(StorageError):
                    if await cut_off(self.appender.submit(DEFAULT_TENANT, sent), seconds):
                        break
            sequence += len(batch)
            await asyncio.sleep(self.random.random() * 0.05)

    async def watch(self, name: str) -> None:
        """Watches on and on, from where the watch before was cut off."""
        told = self.expected[name].told

        async def listen() -> None:
            after = told[-1].revision.revision if told else 0
            events = self.watches.watch(DEFAULT_TENANT, "s", name, after, deadline=None)
            async with aclosing(events) as seen:
                async for event in seen:
                    if isinstance(event, Committed):
                        told.append(event)

        patience = 1.0
        while not self.stopping.is_set() or len(told) < (await self.stored(name)).revision:
            before = len(told)
            await cut_off(listen(), (0.05 + self.random.random() * 0.3) * patience)
            # On a slow machine the first look of a watch may take longer than that.
            patience = 1.0 if len(told) > before else min(patience * 2, 32.0)

    async def live(self, operations: int) -> None:
        """Clients that edit and read the memories in many ways."""
        acts: list[Callable[[str], Awaitable[None]]] = [
            *(self.edit,) * 5,
            *(self.rollback, self.fold, self.consolidate, self.flush, self.update_schema),
            *(self.read,) * 2,
        ]
        for _ in range(operations):
            act = self.random.choice(acts)
            seconds = self.random.random() * 0.02 if self.random.random() < 0.1 else None
            # What a stall, a busy row or another's edit refuses has changed nothing.
            with suppress(PalimpsestError, StorageError):
                await cut_off(act(self.random.choice(list(SPECS))), seconds)
            await asyncio.sleep(self.random.random() * 0.02)

    def _target(self, name: str, expected: int | None = None) -> Target:
        self.changes += 1
        comment = f"change {self.changes}"
        return Target(session="s", memory=name, expected_revision=expected, comment=comment)

    def _acked(
        self, name: str, kind: str, stored: StoredMemory, target: Target, **more: Any
    ) -> None:
        change = model.Change(revision=stored.revision, kind=kind, comment=target.comment, **more)
        self.expected[name].acked.append(change)

    async def edit(self, name: str) -> None:
        """Writes a note or over a line, or takes something away."""
        target = self._target(name)
        text = f'"edit {self.changes}"'
        note = f"$.notes.n{self.random.randint(0, 9)}"
        line = f"$.log.p{self.random.randint(1, max(len(self.texts), 1))}"
        edits = self.random.choice(
            [
                [Edit(op=None, path=note, value_json=text)],
                [
                    Edit(op=None, path="$.items[-]", value_json=f'"edit {self.changes}a"'),
                    Edit(op=None, path=note, value_json=text),
                ],
                [Edit(op=None, path="$.items[0]", value_json=text)],
                [Edit(op=None, path=line, value_json=text)],
                [Edit(op=Op.REMOVE, path="$.items[0]", value_json="")],
                [Edit(op=Op.REMOVE, path=line, value_json="")],
                [
                    Edit(op=None, path=note, value_json=text),
                    Edit(op=Op.REMOVE, path=note, value_json=""),
                ],
            ]
        )
        stored, made = await self.editor.revise(DEFAULT_TENANT, target, edits)
        assert len(made) == len(edits)
        self._acked(name, "edit", stored, target)

    async def rollback(self, name: str) -> None:
        newest = (await self.stored(name)).revision
        target = self._target(name, newest if self.random.random() < 0.5 else None)
        revision = self.random.randint(max(newest - 12, 0), newest)
        stored = await self.editor.rollback(DEFAULT_TENANT, target, revision)
        self._acked(name, "rollback", stored, target, restored_revision=revision)

    async def fold(self, name: str) -> None:
        await self.editor.fold(DEFAULT_TENANT, Target(session="s", memory=name))

    async def consolidate(self, name: str) -> None:
        await self.editor.consolidate(DEFAULT_TENANT, Target(session="s", memory=name))

    async def flush(self, name: str) -> None:
        everything = self.random.random() < 0.5
        token, _ = await self.memories.flush(DEFAULT_TENANT, "s", "" if everything else name)
        deadline = asyncio.get_running_loop().time() + 0.05
        await self.memories.read(
            DEFAULT_TENANT, "s", name, Consistency(at_least=token), deadline=deadline
        )

    async def update_schema(self, name: str) -> None:
        target = self._target(name)
        more = f"extra_{self.changes}: str\n"
        known = PrismSpec.of(await self.stored(name)).schema_source
        schema = parse_source(f"{known.rstrip()}\n    {more}")
        stored = await self.editor.update(
            DEFAULT_TENANT, target, PrismSpec.kind, MemoryUpdate(schema=schema)
        )
        self._acked(name, "schema", stored, target)

    async def read(self, name: str) -> None:
        """Looks at the memory in the middle of everything."""
        past = await model.read_past(self.database, await self.stored(name))
        model.check_chain(past)
        model.check_acked(past, self.expected[name])
        model.check_told(past, self.expected[name].told, complete=False)
        revision = self.random.randint(0, past.stored.revision)
        reading = await self.memories.read_revision(DEFAULT_TENANT, "s", name, revision)
        assert reading.value_json == canonical(past.values[revision])
        if past.stored.applied_position:
            position = self.random.randint(0, past.stored.applied_position)
            at = await self.memories.read_position(DEFAULT_TENANT, "s", name, position)
            assert at.applied_position <= position

    async def settle(self) -> None:
        """Waits until no worker finds any work; wakes what is stalled."""
        self.is_rough = False
        for _ in range(2000):
            rows = [await self.stored(name) for name in SPECS]
            for stored in rows:
                if stored.status == "stalled":
                    await self.memories.retry(DEFAULT_TENANT, "s", stored.name)
            behind = [one for one in rows if one.applied_position < one.head]
            if not behind and all(one.consolidate_position is None for one in rows):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("there is work that nobody finds")

    async def check(self) -> None:
        """Checks everything that must be true at the end."""
        await model.check_log(self.database, KEY, self.texts)
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            chunks = await log.read(tx, KEY, 0, model.ALL)
        texts = [one.chunk.text for one in chunks]
        for name, expected in self.expected.items():
            past = await model.read_past(self.database, await self.stored(name))
            model.check_chain(past)
            model.check_acked(past, expected)
            model.check_told(past, expected.told, complete=True)
            await model.check_states(self.database, self.memories, past)
            await model.check_prompts(self.database, past, expected)
            for at in {past.stored.revision, self.random.randint(0, past.stored.revision)}:
                await model.check_provenance(self.database, self.history, past, at, texts)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_whatever_happens_nothing_is_lost_or_applied_twice(
    url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "SNAPSHOT_AMENDMENTS", 7)
    database = Database.connect(url, pool_size=12, name="model")
    try:
        world = World(database, seed)
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, KEY, "s")
        for name, spec in SPECS.items():
            await world.memories.create(DEFAULT_TENANT, "s", name, spec)
        async with world.running(), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(world.work())
            for name in SPECS:
                group.create_task(world.watch(name))
            async with asyncio.TaskGroup() as busy:
                for number in range(2):
                    busy.create_task(world.produce(f"p{number}", OPERATIONS // 3))
                for _ in range(2):
                    busy.create_task(world.live(OPERATIONS // 2))
            await world.settle()
            world.stopping.set()
        await world.check()
    finally:
        await database.close()
