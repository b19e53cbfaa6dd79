"""A reader finds a tree as of every revision, at a bounded cost."""

from collections.abc import Sequence

import psycopg
import pytest

from service.domain.tree.nodes import Node, TextOffset
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.tree import views
from tests.integration.support.forests import KEY, TREE_ID, add, grown, leaf, make_tree
from tests.integration.support.statements import Statement, statements
from tests.support.harness import Servers

LEAVES = 47
GROUP = 3
AHEAD = 2


@pytest.fixture
async def batches(database: Database) -> Sequence[Sequence[Node]]:
    """Returns a tree of one chunk a leaf, its nodes in batches of several sizes."""
    await make_tree(database, [f"text {n}" for n in range(LEAVES)])
    nodes = grown(
        [leaf(n, TextOffset(n), TextOffset(n + 1)) for n in range(1, LEAVES + 1)], GROUP, AHEAD
    )
    cut = [nodes[:1], [], nodes[1:2]]
    cut += [nodes[start : start + 5] for start in range(2, len(nodes), 5)]
    async with database.transaction(DEFAULT_TENANT) as tx:
        await add(tx, cut, LEAVES)
    return cut


def parents(nodes: Sequence[Node]) -> dict[str, int]:
    return {
        f"{one.level - 1}.{number}": one.number
        for one in nodes
        for number in range(one.first_child, one.first_child + one.children)
    }


async def test_every_revision_has_its_tops_levels_and_parents(
    database: Database, batches: Sequence[Sequence[Node]]
) -> None:
    assert len(batches) > 10
    async with database.transaction(DEFAULT_TENANT) as tx:
        for revision in range(len(batches) + 1):
            there = [one for batch in batches[:revision] for one in batch]
            above = parents(there)
            tops = await views.read_tops(tx, KEY, TREE_ID, revision)
            free = [one for one in there if one.node_id not in above]
            assert [one.node for one in tops] == sorted(free, key=lambda one: one.start)
            assert {one.parent for one in tops} <= {None}
            levels = await views.count_levels(tx, KEY, TREE_ID, revision)
            assert {one.level: one.nodes for one in levels} == {
                level: sum(one.level == level for one in there)
                for level in {one.level for one in there}
            }
            everything = [one.node_id for batch in batches for one in batch]
            found = await views.read_nodes(tx, KEY, TREE_ID, everything, revision)
            assert {name: one.parent for name, one in found.items()} == {
                one.node_id: above.get(one.node_id) for one in there
            }
            assert {name: one.node for name, one in found.items()} == {
                one.node_id: one for one in there
            }


async def test_the_newest_is_what_the_last_revision_has(
    database: Database, batches: Sequence[Sequence[Node]]
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        now = await views.read_tops(tx, KEY, TREE_ID)
        assert now == await views.read_tops(tx, KEY, TREE_ID, len(batches))
        # The order is the text's: the tail of single leaves comes last.
        assert now[0].node.level > now[-1].node.level == 0


async def test_children_and_levels_come_in_the_order_of_the_text(
    database: Database, batches: Sequence[Sequence[Node]]
) -> None:
    nodes = {one.node_id: one for batch in batches for one in batch}
    async with database.transaction(DEFAULT_TENANT) as tx:
        for one in nodes.values():
            children = await views.read_children(tx, KEY, TREE_ID, one.level, one.number)
            assert len(children) == one.children
            assert {child.parent for child in children} <= {one.number}
            shown = await views.read_nodes(tx, KEY, TREE_ID, [one.node_id])
            assert tuple(c.node.node_id for c in children) == shown[one.node_id].child_ids
        level: list[str] = []
        while page := await views.list_level(tx, KEY, TREE_ID, 1, len(level), 4):
            level += [one.node.node_id for one in page]
        assert level == [name for name in nodes if name.startswith("1.")]
        assert await views.list_level(tx, KEY, TREE_ID, 9, 0, 4) == []
        assert await views.list_level(tx, KEY, TREE_ID, 1, 0, 4, 1) == []


async def test_what_is_not_there_is_not_found(
    database: Database, batches: Sequence[Sequence[Node]]
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await views.read_nodes(tx, KEY, TREE_ID, ["0.48", "99.1"]) == {}
        assert await views.read_nodes(tx, KEY, TREE_ID, []) == {}
        assert await views.read_children(tx, KEY, TREE_ID, 7, 1) == []
        # The first parent comes later than revision 1.
        assert await views.read_children(tx, KEY, TREE_ID, 1, 1, 1) == []
        for wrong in ("root", "v1.2", "t.1", "1", "-1.1", ""):
            with pytest.raises(ValueError, match="no id"):
                await views.read_nodes(tx, KEY, TREE_ID, [wrong])


async def test_a_tree_without_nodes_has_neither_levels_nor_tops(database: Database) -> None:
    await make_tree(database, [])
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await views.count_levels(tx, KEY, TREE_ID) == []
        assert await views.read_tops(tx, KEY, TREE_ID, 0) == []


TEXTS = ["one two three", "ä" * 50, "€uro " * 20, "x", "ends here"]


@pytest.mark.parametrize("max_bytes", [1, 3, 7, 40, 1000])
async def test_pages_of_text_are_the_text_and_nothing_else(
    database: Database, max_bytes: int
) -> None:
    await make_tree(database, TEXTS)
    places = [
        TextOffset(1),
        TextOffset(1, 4),
        TextOffset(2),
        TextOffset(2, 49),
        TextOffset(3, 7),
        TextOffset(5, 8),
        TextOffset(6),
    ]
    async with database.transaction(DEFAULT_TENANT) as tx:
        for start in places:
            for end in [place for place in places if place >= start]:
                here = start
                parts: list[views.TextPart] = []
                while page := await views.read_text(tx, KEY, here, end, max_bytes):
                    size = sum(len(part.text.encode()) for part in page)
                    assert size <= max(max_bytes, 4)
                    parts += page
                    here = page[-1].end
                assert here == end
                assert "".join(part.text for part in parts) == between(start, end)
                for part in parts:
                    whole = TEXTS[part.position - 1]
                    assert part.text == whole[part.from_offset : part.to_offset]


async def test_parts_count_on_a_page(database: Database) -> None:
    await make_tree(database, ["a", "b", "c", "d"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        for each, shown in ((0, "abcd"), (9, "abc"), (14, "ab"), (29, "a"), (99, "a")):
            page = await views.read_text(tx, KEY, TextOffset(1), TextOffset(5), 30, part_bytes=each)
            assert "".join(part.text for part in page) == shown


def between(start: TextOffset, end: TextOffset) -> str:
    return "".join(
        text[start.offset if n == start.position else 0 : end.offset if n == end.position else None]
        for n, text in enumerate(TEXTS, start=1)
        if start.position <= n <= end.last_position
    )


#: As many leaves as a book of 100 million tokens has, and what is above them.
MANY = 100_000
_FILL = """
INSERT INTO revision (session_key, memory_id, tenant_id, revision, parent_revision,
                      from_position, to_position, kind, epoch, digest)
SELECT %(key)s, %(memory)s, %(tenant)s, r, r - 1, CASE r WHEN 1 THEN 0 ELSE 1 END, 1,
    CASE r WHEN 1 THEN 'step' ELSE 'build' END, 1, '' FROM generate_series(1, 100) r;
UPDATE memory SET revision = 100, applied_position = 1 WHERE session_key = %(key)s;
SET session_replication_role = replica;
"""
_FILL_LEVEL = """
INSERT INTO tree_node (session_key, memory_id, tenant_id, level, number, revision, first_child,
                       children, start_position, start_offset, end_position, end_offset,
                       summary, made, text_tokens, summary_tokens)
SELECT %(key)s, %(memory)s, %(tenant)s, %(level)s, n, 1 + least(n * %(width)s, 99999) / 1010,
    CASE %(level)s WHEN 0 THEN 0 ELSE (n - 1) * 8 + 1 END, CASE %(level)s WHEN 0 THEN 0 ELSE 8 END,
    1, (n - 1) * %(width)s, 1, n * %(width)s, repeat('word ', 40), 'model', 1000, 40
FROM generate_series(1, %(count)s) n
"""


def fill(servers: Servers, url: str) -> None:
    values = {"key": KEY, "memory": TREE_ID, "tenant": DEFAULT_TENANT}
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        psycopg.ClientCursor(connection).execute(_FILL, values)
        count, level, width = MANY, 0, 1
        while count:
            connection.execute(
                _FILL_LEVEL, {**values, "level": level, "count": count, "width": width}
            )
            count, level, width = (count - 4) // 8 if count > 12 else 0, level + 1, width * 8
        connection.execute("ANALYZE tree_node")


async def test_reading_a_large_tree_costs_what_reading_a_small_one_does(
    database: Database, servers: Servers, url: str
) -> None:
    await make_tree(database, ["x" * MANY])
    fill(servers, url)
    async with database.transaction(DEFAULT_TENANT) as tx:
        with statements() as sent:
            for revision in (None, 37):
                tops = await views.read_tops(tx, KEY, TREE_ID, revision)
                assert 0 < len(tops) <= 12 * 6
                children = await views.read_children(tx, KEY, TREE_ID, 3, 2, revision)
                assert len(children) == 8
                ids = ["0.17", "1.4", "2.3"]
                assert len(await views.read_nodes(tx, KEY, TREE_ID, ids, revision)) == 3
                listed = await views.list_level(tx, KEY, TREE_ID, 0, 30_000, 100, revision)
                assert len(listed) == 100
            assert (
                len(await views.read_text(tx, KEY, TextOffset(1, 50), TextOffset(1, 900), 99)) == 1
            )
        assert len(sent) == 2 * 5 + 1
        for statement in sent:
            plan = await explained(database, statement)
            assert "Seq Scan" not in plan, plan
            assert rows_read(plan) <= 1000, plan


async def explained(database: Database, statement: Statement) -> str:
    async with database.transaction(DEFAULT_TENANT) as tx:
        explain = f"EXPLAIN (ANALYZE) {statement}"
        rows = await tx.fetch(explain, statement.values)
        return "\n".join(row[0] for row in rows)


def rows_read(plan: str) -> int:
    """Returns the rows that scans returned or discarded, over all their loops."""
    total = 0
    for line in plan.splitlines():
        if "Index" in line and "actual" in line:
            actual = line.partition("actual")[2]
            rows = float(actual.partition("rows=")[2].split()[0])
            total += round(rows * int(actual.partition("loops=")[2].rstrip(")")))
        if "Rows Removed by Filter" in line:
            total += int(line.partition(":")[2])
    return total
