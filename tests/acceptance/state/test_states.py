"""State memories by real processes: an agent's loop, and workers that are killed."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

import palimpsest
from tests.acceptance.memories.kept_memory import scripted
from tests.acceptance.state.held_models import HeldModel
from tests.support.fake_model import fake_model
from tests.support.harness import Servers, api, worker

pytestmark = pytest.mark.timeout(400)
STEPS = 12
PERIOD = 5
_STEP = re.compile(r"walk number (\d+),")


def action(number: int) -> str:
    return f"walk number {number}, and on"


@dataclass
class Compressing(HeldModel):
    """A model that says which steps it was shown, and holds still before one of its replies."""

    def reply(self, number: int) -> str:
        if number == self.stop_at:
            self.hold()
        return f"This is state {number} of the walk."

    @property
    def shown(self) -> list[list[int]]:
        """The steps in each prompt so far."""
        return [[int(one) for one in _STEP.findall(prompt)] for prompt in self.model.prompts]


@pytest.fixture
def compressing() -> Iterator[Compressing]:
    with fake_model() as model:
        made = Compressing(model)
        yield made
        made.go.set()


async def test_an_agents_loop_reads_every_step_once(client: palimpsest.Client) -> None:
    session = f"walk-{uuid4().hex}"
    async with client.agent(
        session, task="Find the town.", period=PERIOD, wait_seconds=200
    ) as agent:
        for number in range(1, STEPS + 2):
            context = await agent.context()
            assert (context.head, context.compression_due) == (number - 1, False)
            compressed = (number - 1) // PERIOD * PERIOD
            assert context.read_point.applied_position == compressed
            recent = [step.position for step in context.recent]
            assert recent == list(range(compressed + 1, number))
            assert [_last(vector) for vector in context.vectors] == [compressed]
            await agent.record(observation=f"Sign {number}.", action=action(number))
    vectors = [one async for one in agent.memory.vectors()]
    new = [one.new_positions for one in vectors]
    ranges = [palimpsest.PositionRange(first=first, last=first + 4) for first in (1, 6)]
    assert new == [None, *ranges]


def _last(vector: palimpsest.StateVector) -> int:
    return 0 if vector.positions is None else vector.positions.last


@pytest.mark.prove
def test_a_worker_killed_while_it_compresses_is_followed_by_another(
    servers: Servers, compressing: Compressing
) -> None:
    url = servers.new_database()
    with api(url) as (_, address):
        compressing.stop_at = 2
        with worker(url, **scripted(compressing.model)) as doomed:
            asyncio.run(_walk(address))
            assert compressing.waiting.wait(150), "the model was asked"
            doomed.kill()
        compressing.go.set()
        with worker(url, **scripted(compressing.model)):
            context = asyncio.run(_read(address))
    assert (context.read_point.applied_position, context.head) == (10, STEPS)
    assert [step.position for step in context.recent] == [11, 12]
    first, *rest = compressing.shown
    assert first == [1, 2, 3, 4, 5]
    assert rest in ([[6, 7, 8, 9, 10]] * number for number in (1, 2)), "of the same steps"


async def _walk(address: str) -> None:
    async with (
        palimpsest.connect(address) as client,
        client.agent("walk", task="Find the town.", period=PERIOD, wait_seconds=0) as agent,
    ):
        for number in range(1, STEPS + 1):
            await agent.record(action=action(number))


async def _read(address: str) -> palimpsest.WorkingContext:
    async with palimpsest.connect(address) as client:
        memory = client.session("walk").state("state")
        return await memory.context(fully_applied=True, timeout=200)
