"""Waiting for a working context in which nothing is due; a test compresses by hand."""

import asyncio
from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg
import pytest

from service.domain.state.spec import StateSpec
from service.domain.values.errors import DeadlineExceeded, Exhausted, FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.state.working_contexts import ContextReading, WorkingContexts
from storage.engine.database import Database
from tests.integration.support.vector_rows import Keeper
from tests.support.harness import Servers

SPEC = StateSpec(task="t", period=3, episode_vectors=2, model="test/scripted")


@pytest.fixture
async def kept(database: Database) -> Keeper:
    made = Keeper(database=database, spec=SPEC)
    await made.create()
    return made


@pytest.fixture
async def watcher(database: Database) -> AsyncIterator[ProgressWatcher]:
    made = ProgressWatcher(database)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def waiting(
    kept: Keeper, watcher: ProgressWatcher, *, seconds: float = 60.0, limits: Limits | None = None
) -> asyncio.Task[ContextReading]:
    contexts = WorkingContexts(kept.database, watcher, b"k", limits or Limits())
    deadline = asyncio.get_running_loop().time() + seconds
    return asyncio.create_task(
        contexts.read(
            DEFAULT_TENANT,
            "s",
            "state",
            consistency=Consistency(fully_applied=True),
            deadline=deadline,
        )
    )


async def set_memory(kept: Keeper, changes: str) -> None:
    async with kept.database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(f"UPDATE memory SET {changes} WHERE memory_id = %s", (kept.key[1],))


async def stall(kept: Keeper) -> None:
    await set_memory(kept, "status = 'stalled'")
    async with kept.database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            "INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id,"
            " from_position, to_position, attempts, cause)"
            " VALUES (%s, %s, gen_random_uuid(), %s, 0, 3, 5, 'no model')",
            (*kept.key, DEFAULT_TENANT),
        )


async def test_where_nothing_is_due_no_read_waits(kept: Keeper, watcher: ProgressWatcher) -> None:
    await kept.append(2)
    await stall(kept)
    reading = await waiting(kept, watcher, seconds=0.0)
    assert (reading.due, reading.context.head) == (False, 2)


async def test_every_compression_that_is_due_is_waited_for(
    kept: Keeper, watcher: ProgressWatcher
) -> None:
    await kept.append(7)
    task = waiting(kept, watcher)
    for change in (kept.step(3), kept.step(3)):
        await asyncio.sleep(0.2)
        assert not task.done()
        await change
    await asyncio.sleep(0.2)
    assert not task.done(), "the two vectors are to be an episode"
    await kept.episode()
    reading = await task
    assert reading.context.state == kept.newest
    assert [step.position for step in reading.context.recent] == [7]
    assert not reading.due


async def test_at_the_deadline_it_is_said_how_far_the_memory_is(
    kept: Keeper, watcher: ProgressWatcher
) -> None:
    await kept.append(4)
    with pytest.raises(DeadlineExceeded, match="up to position 0 at revision 0, and") as late:
        await waiting(kept, watcher, seconds=0.2)
    assert late.value.reason is Reason.NOT_APPLIED_IN_TIME
    assert late.value.metadata == {"position": "4", "applied_position": "0", "revision": "0"}


async def test_what_has_stopped_is_refused_at_once(kept: Keeper, watcher: ProgressWatcher) -> None:
    await kept.append(3)
    await set_memory(
        kept, "held_reason = 'the budget is used up', ready_at = now() + interval '1 day'"
    )
    with pytest.raises(Exhausted, match="the budget is used up") as held:
        await waiting(kept, watcher)
    assert held.value.reason is Reason.BUDGET_EXHAUSTED
    await set_memory(kept, "held_reason = NULL, ready_at = now()")
    await stall(kept)
    with pytest.raises(FailedPrecondition, match="stalled at position 1: no model") as stalled:
        await waiting(kept, watcher)
    assert stalled.value.reason is Reason.MEMORY_STALLED


async def test_a_memory_whose_model_is_away_is_waited_for(
    kept: Keeper, watcher: ProgressWatcher
) -> None:
    await kept.append(3)
    away = "waiting_cause = 'no reply', ready_at = now() + interval '1 hour'"
    await set_memory(kept, away)
    with pytest.raises(DeadlineExceeded, match="it waits for its model: no reply") as late:
        await waiting(kept, watcher, seconds=0.2)
    assert late.value.metadata["cause"] == "no reply"
    task = waiting(kept, watcher)
    await asyncio.sleep(0.2)
    assert not task.done()
    await kept.step(3)
    assert (await task).context.head == 3


async def test_what_stops_meanwhile_is_refused(kept: Keeper, watcher: ProgressWatcher) -> None:
    await kept.append(6)
    task = waiting(kept, watcher)
    await kept.step(3)
    await stall(kept)
    with pytest.raises(FailedPrecondition, match="no model"):
        await task


async def test_a_backlog_beyond_the_limits_is_waited_for(
    kept: Keeper, watcher: ProgressWatcher
) -> None:
    limits = Limits(max_context_chunks=4)
    await kept.append(7)
    task = waiting(kept, watcher, limits=limits)
    await kept.step(3)
    await kept.step(3)
    await asyncio.sleep(0.2)
    await kept.episode()
    assert (await task).context.head == 7


async def test_what_will_always_be_too_large_is_refused(
    database: Database, watcher: ProgressWatcher
) -> None:
    kept = Keeper(database=database, spec=StateSpec(period=100))
    await kept.create()
    await kept.append(5)
    with pytest.raises(Exhausted) as large:
        await waiting(kept, watcher, limits=Limits(max_context_chunks=4))
    assert large.value.reason is Reason.CONTEXT_TOO_LARGE


async def test_a_flush_of_more_than_the_limits_is_waited_for(
    database: Database, watcher: ProgressWatcher
) -> None:
    kept = Keeper(database=database, spec=StateSpec(period=100))
    await kept.create()
    await kept.append(6)
    await set_memory(kept, "flush_position = 5")
    task = waiting(kept, watcher, limits=Limits(max_context_chunks=4))
    await asyncio.sleep(0.2)
    assert not task.done()
    await kept.step(5)
    reading = await task
    assert [step.position for step in reading.context.recent] == [6]


async def test_what_only_the_worker_knows_to_be_due_is_waited_for(
    database: Database, watcher: ProgressWatcher
) -> None:
    kept = Keeper(database=database, spec=StateSpec(period=100, period_tokens=1))
    await kept.create()
    await kept.append(6)
    limits = Limits(max_context_chunks=4)
    task = waiting(kept, watcher, limits=limits)
    await asyncio.sleep(0.2)
    assert not task.done()
    await kept.step(6)
    assert (await task).context.head == 6


async def test_a_step_that_was_on_its_way_ends_a_pause(
    database: Database, watcher: ProgressWatcher, servers: Servers, url: str
) -> None:
    kept = Keeper(database=database, spec=StateSpec(period=100, idle_ms=60_000))
    await kept.create()
    await kept.append(1)
    first_came(servers, url, "61 seconds")
    task = waiting(kept, watcher)
    await asyncio.sleep(0.2)
    assert not task.done()
    # The clock said so already when this one was on its way, less than a minute behind.
    await kept.append(1)
    first_came(servers, url, "59 seconds")
    await set_memory(kept, "resting = true, ready_at = now() + interval '1 minute'")
    reading = await task
    assert (reading.due, reading.context.head, reading.context.state.revision) == (False, 2, 0)


def first_came(servers: Servers, url: str, ago: LiteralString) -> None:
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute(
            f"UPDATE chunk SET created_at = now() - interval '{ago}' WHERE position = 1"
        )
