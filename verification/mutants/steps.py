"""Steps of memories that two workers make, or that an edit interrupts."""

import asyncio
from dataclasses import replace
from typing import Any

from service.domain.values.memory_specs import MemorySpec
from service.usecases.memories.memory_method import MemoryChange
from service.usecases.memories.step_engine import StepEngine
from storage.engine.claims import Claim
from storage.memories import revisions
from verification.mutants.changes import Drop, Patch, Sql
from verification.mutants.mutant import Chain, Layer, Scenario, changes_of
from verification.mutants.servers import server
from verification.mutants.world import PRISM, STATE, TREE, Gate, Worker, World

#: The statement that moves a memory's cursor.
_ADVANCE = r"^(WITH moved AS \()?UPDATE memory SET (?=.*applied_position=).*WHERE"
_VALUE = r"%\(\w+\)s(::\w+)?"


def _without(column: str, of: str = _ADVANCE) -> Sql:
    return Sql(of=of, cut=rf" AND memory\.{column} = {_VALUE}")


EPOCH = Layer(
    name="epoch",
    what="a step commits after another worker has taken the memory over",
    change=(_without("epoch"),),
    counter="fenced",
)
REVISION = Layer(
    name="revision",
    what="a step commits on any revision",
    change=(_without("revision"),),
    counter="fenced",
)
CURSOR = Layer(
    name="cursor",
    what="a step commits at any cursor",
    change=(_without("applied_position"),),
    counter="fenced",
)
COMPARED = (EPOCH, REVISION, CURSOR)


def key(table: str, name: str, what: str) -> Layer:
    """Returns a key of the schema."""
    return Layer(
        name=name, what=what, change=(Drop(table=table, name=name),), counter=f"key:{name}"
    )


REVISION_KEYS = (
    key("revision", "revision_pkey", "a revision may be stored twice"),
    key("revision", "revision_end", "a revision may be stored twice with the same end"),
    key("revision", "revision_once", "two steps may begin at the same position"),
)


def taken_over(spec: MemorySpec, chunks: int = 3) -> Scenario:
    """Returns a scenario: a suspended worker loses its memory, which reaches the head."""

    async def scenario(world: World) -> None:
        await world.begin(m=spec)
        async with server(world, "a") as api:
            await api.append("p", 1, chunks)
        hold = Gate()
        slow = asyncio.create_task(world.drain(Worker(world, "slow", hold=hold), "m"))
        await hold.wait()
        await world.drain(Worker(world, "quick"), "m")
        hold.open()
        await slow

    return scenario


async def edited_meanwhile(world: World) -> None:
    """A client edits a memory while a worker makes its next step."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1, 2)
        hold = Gate()
        slow = asyncio.create_task(world.drain(Worker(world, "slow", hold=hold), "m"))
        await hold.wait()
        await api.edit("m", "e1")
        hold.open()
        await slow


async def edited_at_once(world: World) -> None:
    """Two edits for the same revision, the second when the first has read the memory."""
    await world.begin(m=PRISM)
    async with server(world, "a") as one, server(world, "b") as other:
        await one.edit("m", "e0")
        hold = Gate()
        commit = one.editor._commit

        async def wait_and_commit(*arguments: Any) -> Any:
            await hold.pass_()
            return await commit(*arguments)

        one.editor._commit = wait_and_commit  # type: ignore[method-assign, assignment]
        first = asyncio.create_task(one.edit("m", "e1", 1))
        await hold.wait()
        second = asyncio.create_task(other.edit("m", "e2", 1))
        await world.until_blocked(second, counted="waited: memory")
        hold.open()
        await asyncio.gather(first, second)


async def edited_late(world: World) -> None:
    """An edit for a revision that is not the newest any more."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.edit("m", "e0")
        await api.edit("m", "e1")
        if await api.edit("m", "e2", 1) not in (0, 2):
            world.wrong.append("an edit for revision 1 was made on another one")


async def skipped_ahead(world: World) -> None:
    """A worker takes a memory whose cursor it believes to be further than it is."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1, 3)
    await world.drain(Worker(world, "wrong"), "m")


def _believes_more(claim: Any) -> Any:
    """Once: a claim whose cursor is one position further than it is."""
    done: list[object] = []

    async def wrong(*arguments: Any) -> Claim | None:
        held: Claim | None = await claim(*arguments)
        if held is not None and not done:
            done.append(held)
            return replace(held, applied_position=held.applied_position + 1)
        return held

    return wrong


async def reached_beyond(world: World) -> None:
    """A worker says that it has read a position that the log does not have."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1, 1)
    await world.drain(Worker(world, "wrong"), "m")


def _reads_more(commit: Any) -> Any:
    """Once: a step that ends one position after what it has read."""
    done: list[object] = []

    async def wrong(self: Any, held: Claim, change: MemoryChange[Any]) -> Any:
        if not done:
            done.append(change)
            further = replace(change.new, to_position=change.new.to_position + 1)
            change = replace(change, new=further)
        return await commit(self, held, change)

    return wrong


STEPS = (
    Chain(
        name="prism",
        scenario=taken_over(PRISM),
        layers=(
            *COMPARED,
            *REVISION_KEYS,
            key("amendment", "amendment_pkey", "an amendment may be stored twice"),
        ),
    ),
    Chain(
        name="tree",
        scenario=taken_over(TREE, 12),
        layers=(
            *COMPARED,
            # How many nodes a revision adds depends on timing, and so does which of these keys
            # refuses it.
            Layer(
                name="keys",
                what="a revision may be stored twice, with different ends too",
                change=changes_of(REVISION_KEYS),
                counter="key:revision_pkey",
            ),
            key("tree_node", "tree_node_pkey", "a node may be stored twice"),
            key("tree_node", "tree_node_end", "a node may be stored twice with the same end"),
        ),
    ),
    Chain(
        name="state",
        scenario=taken_over(STATE),
        layers=(
            *COMPARED,
            *REVISION_KEYS,
            key("state_levels", "state_levels_pkey", "a revision may have two sets of levels"),
            key("state_vector", "state_vector_pkey", "a vector may be stored twice"),
        ),
    ),
    Chain(
        name="edit under a step",
        scenario=edited_meanwhile,
        layers=(
            REVISION,
            REVISION_KEYS[0],
            key("amendment", "amendment_pkey", "an amendment may be stored twice"),
        ),
    ),
    Chain(
        name="two edits",
        scenario=edited_at_once,
        layers=(
            Layer(
                name="lock",
                what="an edit reads the memory without locking it",
                change=(Sql(of=r"FROM memory\s.*FOR NO KEY UPDATE", cut=r"FOR NO KEY UPDATE"),),
                counter="waited: memory",
            ),
            Layer(
                name="revision",
                what="an edit commits on any revision",
                change=(_without("revision"),),
                counter="refused:Fenced",
            ),
            REVISION_KEYS[0],
            REVISION_KEYS[1],
            key("amendment", "amendment_pkey", "an amendment may be stored twice"),
        ),
    ),
    Chain(
        name="wrong cursor",
        scenario=skipped_ahead,
        defect=(Patch(where=revisions, name="claim", to=_believes_more),),
        layers=(
            CURSOR,
            key("revision", "revision_chain_fkey", "a revision may begin anywhere"),
        ),
    ),
    Chain(
        name="beyond the log",
        scenario=reached_beyond,
        defect=(Patch(where=StepEngine, name="_commit", to=_reads_more),),
        layers=(key("revision", "revision_chunk_fkey", "a step may end beyond the log"),),
    ),
)
