"""Wake-ups that cannot be passed on: they are bounded, and the next ones are passed on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.log import wake_ups as module
from service.usecases.log.wake_ups import BATCH_ITEMS, MAX_WAITING, WakeUps


def items(first: int, count: int) -> list[WorkItem]:
    return [
        WorkItem(
            kind=WorkKind.MEMORY,
            tenant_id=DEFAULT_TENANT,
            session_key=UUID(int=0),
            item_id=UUID(int=number),
        )
        for number in range(first, first + count)
    ]


class Dispatch:
    """Where wake-ups go; it is blocked while `goes` is not set."""

    def __init__(self) -> None:
        self.batches: list[Sequence[WorkItem]] = []
        self.goes = asyncio.Event()
        self.breaks = False

    @property
    def passed(self) -> list[WorkItem]:
        return [item for batch in self.batches for item in batch]

    async def wake_up(self, batch: Sequence[WorkItem]) -> None:
        await self.goes.wait()
        if self.breaks:
            self.breaks = False
            raise RuntimeError("nobody foresaw this")
        self.batches.append(batch)

    async def until(self, last: WorkItem) -> None:
        async with asyncio.timeout(30):
            while last not in self.passed[-BATCH_ITEMS:]:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(wake_ups: WakeUps) -> AsyncIterator[None]:
    task = asyncio.create_task(wake_ups.run())
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_waits_is_bounded_while_dispatch_stands_still() -> None:
    dispatch = Dispatch()
    wake_ups = WakeUps(dispatch.wake_up)
    async with running(wake_ups):
        for item in items(0, 3 * MAX_WAITING):
            wake_ups.add([item])
        wake_ups.add(items(0, 10))
        assert len(wake_ups._waiting) == MAX_WAITING
        dispatch.goes.set()
        await dispatch.until(items(MAX_WAITING - 1, 1)[0])
        assert dispatch.passed == items(0, MAX_WAITING), "each once, in order"
        assert max(map(len, dispatch.batches)) == BATCH_ITEMS
        # There is room again.
        (late,) = items(5 * MAX_WAITING, 1)
        wake_ups.add([late])
        await dispatch.until(late)


async def test_a_dispatch_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAKE_UP_SECONDS", 0.1)
    dispatch = Dispatch()
    wake_ups = WakeUps(dispatch.wake_up)
    async with running(wake_ups):
        wake_ups.add(items(0, 1))
        async with asyncio.timeout(30):
            while wake_ups._waiting:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        dispatch.goes.set()
        (next_one,) = items(1, 1)
        wake_ups.add([next_one])
        await dispatch.until(next_one)
    assert dispatch.passed == [next_one], "the first is left to who looks"


async def test_a_defect_after_it_does_not_end_the_wake_ups() -> None:
    dispatch = Dispatch()
    dispatch.breaks = True
    dispatch.goes.set()
    wake_ups = WakeUps(dispatch.wake_up)
    async with running(wake_ups):
        wake_ups.add(items(0, 1))
        async with asyncio.timeout(30):
            while dispatch.breaks:
                await asyncio.sleep(0.01)
        (next_one,) = items(1, 1)
        wake_ups.add([next_one])
        await dispatch.until(next_one)
