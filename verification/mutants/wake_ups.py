"""Workers that find a memory in other hands, and workers that die amid a commit."""

import asyncio
from typing import Any
from uuid import uuid4

from service.domain.values import fault_hook
from storage.engine.database import Transaction
from storage.memories import queue
from storage.state import vectors
from verification.chaos.points import Point
from verification.chaos.switches import FailedOnPurpose
from verification.mutants.changes import Body, Drop, Patch
from verification.mutants.mutant import Chain, Layer, changes_of
from verification.mutants.servers import server
from verification.mutants.steps import COMPARED, REVISION_KEYS, key
from verification.mutants.world import PRISM, STATE, Gate, Worker, World


async def in_other_hands(world: World) -> None:
    """A worker has a memory in hand, and another one looks for work."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1, 3)
    hold = Gate()
    slow, quick = Worker(world, "slow", hold=hold), Worker(world, "quick")
    holder = uuid4()
    await queue.beat(slow.database, holder, ())
    taken = await queue.claim(slow.database, holder, [world.item("m")])
    assert taken, "nobody else is there"
    draining = asyncio.create_task(world.drain(slow, "m"))
    await hold.wait()
    found = await quick.take()
    world.counted["left to its holder"] += not found
    for item in found:
        await world.drain(quick, "m")
        assert item == world.item("m"), "there is no other work"
    hold.open()
    await draining
    await queue.leave(slow.database, holder)


async def died_amid_a_commit(world: World) -> None:
    """A worker dies when it has written a revision of a state memory, and not committed it."""
    await world.begin(m=STATE)
    async with server(world, "a") as api:
        await api.append("p", 1, 3)

    def die(point: Point) -> None:
        if point == "commit.state:commit":
            fault_hook.install(None)
            raise FailedOnPurpose(point)

    fault_hook.install(die)
    try:
        await world.drain(Worker(world, "dying"), "m")
    finally:
        fault_hook.install(None)


def _commits_early(advance: Any) -> Any:
    async def wrong(tx: Transaction, *arguments: Any, **named: Any) -> Any:
        moved = await advance(tx, *arguments, **named)
        for statement in ("COMMIT", "BEGIN", f"SET LOCAL app.tenant = '{tx.tenant_id}'"):
            await tx.execute(statement)
        return moved

    return wrong


_KEYS = (*REVISION_KEYS, key("amendment", "amendment_pkey", "an amendment may be stored twice"))

WAKE_UPS = (
    Chain(
        name="two workers",
        scenario=in_other_hands,
        layers=(
            Layer(
                name="claim",
                what="any number of workers may claim a memory at once",
                change=(
                    Drop(table="claim", name="claim_pkey"),
                    Body(
                        function="claim_work",
                        cut=r"AND NOT EXISTS \(SELECT FROM claim held\s+WHERE[^)]*"
                        r"r\.memory_id[^)]*\)(?=\s+ORDER BY r\.ready_at LIMIT)",
                    ),
                ),
                counter="left to its holder",
            ),
            Layer(
                name="fence",
                what="a step commits without comparing epoch, revision and cursor",
                change=changes_of(COMPARED),
                counter="fenced",
            ),
            Layer(
                name="keys",
                what="revisions and amendments may be stored twice",
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
                what="a revision is committed before its contents",
                change=(Patch(where=vectors, name="advance", to=_commits_early),),
                counter="failed",
            ),
        ),
    ),
)
