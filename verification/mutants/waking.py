"""Work that needs a wake-up, and requests that arrive at the last moment."""

import asyncio
from typing import Any
from unittest import mock

from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Target
from storage.log import chunks, sessions
from storage.memories import queue, revisions
from storage.memories.queue import NOBODY, QueueBatch
from storage.tree import trees
from verification.mutants.changes import Body, Patch, Sql
from verification.mutants.mutant import Chain, Layer
from verification.mutants.servers import server
from verification.mutants.world import PRISM, TREE, Gate, Worker, World


def _holding(original: Any, hold: Gate) -> Any:
    """Returns the same, but that the first one waits."""

    async def wait_first(*arguments: Any, **named: Any) -> Any:
        if not hold.reached.is_set():
            await hold.pass_()
        return await original(*arguments, **named)

    return wait_first


async def appended_while_leaving(world: World) -> None:
    """A chunk is written, and not yet committed, when a worker leaves the memory."""
    await world.begin(m=PRISM)
    leaves, comes = Gate(), Gate()
    original = chunks.write

    async def write_and_wait(*arguments: Any) -> Any:
        written = await original(*arguments)
        await comes.pass_()
        return written

    async with server(world, "a") as api:
        await api.append("p", 1)
        holding = _holding(revisions.commit_revision, leaves)
        with (
            mock.patch.object(revisions, "commit_revision", holding),
            mock.patch.object(chunks, "write", write_and_wait),
        ):
            leaving = asyncio.create_task(world.drain(Worker(world, "leaving"), "m"))
            await leaves.wait()
            # The server does not know this producer: it locks the session first.
            coming = asyncio.create_task(api.append("q", 1))
            await comes.wait()
            leaves.open()
            await world.until_blocked(leaving, counted="waited: session")
            comes.open()
            await asyncio.gather(leaving, coming)


async def appended_to_the_idle(world: World) -> None:
    """A chunk is appended for a memory that is at the head, on a guess and under the lock."""
    await world.begin(m=PRISM)
    worker = Worker(world, "woken")
    async with server(world, "a") as api:
        for producer, sequence in (("p", 1), ("q", 1), ("p", 2), ("p", 3)):
            api.woken.clear()
            await api.append(producer, sequence)
            # The wake-ups' own loop passes them on.
            await asyncio.sleep(0.01)
            for item in api.woken:
                world.counted["woken"] += 1
                await worker.handle(item)


async def sealed_while_leaving(world: World) -> None:
    """A client seals a tree when its worker is about to leave it at the head."""
    await world.begin(m=TREE)
    hold = Gate()
    world.expect(
        "a tree that a client sealed is left open",
        "SELECT status FROM memory WHERE session_key = %s",
        ("sealed",),
    )
    async with server(world, "a") as api:
        await api.append("p", 1)
    with mock.patch.object(trees, "commit", _holding(trees.commit, hold)):
        leaving = asyncio.create_task(world.drain(Worker(world, "leaving"), "m"))
        await hold.wait()
        async with world.database("sealing").transaction(DEFAULT_TENANT) as tx:
            await sessions.lock_head(tx, world.key)
            held = await revisions.lock(tx, world.key, world.item("m").item_id)
            assert held is not None, "it was made"
            await trees.want_seal(tx, held, 1)
        hold.open()
        await leaving


async def consolidation_wanted_while_leaving(world: World) -> None:
    """A client requests a consolidation when the memory's worker is about to leave it."""
    await world.begin(m=PRISM)
    hold = Gate()
    world.expect(
        "a requested consolidation is not made",
        "SELECT count(*) FROM revision WHERE session_key = %s AND kind = 'consolidation'",
        (1,),
    )
    async with server(world, "a") as api:
        await api.append("p", 1)
        with mock.patch.object(
            revisions, "commit_revision", _holding(revisions.commit_revision, hold)
        ):
            leaving = asyncio.create_task(world.drain(Worker(world, "leaving"), "m"))
            await hold.wait()
            await api.editor.consolidate(DEFAULT_TENANT, Target(session=world.session, memory="m"))
            hold.open()
            await leaving


async def failed_late(world: World) -> None:
    """A worker's step fails for good when another one has the memory."""
    await world.begin(m=PRISM)
    failing, going = Gate(), Gate()

    async def fail_first(_: object) -> None:
        if not failing.reached.is_set():
            await failing.pass_()
            raise ModelFailure("the model is away", retryable=False)

    async with server(world, "a") as api:
        await api.append("p", 1)
    world.model.meanwhile = fail_first
    slow = asyncio.create_task(world.drain(Worker(world, "slow"), "m"))
    await failing.wait()
    # It was suspended for longer than its lease.
    await world.run_sql("DELETE FROM intent WHERE session_key = %s", world.key)
    quick = asyncio.create_task(world.drain(Worker(world, "quick", hold=going), "m"))
    await going.wait()
    failing.open()
    await slow
    going.open()
    await quick
    world.expect(
        "a memory is stalled by a worker that had lost it",
        "SELECT status FROM memory WHERE session_key = %s",
        ("active",),
    )


async def edited_under_a_failure(world: World) -> None:
    """A step fails for good, and what it was made for has been edited meanwhile."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)

        async def edit_and_fail(_: object) -> None:
            world.model.meanwhile = None
            await api.edit("m", "e1")
            raise ModelFailure("there is no room for it", retryable=False)

        world.model.meanwhile = edit_and_fail
        await world.drain(Worker(world, "failing"), "m")


async def claimed_when_stalled(world: World) -> None:
    """A wake-up comes for a memory that has stalled."""
    await world.begin(m=PRISM)

    async def fail(_: object) -> None:
        raise ModelFailure("the model is away", retryable=False)

    async with server(world, "a") as api:
        await api.append("p", 1)
    world.model.meanwhile = fail
    await world.drain(Worker(world, "failing"), "m")
    world.model.meanwhile = None
    world.is_drained = False
    world.counted.clear()
    await world.drain(Worker(world, "woken"), "m")
    world.counted["stayed stalled"] += 1
    world.expect(
        "a stalled memory goes on without a retry",
        "SELECT revision FROM memory WHERE session_key = %s",
        (0,),
    )


def _loses(_: Any) -> Any:
    def lose(*_: object) -> None:
        return None

    return lose


def _finds_nothing(_: Any) -> Any:
    async def nothing(*_: object, **named: object) -> QueueBatch:
        return QueueBatch(items=(), ended=NOBODY, more=False)

    return nothing


_ADVANCE = r"^(WITH moved AS \()?UPDATE memory SET (?=.*applied_position=).*WHERE"
LOOK = Layer(
    name="look",
    what="workers do not look for work for which they got no wake-up",
    change=(Patch(where=queue, name="take", to=_finds_nothing),),
    counter="found",
)

WAKING = (
    Chain(
        name="append while leaving",
        scenario=appended_while_leaving,
        layers=(
            Layer(
                name="lock",
                what="a worker reads the head without locking it",
                change=(Sql(of=r"FROM session\s.*FOR SHARE", cut=r"FOR SHARE"),),
                counter="waited: session",
            ),
        ),
    ),
    Chain(
        name="wake-up",
        scenario=appended_to_the_idle,
        layers=(
            Layer(
                name="wake-up",
                what="wake-ups are lost",
                change=(Patch(where=WakeUps, name="add", to=_loses),),
                counter="woken",
            ),
            LOOK,
        ),
    ),
    Chain(
        name="wake",
        scenario=appended_to_the_idle,
        layers=(
            Layer(
                name="has_work",
                what="an append does not mark its memories as having work",
                change=(
                    Sql(
                        of=r"WITH producers AS",
                        cut=r"SET has_work = true, resting",
                        put="SET resting",
                    ),
                    Body(
                        function="write_if_unchanged",
                        cut=r"SET has_work = true, resting",
                        put="SET resting",
                    ),
                ),
                counter="woken",
            ),
        ),
    ),
    Chain(
        name="seal while leaving",
        scenario=sealed_while_leaving,
        layers=(
            Layer(
                name="seal",
                what="a step leaves a tree that a client has sealed meanwhile",
                change=(
                    Sql(
                        of=_ADVANCE,
                        cut=r" AND memory\.seal_position IS NOT DISTINCT FROM"
                        r" (%\(\w+\)s(::\w+)?|NULL)",
                    ),
                ),
                counter="fenced",
            ),
        ),
    ),
    Chain(
        name="consolidation while leaving",
        scenario=consolidation_wanted_while_leaving,
        layers=(
            Layer(
                name="wish",
                what="a step leaves a memory that a client wants consolidated",
                change=(
                    Sql(
                        of=_ADVANCE,
                        cut=r" OR memory\.consolidate_position IS NOT NULL",
                    ),
                ),
                counter="found",
            ),
        ),
    ),
    Chain(
        name="late stall",
        scenario=failed_late,
        layers=(
            Layer(
                name="epoch",
                what="a worker that lost a memory stalls it",
                change=(
                    Sql(
                        of=r"^UPDATE memory SET status=",
                        cut=r" AND memory\.epoch = %\(\w+\)s(::\w+)?",
                    ),
                ),
                counter="fenced",
            ),
        ),
    ),
    Chain(
        name="stall under an edit",
        scenario=edited_under_a_failure,
        layers=(
            Layer(
                name="revision",
                what="a memory is stalled by a failure from before an edit",
                change=(
                    Sql(
                        of=r"^UPDATE memory SET status=",
                        cut=r" AND memory\.revision = %\(\w+\)s(::\w+)?",
                    ),
                ),
                counter="fenced",
            ),
        ),
    ),
    Chain(
        name="stalled",
        scenario=claimed_when_stalled,
        layers=(
            Layer(
                name="claim",
                what="a worker claims a stalled memory",
                change=(
                    Sql(
                        of=r"^UPDATE memory SET epoch=\(",
                        cut=r" AND memory\.status = %\(\w+\)s(::\w+)?",
                    ),
                ),
                counter="stayed stalled",
            ),
            Layer(
                name="advance",
                what="a step commits to a stalled memory",
                change=(Sql(of=_ADVANCE, cut=r" AND memory\.status = %\(\w+\)s(::\w+)?"),),
                counter="fenced",
            ),
        ),
    ),
)
