"""The accounting of section 3.3 is read from the database: its sums, and its report."""

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.accounting import Accounting, account
from service.domain.state.spec import StateSpec
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.state import accounting
from tests.integration.support.agent_runs import RUNS, chunks_of
from tests.integration.support.state_rows import StateRows
from tests.support.loops import Simulated, loop, recursive, simulate, sums_of

WORDS = ("", "a", "ß", "日本", "🚢", "pier", "a grey stone", "line\nline", " ", "x" * 997)


def random_chunk(random: Random) -> Chunk:
    """Returns a chunk of any kind; parts of a step may be empty, not all of them."""
    kind = random.choice(list(ChunkKind))
    if kind is ChunkKind.TEXT:
        return Chunk(kind=kind, text=random.choice(WORDS[1:]))
    if kind is ChunkKind.MESSAGE:
        role = random.choice(("user", "agent", "Jörg"))
        return Chunk(kind=kind, role=role, text=random.choice(WORDS[1:]))
    parts = [random.choice(WORDS) for _ in range(3)]
    if not any(parts):
        parts[random.randrange(3)] = "so"
    observation, thought, action = parts
    return Chunk(kind=kind, observation=observation, thought=thought, action=action)


def sizes(chunks: Sequence[Chunk]) -> list[int]:
    return [estimate_tokens(chunk.as_text()) for chunk in chunks]


async def accounted(
    database: Database, rows: StateRows, spec: StateSpec, chunks: Sequence[Chunk]
) -> tuple[Simulated, Accounting]:
    """Returns the accounting, after its sums have been found to be those of the plain model."""
    stored = await rows.read()
    run = simulate(sizes(chunks), estimate_tokens(spec.task), rows.held)
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await accounting.read_sums(
            tx, *rows.ids, revision=stored.revision, head=stored.head
        )
    assert found == sums_of(run, compressions=rows.compressions)
    return run, account(found, spec, compression_tokens=0)


@pytest.mark.parametrize("seed", range(4))
async def test_sums_are_those_of_the_texts_that_models_read(database: Database, seed: int) -> None:
    random = Random(seed)
    chunks = [random_chunk(random) for _ in range(120)]
    spec = StateSpec(task=random.choice(WORDS), period=7)
    rows = await StateRows.made(database, "s", spec, chunks)
    await accounted(database, rows, spec, chunks)
    while (left := len(chunks) - rows.held[-1].to_position) > 0:
        steps = min(random.randint(1, 12), left)
        await rows.compress(steps, random.randint(1, 400), skipped=random.random() < 0.2)
        if random.random() < 0.2:
            await rows.roll_back(random.randrange(len(rows.held)))
        await accounted(database, rows, spec, chunks)


async def test_each_kind_of_chunk_is_as_long_as_its_text(database: Database) -> None:
    parts = [(o, t, a) for o in ("", "o" * 5) for t in ("", "tt") for a in ("", "a")]
    chunks = [
        Chunk(kind=ChunkKind.STEP, observation=o, thought=t, action=a) for o, t, a in parts[1:]
    ]
    chunks += [Chunk(kind=ChunkKind.MESSAGE, role="r" * n, text="é") for n in range(1, 6)]
    chunks += [Chunk(kind=ChunkKind.TEXT, text="日" * n) for n in range(1, 6)]
    for number, chunk in enumerate(chunks):
        spec = StateSpec()
        rows = await StateRows.made(database, f"s{number}", spec, [chunk])
        await accounted(database, rows, spec, [chunk])


async def test_all_levels_in_use_stand_in_a_context(database: Database) -> None:
    chunks = [Chunk(kind=ChunkKind.TEXT, text="word " * 20) for _ in range(30)]
    spec = StateSpec(task="Find the pier.", period=2, episode_vectors=2)
    rows = await StateRows.made(database, "s", spec, chunks)
    for number in range(1, 13):
        await rows.compress(2, 100 + number)
        if number % 2 == 0:
            await rows.lift(300 + number)
        if number % 4 == 0:
            await rows.lift(700 + number)
        await accounted(database, rows, spec, chunks)
    levels = [one.tokens for one in rows.held]
    assert levels[3] == 302 + 4, "the task prompt is M again"
    await rows.roll_back(3)
    run, found = await accounted(database, rows, spec, chunks)
    assert run.pcc[24][0] == levels[3], "what a rollback brought back stands in what follows"
    assert found.period == 2


async def test_a_rollback_to_the_beginning_leaves_the_task_prompt(database: Database) -> None:
    chunks = [Chunk(kind=ChunkKind.TEXT, text="word " * 20) for _ in range(9)]
    spec = StateSpec(task="Find the pier.", period=3)
    rows = await StateRows.made(database, "s", spec, chunks)
    await rows.compress(3, 50)
    await rows.compress(3, 60)
    await rows.roll_back(0)
    run, found = await accounted(database, rows, spec, chunks)
    assert [context[0] for context in run.pcc] == [4, 4, 4, 50, 50, 50, 4, 4, 4]
    assert (found.state_tokens, found.period) == (50, 3)


async def test_what_comes_after_the_row_was_read_is_not_counted(database: Database) -> None:
    chunks = [Chunk(kind=ChunkKind.TEXT, text="word " * 20) for _ in range(9)]
    spec = StateSpec(period=3)
    rows = await StateRows.made(database, "s", spec, chunks)
    await rows.compress(3, 50)
    before = await rows.read()
    run = simulate(sizes(chunks[:5]), 0, rows.held)
    await rows.compress(3, 60)
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await accounting.read_sums(tx, *rows.ids, revision=before.revision, head=5)
    assert found == sums_of(run, compressions=1)


def made_up() -> list[dict[str, Any]]:
    """Runs in the form of the recorded ones."""
    random = Random(7)
    runs = []
    for number, count in enumerate((1, 3, 10, 11, 47)):
        steps = [
            {
                "thought": f"I look for pier {n}.",
                "action": f"Search[Pier {n}]",
                "observation": "Pier of grey stone. " * random.randint(0, 90),
            }
            for n in range(count)
        ]
        runs.append({"id": f"made-up-{number}", "task": "Which pier is of stone?", "steps": steps})
    return runs


async def check_run(database: Database, run: dict[str, Any], period: int) -> None:
    """A run by algorithm 1: by SQL, by running the loops, and by formulas."""
    chunks = chunks_of(run)
    tokens = sizes(chunks)
    count = len(chunks)
    random = Random(count)
    spec = StateSpec(task=run["task"], period=period)
    rows = await StateRows.made(database, f"{run['id']}-{period}", spec, chunks)
    for _ in range(count // period):
        await rows.compress(period, random.randint(50, spec.state_tokens))
    simulated, found = await accounted(database, rows, spec, chunks)
    mean = simulated.vector_mean(spec.state_tokens)
    summarizing, made = recursive(simulated, mean)
    assert replace(found.standard, formula_tokens=0) == loop(simulated.standard, tokens)
    assert replace(found.pcc, formula_tokens=0) == loop(simulated.pcc, tokens)
    assert found.recursive == replace(summarizing, compression_tokens=made)

    # The formulas, with each step as often as it is read, its own step included.
    task = estimate_tokens(spec.task)
    whole = sum(size * (count - number) for number, size in enumerate(tokens))
    assert found.standard.processed_tokens == count * task + whole
    ends = [min((number // period + 1) * period, count) for number in range(count)]
    pieces = sum(size * (end - n) for n, (size, end) in enumerate(zip(tokens, ends, strict=True)))
    vectors = [one.tokens for one in rows.held]
    held = sum(vectors[number // period] for number in range(count))
    assert found.pcc.processed_tokens == held + pieces

    most = max(vectors) + period * max(tokens)
    assert found.pcc.max_context_tokens == max(map(sum, simulated.pcc)) <= most
    before = task + sum(tokens[: min(period, count) - 1])
    assert max(map(sum, simulated.pcc[:period])) == before, "M is the task prompt"


@pytest.mark.parametrize("period", [1, 4, 10, 20])
async def test_runs_in_the_form_of_recorded_ones(database: Database, period: int) -> None:
    for run in made_up():
        await check_run(database, run, period)


@pytest.mark.skipif(not RUNS.exists(), reason="the recorded runs are not beside the repository")
@pytest.mark.prove
@pytest.mark.parametrize("period", [5, 10])
async def test_recorded_runs(database: Database, period: int) -> None:
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()]
    assert runs
    for run in runs:
        await check_run(database, run, period)
