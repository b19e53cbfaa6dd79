"""State memories that a worker keeps, read by clients: waiting, rolling back, rebuilding."""

from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import State, StateSettings

TASK = "Find the key of the harbour museum."


async def record(state: State, count: int, *, first: int = 1) -> None:
    """Steps that say something new each."""
    async with state.session.producer(f"p-{uuid4().hex}") as producer:
        for number in range(first, first + count):
            await producer.append_step(
                observation=f"Room {number} has {number} doors.",
                thought=f"The key may be behind door {number}.",
                action=f"open door {number}",
            )
        await producer.flush()


async def made(client: palimpsest.Client, **settings: Any) -> State:
    session = await client.create_session(f"kept-{uuid4().hex}")
    return await session.create_state("state", task=TASK, **settings)


async def test_a_context_that_waits_is_that_of_algorithm_1(client: palimpsest.Client) -> None:
    state = await made(client, period=3)
    for steps in range(1, 9):
        await record(state, 1, first=steps)
        context = await state.context(fully_applied=True)
        compressed = steps // 3 * 3
        assert context.read_point.applied_position == compressed
        assert context.read_point.revision == steps // 3
        assert [one.position for one in context.recent] == list(range(compressed + 1, steps + 1))
        assert not context.compression_due


async def test_a_context_that_waits_has_the_episodes(client: palimpsest.Client) -> None:
    state = await made(client, period=2, episode_vectors=2)
    await record(state, 9)
    context = await state.context(fully_applied=True)
    half = ["step", "step", "episode"]
    kinds = ["create", *half, *half, "episode"]
    assert [one.kind async for one in state.revisions()] == kinds
    assert context.read_point.applied_position == 8
    assert [one.level for one in context.vectors] == [3, 1]
    assert context.vectors[1].origin == "task", "level 1 has begun anew"
    # What was full before its episode is full again, and a worker makes one of it.
    await state.rollback(2)
    again = await state.context(fully_applied=True)
    assert [one.kind async for one in state.revisions()] == [*kinds, "rollback", "episode"]
    assert (again.vectors[0].children, again.head) == ((1, 2), 9)


@pytest.mark.parametrize("period", [2, 5, 50])
async def test_a_rebuilt_memory_is_done_when_nothing_is_due(
    client: palimpsest.Client, period: int
) -> None:
    state = await made(client, period=3)
    await record(state, 11)
    before = await state.context(fully_applied=True)
    rebuild = await state.rebuild("new", settings=StateSettings(task=TASK, period=period))
    done = await rebuild.wait()
    new = state.session.state("new")
    context = await new.context()
    assert context.read_point.applied_position == 11 // period * period
    assert context.head == 11
    assert not context.compression_due
    borders = [one.positions.last if one.positions else 0 async for one in new.vectors()]
    assert borders == list(range(0, 12, period)), "those of the log, nothing was flushed"
    assert done.idle
    info = (await new.get()).info
    assert (info.rebuilt_from, info.state is not None and info.state.period) == ("state", period)
    assert await state.context() == before
    diff = await state.diff(other="new")
    assert [one.path for one in diff.differences] == ["$['levels']['1']"]
