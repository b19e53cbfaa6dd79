"""Looking at trees that grow in a database of the test's own."""

from itertools import pairwise
from uuid import UUID

from service.domain.tree.nodes import Node, TextOffset
from service.domain.tree.segmenting import Segmenter, piece_of
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.splitter import first_piece
from storage.engine.database import Database
from storage.log import chunks as log
from storage.memories import revisions
from storage.tree import trees, views
from tests.integration.support.scripted import KEY, MEMORY

#: More levels and nodes than any tree of these tests has.
MANY = 10_000

Tree = dict[str, Node]


async def nodes_of(database: Database, key: UUID = KEY, memory: UUID = MEMORY) -> Tree:
    """Returns all nodes of a tree, by id."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        levels = await views.count_levels(tx, key, memory)
        stored = [
            one
            for level in levels
            for one in await views.list_level(tx, key, memory, level.level, 0, MANY)
        ]
    return {one.node.node_id: one.node for one in stored}


async def kinds_of(database: Database) -> list[str]:
    """Returns the kinds of the revisions of the tree `m`."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch("SELECT kind FROM revision ORDER BY revision")
        return [row.kind for row in rows]


async def want_seal(
    database: Database, position: int, key: UUID = KEY, memory: UUID = MEMORY
) -> None:
    """Requests the seal as the RPC does."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, key, memory)
        assert held is not None
        await trees.want_seal(tx, held, position)


async def leaves_by_hand(
    database: Database, segment_tokens: int, upto: int
) -> list[tuple[TextOffset, TextOffset]]:
    """Returns where the leaves of the sealed tree begin and end, all text cut at once."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        chunks = await log.read(tx, KEY, 0, upto)
    segmenter = Segmenter(segment_tokens, first_piece, TextOffset(1))
    cuts = [*segmenter.feed([piece_of(chunk) for chunk in chunks]), *segmenter.finish()]
    return [(cut.start, cut.end) for cut in cuts]


def assert_is_tree(tree: Tree, max_children: int, *, sealed: bool) -> None:
    """Levels without gaps, children that belong to one parent each, and with `sealed` one root."""
    tops = set(tree)
    for node in tree.values():
        if node.level == 0:
            continue
        least = min(2, node.children) if not sealed else 1
        assert least <= node.children <= max_children
        children = [tree[f"{node.level - 1}.{node.first_child + n}"] for n in range(node.children)]
        tops -= {child.node_id for child in children}
        assert (children[0].start, children[-1].end) == (node.start, node.end)
        assert node.text_tokens == sum(child.text_tokens for child in children)
        if node.number > 1:
            before = tree[f"{node.level}.{node.number - 1}"]
            assert node.first_child == before.first_child + before.children
    leaves = [node for node in tree.values() if node.level == 0]
    for a, b in pairwise(leaves):
        assert a.end == b.start
    if sealed and tree:
        assert len(tops) == 1
