"""A tree over thirty chunks that is written by hand, beside a PRISM memory."""

from collections.abc import Sequence

import palimpsest
from service.domain.tree.nodes import Node, TextOffset
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from tests.integration.api_alone.refusals import SCHEMA
from tests.integration.support.forests import SESSION, TREE, add, grown, leaf

#: The first chunks are large, so that a node's text has several pages.
TEXTS = [f"{n}" + "é" * 120_000 for n in range(6)] + [f"text {n}" for n in range(6, 30)]
#: Leaves end in the middle of chunk 28; what follows is the tail.
LEAVES = [leaf(n, TextOffset(n), TextOffset(n + 1)) for n in range(1, 28)] + [
    leaf(28, TextOffset(28), TextOffset(28, 3))
]


async def write_tree(client: palimpsest.Client, database: Database) -> Sequence[Node]:
    """Returns a session with a tree of two revisions, and a PRISM memory; the tree's nodes."""
    session = await client.create_session(SESSION)
    await session.create_tree(TREE, segment_tokens=64, max_children=3)
    await session.create_memory("facts", SCHEMA)
    async with session.producer("p") as producer:
        for one in TEXTS:
            await producer.append(one)
        await producer.flush()
    made = grown(LEAVES, 3, 2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await add(tx, [made[:9], made[9:]], len(TEXTS))
    return made


def free(nodes: Sequence[Node]) -> list[str]:
    """Returns the ids of those without a parent, in the order of the text."""
    below = {f"{n.level - 1}.{n.first_child + k}" for n in nodes for k in range(n.children)}
    left = [one for one in nodes if one.node_id not in below]
    return [one.node_id for one in sorted(left, key=lambda one: one.start)]
