"""Keys that refuse what no step would write: a defect writes it here, and only the key holds."""

import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from service.domain.tree.nodes import Node
from service.llm.providers.failures import ModelFailure
from storage.engine.ready import Ready
from storage.memories import revision_statements, stalls
from storage.tree import trees
from verification.mutants.changes import Patch
from verification.mutants.mutant import Chain, Scenario
from verification.mutants.servers import server
from verification.mutants.steps import key
from verification.mutants.world import PRISM, TREE, Worker, World

#: A tree of our spec with so many has two parents above its leaves.
TREE_CHUNKS = 60


def _read(kind: Any, chunks: int) -> Scenario:
    async def scenario(world: World) -> None:
        """A worker reads a log."""
        await world.begin(m=kind)
        async with server(world, "a") as api:
            await api.append("p", 1, chunks)
        await world.drain(Worker(world, "wrong"), "m")

    return scenario


async def failed_for_good(world: World) -> None:
    """A step fails for good."""
    await world.begin(m=PRISM)

    async def fail(_: object) -> None:
        raise ModelFailure("the model is away", retryable=False)

    async with server(world, "a") as api:
        await api.append("p", 1)
    world.model.meanwhile = fail
    world.is_drained = False
    for _ in range(2):
        await world.drain(Worker(world, "failing"), "m")
    world.expect(
        "a memory has stalled once and has two dead letters",
        "SELECT count(*) FROM dead_letter WHERE session_key = %s AND resolution IS NULL",
        (1,),
    )


def _moves_alone(revising: Any) -> Any:
    """Once: the cursor goes one position further than the revision that moves it."""
    done: list[object] = []

    def wrong(*arguments: Any, **named: Any) -> Ready:
        made: Ready = copy(revising(*arguments, **named))
        if not done:
            done.append(made)
            further, times = re.subn(
                r"applied_position=(%\(new_applied_position\)s(?:::\w+)?)",
                r"applied_position=\1 + 1",
                made.text,
            )
            assert times == 1, "it moves the cursor"
            made.text = further
        return made

    return wrong


def _writes(change: Callable[[Node], Node]) -> Any:
    """Once: a node is another one."""

    def to(add: Any) -> Any:
        done: list[Node] = []

        def once(node: Node) -> Node:
            changed = node if done else change(node)
            if changed != node:
                done.append(node)
            return changed

        async def wrong(tx: Any, held: Any, nodes: Any, *arguments: Any) -> None:
            await add(tx, held, [once(node) for node in nodes], *arguments)

        return wrong

    return to


def _begins_late(node: Node) -> Node:
    if (node.level, node.number) != (0, 2):
        return node
    return replace(node, start=replace(node.start, offset=node.start.offset + 1))


def _takes_anothers_child(node: Node) -> Node:
    return replace(node, first_child=1) if (node.level, node.number) == (1, 2) else node


def _writes_two(add: Any) -> Any:
    """Once: a letter is written twice."""
    done: list[object] = []

    async def wrong(*arguments: Any, **named: Any) -> None:
        await add(*arguments, **named)
        if not done:
            done.append(arguments)
            await add(*arguments, **named)

    return wrong


KEYS = (
    Chain(
        name="cursor alone",
        scenario=_read(PRISM, 1),
        defect=(Patch(where=revision_statements, name="revising", to=_moves_alone),),
        layers=(
            key("memory", "memory_revision_fkey", "a memory's cursor may differ from its revision"),
        ),
    ),
    Chain(
        name="leaf with a hole before it",
        scenario=_read(TREE, TREE_CHUNKS),
        defect=(Patch(where=trees, name="add_nodes", to=_writes(_begins_late)),),
        layers=(key("tree_node", "tree_node_chain_fkey", "a node may begin anywhere"),),
    ),
    Chain(
        name="child of two",
        scenario=_read(TREE, TREE_CHUNKS),
        defect=(Patch(where=trees, name="add_nodes", to=_writes(_takes_anothers_child)),),
        layers=(key("tree_node", "tree_node_parent", "a child may have two parents"),),
    ),
    Chain(
        name="two letters",
        scenario=failed_for_good,
        defect=(Patch(where=stalls, name="add_dead_letter", to=_writes_two),),
        layers=(key("dead_letter", "dead_letter_open", "a memory may have two open dead letters"),),
    ),
)
