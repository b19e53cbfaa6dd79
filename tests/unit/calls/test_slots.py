"""Slots: so many calls of an owner are with the model at once, in turn."""

import asyncio
import gc
from uuid import UUID

import pytest

from service.llm.gateway.call_executor import Slots

ONE, OTHER = UUID(int=1), UUID(int=2)


async def most_at_once(slots: Slots, calls: int, at_once: int, owner: UUID = ONE) -> int:
    going = most = 0

    async def call() -> None:
        nonlocal going, most
        async with slots.one(owner, at_once):
            going += 1
            most = max(most, going)
            await asyncio.sleep(0)
            going -= 1

    await asyncio.gather(*(call() for _ in range(calls)))
    return most


async def test_no_more_are_out_than_there_are() -> None:
    assert await most_at_once(Slots(), 10, 3) == 3


async def test_without_a_bound_all_are() -> None:
    assert await most_at_once(Slots(), 10, 0) == 10


async def test_owners_do_not_wait_for_each_other() -> None:
    slots = Slots()
    async with slots.one(ONE, 1):
        async with asyncio.timeout(10), slots.one(OTHER, 1):
            pass


async def test_a_failed_or_cancelled_call_gives_its_slot_back() -> None:
    slots = Slots()
    with pytest.raises(ValueError, match="broken"):
        async with slots.one(ONE, 1):
            raise ValueError("broken")
    async with slots.one(ONE, 1):
        waits = asyncio.create_task(most_at_once(slots, 1, 1))
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    async with asyncio.timeout(10):
        assert await most_at_once(slots, 3, 1) == 1
    # Errors may keep it for a while.
    gc.collect()
    assert not slots._free, "nothing is kept of an owner without calls"
