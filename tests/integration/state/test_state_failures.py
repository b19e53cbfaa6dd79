"""State memories whose model fails, and what budgets and other workers do to them."""

import asyncio
from dataclasses import replace

import pytest

from service.domain.prompting.faults import Fault
from service.domain.spend.budgets import BudgetPeriod
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import VectorSource
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from storage.engine.database import Database
from storage.memories import flushing, revisions, stalls
from storage.state import idle
from tests.integration.memories.test_holding import CALL_TOKENS, OF_MEMORY, put
from tests.integration.memories.test_holding import gateway as budgeted_gateway
from tests.integration.state.test_state_episodes import roll_back
from tests.integration.support.crashing import Killed
from tests.integration.support.ledger_sums import usage_of_session
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    STATE,
    Script,
    make,
    read,
    state_method,
    vector_reply,
)
from tests.integration.support.stepping import append_steps, lines_of, row_of, vectors_of
from tests.support.contents import content_of

BUSY = ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)
REFUSED = ModelFailure("refused", retryable=False)
EPISODES = replace(STATE, episode_vectors=2)


def failing_episodes(error: Exception) -> Script:
    """Vectors of steps are made, episodes are not."""

    def reply(ask: object, number: int) -> str:
        if ask.template.startswith("state.episode"):  # type: ignore[attr-defined]
            raise error
        return vector_reply(ask, number)  # type: ignore[arg-type]

    return Script(reply=reply)


async def letters(database: Database) -> list[tuple[object, ...]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(
            "SELECT from_position, to_position, attempts, cause, resolution FROM dead_letter"
        )
        return [tuple(row) for row in rows]


async def retry(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)


async def test_steps_that_fail_are_tried_again(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 6)
    script = Script([BUSY, BUSY])
    for _ in range(3):
        await state_method(database, script).drain(ITEM)
        await asyncio.sleep(0.01)
    assert await lines_of(database) == [(1, "step", 0, 3), (2, "step", 3, 6)]
    assert len(script.asked) == 4
    assert await letters(database) == []


@pytest.mark.parametrize(
    ("failures", "cause"),
    [([BUSY] * 3, "busy"), ([REFUSED], "refused"), ([KeyError("a defect")] * 3, "'a defect'")],
)
async def test_steps_that_fail_for_good_stall_their_memory(
    database: Database, failures: list[Exception], cause: str
) -> None:
    await make(database, [], STATE)
    await append_steps(database, 3)
    await state_method(database, Script()).drain(ITEM)
    await append_steps(database, 4, first=4)
    script = Script(list(failures))
    for _ in failures:
        await state_method(database, script).drain(ITEM)
        await asyncio.sleep(0.01)
    stalled = await read(database)
    assert (stalled.status, stalled.applied_position) == ("stalled", 3)
    assert stalled.stall is not None
    assert (stalled.stall.position, stalled.stall.cause) == (4, cause)
    assert await letters(database) == [(3, 6, len(failures), cause, None)]
    assert await state_method(database, script).drain(ITEM) is None, "nobody can take it"
    await retry(database)
    await state_method(database, script).drain(ITEM)
    again = await read(database)
    assert (again.status, again.applied_position, again.stall) == ("active", 6, None)


async def test_an_episode_that_fails_for_good_stalls_its_memory(database: Database) -> None:
    await make(database, [], EPISODES)
    await append_steps(database, 12)
    await state_method(database, failing_episodes(REFUSED)).drain(ITEM)
    stalled = await read(database)
    assert (stalled.status, stalled.applied_position) == ("stalled", 6)
    assert await letters(database) == [(0, 6, 1, "refused", None)]
    await retry(database)
    await state_method(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 12
    kinds = [kind for _, kind, *_ in await lines_of(database)]
    assert kinds == ["step", "step", "episode", "step", "step", "episode", "episode"]


async def test_an_episode_at_the_head_is_made_when_its_memory_is_retried(
    database: Database,
) -> None:
    await make(database, [], EPISODES)
    await append_steps(database, 6)
    await state_method(database, failing_episodes(REFUSED)).drain(ITEM)
    await retry(database)
    await state_method(database, Script()).drain(ITEM)
    assert (await lines_of(database))[-1] == (3, "episode", 6, 6)


async def test_tries_of_an_episode_are_counted_though_more_steps_come(
    database: Database,
) -> None:
    await make(database, [], EPISODES)
    await append_steps(database, 6)
    script = failing_episodes(BUSY)
    for turn in range(3):
        await state_method(database, script).drain(ITEM)
        await append_steps(database, 3, first=7 + 3 * turn)
        await asyncio.sleep(0.01)
    assert (await read(database)).status == "stalled"
    assert await letters(database) == [(0, 6, 3, "busy", None)]


@pytest.mark.parametrize("failures", [[REFUSED], [BUSY] * 3])
async def test_a_memory_that_skips_stands_the_beginning_for_its_steps(
    database: Database, failures: list[Exception]
) -> None:
    await make(database, [], STATE, on_failure=OnFailure.SKIP)
    await append_steps(database, 3)
    await state_method(database, Script()).drain(ITEM)
    await append_steps(database, 6, first=4)
    script = Script(list(failures))
    for _ in failures:
        await state_method(database, script).drain(ITEM)
        await asyncio.sleep(0.01)
    assert await lines_of(database) == [(1, "step", 0, 3), (2, "skip", 3, 6), (3, "step", 6, 9)]
    before, skipped, behind = await vectors_of(database)
    assert (skipped.made, skipped.replies) == (VectorSource.SKIPPED, 0)
    assert before.text in skipped.text
    assert "Sign 5" in skipped.text
    assert skipped.tokens <= STATE.state_tokens
    assert behind.made is VectorSource.MODEL
    assert content_of(script.asked[-1]).current == skipped.text
    assert await letters(database) == [(3, 6, len(failures), str(failures[0]), "skipped")]


async def test_an_episode_that_is_skipped_is_stood_for_too(database: Database) -> None:
    await make(database, [], EPISODES, on_failure=OnFailure.SKIP)
    await append_steps(database, 9)
    await state_method(database, failing_episodes(REFUSED)).drain(ITEM)
    assert await lines_of(database) == [
        (1, "step", 0, 3),
        (2, "step", 3, 6),
        (3, "episode", 6, 6),
        (4, "step", 6, 9),
    ]
    _, newest, episode, _ = await vectors_of(database)
    assert (episode.made, episode.level, episode.children) == (VectorSource.SKIPPED, 2, (1, 2))
    assert newest.text in episode.text, "it stands for the whole level"
    assert await letters(database) == [(0, 6, 1, "refused", "skipped")]
    stored = await read(database)
    assert (stored.status, stored.applied_position) == ("active", 9)


async def test_a_model_that_says_nothing_gives_no_vector(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 3)
    script = Script(reply=lambda ask, number: "  ")
    await state_method(database, script).drain(ITEM)
    stalled = await read(database)
    assert stalled.stall is not None
    assert "no state vector" in stalled.stall.cause


async def test_steps_that_have_no_room_stall_with_a_sentence(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 3)
    script = Script()
    await state_method(database, script, window=300).drain(ITEM)
    stalled = await read(database)
    assert script.asked == []
    assert stalled.stall is not None
    assert "window of 300 tokens" in stalled.stall.cause


async def test_a_budget_holds_a_memory_and_nothing_is_lost(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 12)
    await put(database, OF_MEMORY, BudgetPeriod.TOTAL, 2 * CALL_TOKENS)
    script = Script()

    async def drain() -> float | None:
        calls_ = budgeted_gateway(database, script)
        return await state_method(database, script, calls=calls_).drain(ITEM)

    assert await drain() is None
    stored = await read(database)
    assert (stored.status, stored.stall, stored.applied_position) == ("active", None, 6)
    assert stored.held_reason is not None
    assert await drain() is None, "it waits"
    await append_steps(database, 3, first=13)
    assert await drain() is None
    assert len(script.asked) == 2
    await put(database, OF_MEMORY, BudgetPeriod.TOTAL, 1000 * CALL_TOKENS)
    assert await drain() is None
    again = await read(database)
    assert (again.applied_position, again.held_reason) == (15, None)


async def test_two_workers_at_once_make_one_memory_and_pay_once(database: Database) -> None:
    await make(database, [], EPISODES)
    await append_steps(database, 30)
    script = Script()
    taken: list[asyncio.Task[float | None]] = []

    async def take_over() -> None:
        if not taken:
            taken.append(asyncio.create_task(state_method(database, script).drain(ITEM)))
            await asyncio.sleep(0.2)

    script.meanwhile = take_over
    assert await state_method(database, script).drain(ITEM) is None
    assert await taken[0] is None
    assert (await read(database)).applied_position == 30
    steps = [(a, b) for _, kind, a, b in await lines_of(database) if kind == "step"]
    assert steps == [(n, n + 3) for n in range(0, 30, 3)]
    prompts = [ask.text for ask in script.asked]
    assert len(prompts) == len(set(prompts))
    async with database.transaction(DEFAULT_TENANT) as tx:
        (line,) = await usage_of_session(tx, KEY)
    assert (line.purpose, line.calls) == ("compress", len(prompts))


async def test_what_a_dead_worker_paid_for_is_asked_again_though_more_has_come(
    database: Database,
) -> None:
    await make(database, [], STATE, period=10)
    await append_steps(database, 2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await flushing.flush(tx, KEY, MEMORY, 2)
    script = Script()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("storage.state.vectors.commit", dying)
        with pytest.raises(Killed):
            await state_method(database, script).drain(ITEM)
    await append_steps(database, 8, first=3)
    await state_method(database, script).drain(ITEM)
    assert (await lines_of(database))[0] == (1, "step", 0, 2)
    assert len(script.asked) == 1


async def dying(*_: object, **__: object) -> None:
    raise Killed


async def test_a_memory_that_was_taken_over_is_not_left_idle(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 2)
    async with database.direct(DEFAULT_TENANT) as direct:
        found = await idle.look(direct, KEY, MEMORY)
    assert found is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await revisions.claim(tx, KEY, MEMORY, StateSpec.kind) is not None
    async with database.direct(DEFAULT_TENANT) as direct:
        assert await idle.leave(direct, found.held, 2, wake_position=3) == 2
        assert (await row_of(database)).has_work


async def test_a_memory_whose_log_went_on_is_not_left_idle(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 2)
    async with database.direct(DEFAULT_TENANT) as direct:
        found = await idle.look(direct, KEY, MEMORY)
        assert found is not None
        await append_steps(database, 1, first=3)
        assert await idle.leave(direct, found.held, found.head, wake_position=3) == 3
        assert (await row_of(database)).has_work


async def test_a_failed_compression_that_is_no_longer_due_delays_no_read(
    database: Database,
) -> None:
    spec = replace(EPISODES, idle_ms=3_600_000)
    await make(database, [], spec)
    await append_steps(database, 6)
    await state_method(database, failing_episodes(BUSY)).drain(ITEM)
    # One vector of the level is left, so there is no episode to be made.
    await roll_back(database, 1)
    await append_steps(database, 1, first=7)
    await asyncio.sleep(0.01)
    await state_method(database, Script()).drain(ITEM)
    assert (await row_of(database)).resting
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await flushing.flush(tx, KEY, MEMORY, 7) == [MEMORY]
    row = await row_of(database)
    assert row.ready_at <= row.now
    await state_method(database, Script()).drain(ITEM)
    assert (await lines_of(database))[-2:] == [(4, "step", 6, 7), (5, "episode", 7, 7)]
