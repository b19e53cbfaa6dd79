"""Hints are passed on in batches, whatever becomes of one of them."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from service.domain.tenancy import DEFAULT_TENANT
from service.domain.work import WorkItem, WorkKind
from service.usecases.hints import Hints


def item(number: int) -> WorkItem:
    return WorkItem(
        kind=WorkKind.MEMORY,
        tenant_id=DEFAULT_TENANT,
        session_key=UUID(int=0),
        item_id=UUID(int=number),
    )


async def test_a_batch_that_breaks_does_not_end_the_passing_on() -> None:
    passed: list[WorkItem] = []
    done = asyncio.Event()

    async def pass_on(items: Sequence[WorkItem]) -> None:
        if item(1) in items:
            raise LookupError("a defect")
        passed.extend(items)
        done.set()

    hints = Hints(pass_on)
    running = asyncio.create_task(hints.run())
    hints.add([item(1)])
    # So that the first batch is taken alone.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    hints.add([item(2)])
    async with asyncio.timeout(30):
        await done.wait()
    assert passed == [item(2)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
