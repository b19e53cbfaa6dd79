"""Agent runs by algorithm 1: what an agent reads at each step, through append and worker.

Runs of the recorded form are made up; the recorded ones are read where they are there.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from service.domain.log.chunks import Chunk
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from storage.engine.database import Database
from storage.state import contexts
from storage.state.contexts import ContextBounds
from tests.integration.support.agent_runs import RUNS, chunks_of
from tests.integration.support.scripted import Script, state_method
from tests.integration.support.stepping import Plain, assert_follows_log, begin
from tests.integration.support.writing import append_chunks

#: Of these runs the steps come one at a time, each as soon as the worker is done.
STEP_BY_STEP = 10
#: Each setting reads other runs, one in so many; all with LONG=1.
ONE_IN = 1 if "PALIMPSEST_TEST_LONG" in os.environ else 3
SENTENCES = 120
ALL = ContextBounds(chunks=10_000, content_bytes=2**30, metadata_bytes=2**30)


def long_reply(ask: ModelRequest, number: int) -> str:
    """Returns a state vector of about 420 tokens that depends on the prompt alone."""
    digest = hashlib.sha256(ask.text.encode()).hexdigest() * 2
    return " ".join(f"Fact {digest[n : n + 2]} holds." for n in range(SENTENCES))


@dataclass(frozen=True)
class Context:
    """What an agent reads."""

    vectors: Sequence[str]
    recent: Sequence[tuple[int, str]]

    @property
    def tokens(self) -> int:
        """Returns its tokens by `estimate_tokens`."""
        return sum(map(estimate_tokens, [*self.vectors, *(text for _, text in self.recent)]))


def made_up() -> list[dict[str, Any]]:
    random = Random(7)
    return [
        {
            "id": f"made-up-{number}",
            "task": "Which pier is of stone?",
            "steps": [
                {
                    "thought": f"I look for pier {n}.",
                    "action": f"Search[Pier {n}]" if n % 5 else "",
                    "observation": "Pier of grey stone. " * random.randint(0, 90),
                }
                for n in range(count)
            ],
        }
        for number, count in enumerate((0, 10, 3, 1, 26, 31))
    ]


async def context_at(database: Database, item: WorkItem, position: int | None) -> Context:
    """Returns what is read when the log ends at a position; None: now."""
    key = (item.session_key, item.item_id)
    async with database.direct(DEFAULT_TENANT) as tx:
        if position is None:
            found = await contexts.read_newest(tx, key, ALL)
        else:
            found = await contexts.read_at_position(tx, key, ALL, position)
    assert found is not None
    assert found.state is not None
    assert found.is_whole
    return Context(
        vectors=[vector.text for vector in found.state.stack],
        recent=[(one.position, one.chunk.as_text()) for one in found.recent],
    )


async def check_run(
    database: Database, run: dict[str, Any], spec: StateSpec, *, step_by_step: bool
) -> None:
    """Checks the context at every position of a run against the plain model, and its bound."""
    name = f"{run['id']}-{spec.period}-{spec.episode_vectors}"
    item = await begin(database, name, spec)
    script, chunks = Script(reply=long_reply), chunks_of(run)
    plain = Plain(spec, iter(script.asked), long_reply)
    said: list[Context] = []

    async def follow(batch: Sequence[Chunk]) -> None:
        first = len(said) + 1
        if batch:
            await append_chunks(database, name, batch, first=first)
        assert await state_method(database, script).drain(item) is None
        for position, chunk in enumerate(batch, start=first):
            plain.read(position, chunk.as_text())
            said.append(Context(plain.in_use(), list(plain.recent)))
        if said:
            assert await context_at(database, item, None) == said[-1]

    for batch in [[chunk] for chunk in chunks] if step_by_step else [chunks]:
        await follow(batch)
    for position, context in enumerate(said, start=1):
        assert await context_at(database, item, position) == context
    await assert_follows_log(database, item, plain)
    _assert_bounded(spec, chunks, said)


def _assert_bounded(spec: StateSpec, chunks: Sequence[Chunk], said: Sequence[Context]) -> None:
    largest = max((estimate_tokens(chunk.as_text()) for chunk in chunks), default=0)
    vector = max(spec.state_tokens, estimate_tokens(spec.task))
    for context in said:
        above = len(context.vectors) - 1
        most = vector + above * spec.state_tokens + (spec.period - 1) * largest
        assert context.tokens <= most
        assert len(context.recent) < spec.period


@pytest.mark.prove
@pytest.mark.parametrize(("period", "episode_vectors"), [(3, 0), (10, 0), (1, 0), (3, 2)])
async def test_runs_in_the_form_of_recorded_ones(
    database: Database, period: int, episode_vectors: int
) -> None:
    for number, run in enumerate(made_up()):
        spec = _spec(run, period, episode_vectors)
        await check_run(database, run, spec, step_by_step=number % 2 == 0)


@pytest.mark.skipif(not RUNS.exists(), reason="the recorded runs are not beside the repository")
@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("first", "period", "episode_vectors"), [(0, 3, 0), (1, 10, 0), (2, 3, 2)])
async def test_recorded_runs(
    database: Database, first: int, period: int, episode_vectors: int
) -> None:
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()]
    chosen = [(number, run) for number, run in enumerate(runs) if (number - first) % ONE_IN == 0]
    assert chosen
    for number, run in chosen:
        spec = _spec(run, period, episode_vectors)
        await check_run(database, run, spec, step_by_step=number < STEP_BY_STEP)


def _spec(run: dict[str, Any], period: int, episode_vectors: int) -> StateSpec:
    spec = StateSpec(task=run["task"], period=period, model="test/scripted")
    return replace(spec, episode_vectors=episode_vectors)
