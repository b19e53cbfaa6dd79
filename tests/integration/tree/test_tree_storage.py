"""Trees as they grow, in the database: their nodes, what building reads, the wish to be sealed."""

from dataclasses import replace

import pytest

from service.domain.prism.spec import PrismSpec
from service.domain.tree.nodes import Node, SummarySource, TextOffset
from service.domain.tree.spec import TreeSpec
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Database
from storage.engine.errors import Violated
from storage.memories import revisions
from storage.memories.revisions import NewRevision
from storage.tree import trees
from tests.integration.support.scripted import KEY, MEMORY, make, read

TREE = TreeSpec()


def leaf(number: int) -> Node:
    """Returns a leaf over the chunk at position `number`."""
    return Node(
        level=0,
        number=number,
        start=TextOffset(number),
        end=TextOffset(number + 1),
        summary=f"summary {number}",
        made=SummarySource.MODEL,
        text_tokens=10,
        summary_tokens=2,
    )


def parent(level: int, number: int, first: int, children: int, start: int, end: int) -> Node:
    """Returns a parent over the chunks from `start` to before `end`."""
    return replace(
        leaf(1),
        level=level,
        number=number,
        first_child=first,
        children=children,
        start=TextOffset(start),
        end=TextOffset(end),
        made=SummarySource.JOINED,
    )


async def claimed(database: Database) -> Claim:
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, TreeSpec.kind)
    assert held is not None
    return held


async def commit(
    database: Database, held: Claim, nodes: list[Node], to_position: int, kind: str = "step"
) -> Claim:
    texts = {node.number: f"text {node.number}" for node in nodes if node.level == 0}
    new = NewRevision(kind=kind, to_position=to_position, digest=trees.digest(b"", nodes))
    async with database.transaction(DEFAULT_TENANT) as tx:
        await trees.commit(tx, held, new, nodes, texts, has_work=True)
    return replace(held, revision=held.revision + 1, applied_position=to_position)


async def growth(database: Database, held: Claim) -> trees.Growth:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return await trees.read_growth(tx, held)


async def test_a_tree_without_nodes_begins_at_the_beginning(database: Database) -> None:
    await make(database, ["a"], TREE)
    held = await claimed(database)
    assert await growth(database, held) == trees.Growth(
        nodes=(), grouped=(), tops=(), end=TextOffset(1), digest=b""
    )


async def test_what_building_has_to_know_of_a_tree(database: Database) -> None:
    await make(database, ["a"] * 7, TREE)
    held = await claimed(database)
    leaves = [leaf(number) for number in range(1, 8)]
    low = [parent(1, 1, 1, 3, 1, 4), parent(1, 2, 4, 2, 4, 6)]
    held = await commit(database, held, [*leaves[:5], *low], 5)
    held = await commit(database, held, leaves[5:], 7)
    top = parent(2, 1, 1, 2, 1, 6)
    held = await commit(database, held, [top], 7, "build")
    found = await growth(database, held)
    assert (found.nodes, found.grouped, found.end) == ((7, 2, 1), (5, 2, 0), TextOffset(8))
    assert found.tops == (*leaves[5:], top)
    assert found.digest == trees.digest(b"", [top])


@pytest.mark.parametrize(
    "wrong",
    [
        replace(leaf(2), number=3),
        replace(leaf(2), start=TextOffset(1, 1)),
        replace(leaf(2), end=TextOffset(2)),
        leaf(1),
        parent(2, 1, 1, 0, 1, 2),
    ],
)
async def test_the_keys_refuse_what_is_no_next_node(database: Database, wrong: Node) -> None:
    await make(database, ["a"] * 3, TREE)
    held = await commit(database, await claimed(database), [leaf(1)], 1)
    with pytest.raises(Violated):
        await commit(database, held, [wrong], 3)
    assert (await growth(database, held)).nodes == (1,)
    assert (await read(database)).applied_position == 1


async def test_a_worker_commits_nothing_once_a_seal_is_wanted(database: Database) -> None:
    await make(database, ["a"] * 3, TREE)
    held = await claimed(database)
    assert await want_seal(database, 2)
    assert not await want_seal(database, 2)
    with pytest.raises(Fenced):
        await commit(database, held, [leaf(1)], 1)
    held = await claimed(database)
    assert held.seal_position == 2
    assert await want_seal(database, 3), "it is closed elsewhere"
    with pytest.raises(Fenced):
        await commit(database, held, [leaf(1)], 1)
    await commit(database, await claimed(database), [leaf(1)], 1)


async def test_no_worker_gets_a_sealed_tree(database: Database) -> None:
    await make(database, [], TREE)
    await want_seal(database, 0)
    held = await claimed(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await trees.seal(tx, held, NewRevision(kind="seal", to_position=0, digest=b"x"))
    assert (await read(database)).status == "sealed"
    assert not await want_seal(database, 1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await revisions.claim(tx, KEY, MEMORY, TreeSpec.kind) is None


async def test_a_memory_is_claimed_by_those_of_its_kind(database: Database) -> None:
    await make(database, ["a"], TREE)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind) is None
    assert await claimed(database)


async def test_the_words_of_leaves_are_indexed(database: Database) -> None:
    await make(database, ["a"], TREE)
    held = await claimed(database)
    endless = "x" * 3000 + " " + " ".join(f"w{n}-v{n}" for n in range(200_000))
    new = NewRevision(kind="step", to_position=1, digest=b"")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await trees.commit(tx, held, new, [leaf(1)], {1: f"Word {endless}"}, has_work=True)
        found = await tx.fetch("SELECT words @@ to_tsquery('simple', 'word & w9') FROM tree_node")
        assert found[0][0]


async def want_seal(database: Database, position: int) -> bool:
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        return await trees.want_seal(tx, held, position)
