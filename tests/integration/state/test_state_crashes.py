"""For any stream and any crashes, a state memory is the one that algorithm 1 makes in one go.

Workers are killed before, within and after their commits and wherever else they wait,
the model fails now and then, and steps come in any batches, also while a worker is at it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.domain.state.spec import StateSpec
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.llm.gateway.gateway import Gateway
from service.usecases.memories.step_engine import StepEngine
from storage.engine.database import Database
from storage.state import vectors
from tests.integration.support.crashing import (
    Crash,
    FailingScript,
    Killed,
    crashes,
    dying_at_commits,
)
from tests.integration.support.scripted import CONFIG, STATE, state_method
from tests.integration.support.stepping import Plain, assert_follows_log, begin, step
from tests.integration.support.writing import append_chunks
from tests.support.gateways import SHORT_LEASE_SECONDS, gateway
from tests.support.properties import examples

#: No step gives up: failures only cost time here.
PATIENT = CONFIG.model_copy(update={"step_tries": 1000, "step_backoff_seconds": 0.0001})
#: Longer than any example needs, in turns of a worker.
MAX_TURNS = 200
SESSIONS = count(1)


@dataclass(frozen=True)
class Turn:
    """Steps that come, and what happens to the worker that reads them."""

    steps: int
    #: Whether they come while it is at work.
    meanwhile: bool
    crash: Crash | None


@dataclass(frozen=True)
class Story:
    """A stream, and what happens while it is read."""

    steps: int
    turns: Sequence[Turn]
    #: Of the model's calls, those that fail.
    failing: frozenset[int]
    period: int
    #: 0: no episodes.
    episode_vectors: int

    @property
    def spec(self) -> StateSpec:
        return replace(STATE, period=self.period, episode_vectors=self.episode_vectors)


CRASHES = crashes(1, 90)
TURNS = st.lists(
    st.builds(Turn, steps=st.integers(0, 9), meanwhile=st.booleans(), crash=CRASHES), max_size=6
)
STORIES = st.builds(
    Story,
    steps=st.integers(0, 24),
    turns=TURNS,
    failing=st.frozensets(st.integers(1, 20), max_size=4),
    period=st.integers(1, 4),
    episode_vectors=st.sampled_from([0, 0, 2, 3]),
)


@pytest.mark.prove
@settings(
    max_examples=examples(40),
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(story=STORIES)
async def test_a_memory_is_the_same_however_it_was_kept(database: Database, story: Story) -> None:
    world = await World.begin(database, story.spec, story.failing)
    left = story.steps
    for turn in story.turns:
        now = min(turn.steps, left)
        left -= now
        if turn.meanwhile:
            await asyncio.gather(world.append(now), world.work(turn.crash))
        else:
            await world.append(now)
            await world.work(turn.crash)
    await world.append(left)
    for turn in story.turns:
        await world.work(turn.crash)
    await world.work_to_the_end()
    await world.check()


@pytest.mark.prove
async def test_a_worker_may_die_wherever_it_waits(database: Database) -> None:
    spec = replace(STATE, period=1, episode_vectors=2)
    waits, is_done = 0, False
    while not is_done:
        waits += 1
        world = await World.begin(database, spec)
        await world.append(2)
        is_done = await world.cut_off(waits)
        await world.append(1)
        await world.work_to_the_end()
        await world.check()
    print("places where it waits:", waits - 1)
    assert waits > 20


class Mortal:
    """Runs until it has waited so often, and is cancelled where it waits then."""

    def __init__(self, doing: Coroutine[Any, Any, Any], waits: int) -> None:
        self._doing = doing
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, Any]:
        doing = self._doing.__await__()
        try:
            waited_for = next(doing)
            while True:
                self._waits -= 1
                if self._waits == 0:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                try:
                    sent = yield waited_for
                except BaseException as error:
                    waited_for = doing.throw(error)
                else:
                    waited_for = doing.send(sent)
        except StopIteration as end:
            return end.value

    async def run(self) -> Any:
        """Runs an awaitable as a coroutine, for a task."""
        return await self


@dataclass
class World:
    """A session of its own with a state memory, its producer and its workers."""

    database: Database
    spec: StateSpec
    model: FailingScript
    gateway: Gateway
    name: str
    item: WorkItem
    sent: int = 0

    @classmethod
    async def begin(
        cls, database: Database, spec: StateSpec, failing: frozenset[int] = frozenset()
    ) -> "World":
        model, name = FailingScript(failing=failing), f"s{next(SESSIONS)}"
        item = await begin(database, name, spec)
        return cls(
            database,
            spec,
            model,
            gateway(model, database, lease_seconds=SHORT_LEASE_SECONDS),
            name,
            item,
        )

    async def append(self, steps: int) -> None:
        if steps:
            first = self.sent + 1
            self.sent += steps
            chunks = [step(number) for number in range(first, first + steps)]
            await append_chunks(self.database, self.name, chunks, first=first)

    def drain(self) -> Coroutine[Any, Any, float | None]:
        worker = state_method(self.database, self.model, PATIENT, calls=self.gateway)
        return worker.drain(self.item)

    async def work(self, crash: Crash | None) -> None:
        if crash is None:
            await self.drain()
        elif crash.where == "waiting":
            await self.cut_off(crash.at)
        else:
            with _dying(crash), suppress(Killed):
                await self.drain()

    async def cut_off(self, waits: int) -> bool:
        """Kills a worker where it waits for the n-th time; whether it was done before."""
        task = asyncio.create_task(Mortal(self.drain(), waits).run())
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    async def work_to_the_end(self) -> None:
        for _ in range(MAX_TURNS):
            await self.work(None)
            async with self.database.transaction(DEFAULT_TENANT) as tx:
                rows = await tx.fetch(
                    "SELECT has_work FROM memory WHERE memory_id = %s", (self.item.item_id,)
                )
                if not rows[0][0]:
                    return
            await asyncio.sleep(0.001)
        raise AssertionError("it has work for ever")

    async def check(self) -> None:
        """The memory is that of the plain model, and nothing was paid twice."""
        plain = Plain(self.spec, iter(self.model.paid))
        for number in range(1, self.sent + 1):
            plain.read(number, step(number).as_text())
        await assert_follows_log(self.database, self.item, plain)


@contextmanager
def _dying(crash: Crash) -> Iterator[None]:
    """Kills the worker at a commit of a revision."""
    write: Callable[..., Awaitable[Any]] = StepEngine._commit
    written = count(1)

    async def behind(*arguments: Any, **named: Any) -> Any:
        done = await write(*arguments, **named)
        if crash.where == "behind" and next(written) == crash.at:
            raise Killed
        return done

    with dying_at_commits(crash, vectors) as patched:
        patched.setattr(StepEngine, "_commit", behind)
        yield
