"""Tasks that lose a cancellation still end."""

import asyncio

import pytest

from storage.engine import tasks


async def test_a_task_that_loses_a_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_SECONDS", 0.01)
    lost = 0

    async def loses_two() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    async def fails() -> None:
        raise ValueError("as it ends")

    going_on = [asyncio.create_task(loses_two()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await tasks.cancel(going_on)
    assert lost == 3
    assert [task.cancelled() for task in going_on] == [True, False]


async def test_no_tasks_end_at_once() -> None:
    await tasks.cancel([])
