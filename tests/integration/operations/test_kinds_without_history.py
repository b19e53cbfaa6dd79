"""Trees and state memories have no history that a policy could thin (decision 0121).

All nodes and vectors are read by questions about the present. Only which vectors were in use at
each revision is for the past alone.
"""

import hashlib
from collections.abc import Iterator

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.memories import history
from storage.state import views
from tests.integration.support.compressed_rows import KEY, STATE, make_state
from tests.integration.support.tree_rows import TREE, make_tree

STEPS = 60
#: Characters of a vector with the tokens of the default, 500.
VECTOR_CHARACTERS = 2000
#: The most that thinning could remove of a state memory, as a share of its bytes.
MOST_HISTORY = 0.15

_SIZES = """
SELECT coalesce(sum(pg_column_size(l.*)), 0)::bigint,
    (SELECT sum(pg_column_size(v.*)) FROM state_vector v WHERE v.memory_id = %(memory)s)::bigint
FROM state_levels l WHERE l.memory_id = %(memory)s
"""
_VECTORS = "SELECT revision FROM state_vector WHERE memory_id = %(memory)s AND revision > 0"
_NODES = "SELECT level, number, first_child, children FROM tree_node WHERE memory_id = %(memory)s"


def words() -> Iterator[str]:
    """Yields texts of a vector's size that do not compress more than a text does."""
    number = 0
    while True:
        number += 1
        parts = (hashlib.sha256(f"{number}/{part}".encode()).hexdigest() for part in range(40))
        yield " ".join(parts)[:VECTOR_CHARACTERS]


@pytest.mark.parametrize("episode_vectors", [0, 5, 20])
async def test_all_vectors_of_a_state_memory_are_of_the_present(
    database: Database, episode_vectors: int
) -> None:
    texts = words()
    rows = await make_state(database, ["a step"] * STEPS, episode_vectors=episode_vectors)
    for _ in range(STEPS):
        await rows.compress(next(texts), 1)
        while rows.levels.full_level(episode_vectors) is not None:
            await rows.close_episode(next(texts))
    async with database.transaction(DEFAULT_TENANT) as tx:
        lineage = await history.lineage(tx, KEY, STATE, rows.revision)
        navigated = await views.list_placed(tx, (KEY, STATE), lineage)
        stored = await tx.fetch(_VECTORS, {"memory": STATE})
        ((levels, vectors),) = await tx.fetch(_SIZES, {"memory": STATE})
    assert len(stored) == rows.revision >= STEPS
    assert {one.revision for one in navigated} == {row[0] for row in stored}
    share = levels / (levels + vectors)
    assert 0 < share < MOST_HISTORY, share


async def test_all_nodes_of_a_tree_are_of_the_present(database: Database) -> None:
    await make_tree(database, [f"leaf {number}" for number in range(40)])
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(_NODES, {"memory": TREE})
    children = {
        (row.level, row.number): {
            (row.level - 1, row.first_child + at) for at in range(row.children)
        }
        for row in rows
    }
    below = set[tuple[int, int]]().union(*children.values())
    # A reader begins at the nodes without a parent, and goes down.
    reached = roots = children.keys() - below
    while roots:
        roots = {child for node in roots for child in children[node]}
        reached |= roots
    assert reached == children.keys()
    assert len(children) > 40
