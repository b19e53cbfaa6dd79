"""Hints that come twice, and workers that die amid a commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from service.dispatch.port import Handler
from service.dispatch.procrastinate import ProcrastinateDispatcher
from service.domain import fail_points
from service.domain.fail_points import FailPoint
from service.domain.work import WorkItem
from service.fail_points import FailedOnPurpose
from storage import vectors
from storage.database import Transaction
from tests.chaos.mutants.changes import Patch, Sql
from tests.chaos.mutants.mutant import Chain, Layer, changes_of
from tests.chaos.mutants.servers import server
from tests.chaos.mutants.steps import COMPARED, REVISION_KEYS, key
from tests.chaos.mutants.world import PATIENCE_SECONDS, PRISM, STATE, Gate, Worker, World


@asynccontextmanager
async def _dispatching(world: World, handler: Handler) -> AsyncIterator[ProcrastinateDispatcher]:
    """A worker process that takes one hint at a time."""
    stop = asyncio.Event()
    made = ProcrastinateDispatcher(world.url, heartbeat_seconds=5.0, dead_after_seconds=60.0)
    async with made:
        running = asyncio.create_task(
            made.run(handler, concurrency=1, stop=stop, stop_seconds=PATIENCE_SECONDS)
        )
        try:
            yield made
        finally:
            stop.set()
            await running


async def hinted_twice(world: World) -> None:
    """A hint for a memory comes while a worker has it in hand, and another worker is free."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1, 3)
    item = world.item("m")
    # Hinted last: whoever gets it was offered whatever came before.
    last = replace(item, item_id=uuid4())
    hold, done = Gate(), asyncio.Event()
    slow, quick = Worker(world, "slow", hold=hold), Worker(world, "quick")

    async def handle_slowly(_: WorkItem) -> None:
        await world.drain(slow, "m")

    async def handle(taken: WorkItem) -> None:
        if taken == last:
            done.set()
        else:
            await world.drain(quick, "m")

    async with _dispatching(world, handle_slowly) as first:
        await first.hint([item])
        await hold.wait()
        async with _dispatching(world, handle) as other:
            await other.hint([item])
            await other.hint([last])
            async with asyncio.timeout(PATIENCE_SECONDS):
                await done.wait()
            world.counted["stayed in the queue"] += (await other.statistics()).queued
            hold.open()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await other.statistics()).queued:
                    await asyncio.sleep(0.02)


async def died_amid_a_commit(world: World) -> None:
    """A worker dies when it has written a revision of a state memory, and not what it brings."""
    await world.begin(m=STATE)
    async with server(world, "a") as api:
        await api.append("p", 1, 3)

    def die(point: FailPoint) -> None:
        if point is FailPoint.LEVELS_WRITTEN:
            fail_points.act(None)
            raise FailedOnPurpose(point.value)

    fail_points.act(die)
    try:
        await world.drain(Worker(world, "dying"), "m")
    finally:
        fail_points.act(None)


def _commits_early(advance: Any) -> Any:
    async def wrong(tx: Transaction, *arguments: Any, **named: Any) -> Any:
        moved = await advance(tx, *arguments, **named)
        for statement in ("COMMIT", "BEGIN", f"SET LOCAL app.tenant = '{tx.tenant_id}'"):
            await tx.connection.exec_driver_sql(statement)
        return moved

    return wrong


_KEYS = (*REVISION_KEYS, key("amendment", "amendment_pkey", "an amendment may be there twice"))

HINTS = (
    Chain(
        name="two hints",
        scenario=hinted_twice,
        layers=(
            Layer(
                name="lock",
                what="any number of workers may be woken for a memory at once",
                change=(
                    Sql(
                        of=r"INSERT INTO procrastinate_jobs",
                        cut=r"t\.lock, t\.lock, t\.args",
                        put="NULL, t.lock, t.args",
                    ),
                ),
                counter="stayed in the queue",
            ),
            Layer(
                name="fence",
                what="a step commits whatever has become of the memory",
                change=changes_of(COMPARED),
                counter="fenced",
            ),
            Layer(
                name="keys",
                what="revisions and amendments may be there twice",
                change=changes_of(_KEYS),
                counter="key:revision_pkey",
            ),
        ),
    ),
    Chain(
        name="half a commit",
        scenario=died_amid_a_commit,
        layers=(
            Layer(
                name="transaction",
                what="a revision is committed before what it brings",
                change=(Patch(where=vectors, name="advance", to=_commits_early),),
                counter="failed",
            ),
        ),
    ),
)
