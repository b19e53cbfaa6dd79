"""Trees that no worker built: made of numbers, and written by hand."""

from collections.abc import Sequence

from sqlalchemy import insert, text

from service.domain.tree.nodes import Node, SummarySource, TextOffset
from service.domain.tree.spec import TreeSpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import memories
from storage.tables import tree_node
from tests.integration.support.writing import append_texts

SESSION = "library"
TREE = "book"
KEY = session_key(DEFAULT_TENANT, SESSION)
TREE_ID = memory_id(KEY, TREE)


async def make_tree(database: Database, texts: Sequence[str], spec: TreeSpec | None = None) -> None:
    """Creates a session with a tree, and unread texts in its log."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, SESSION)
        await memories.create(
            tx,
            session_key=KEY,
            memory_id=TREE_ID,
            name=TREE,
            spec=spec or TreeSpec(),
            head=0,
            digest=b"",
        )
    if texts:
        await append_texts(database, SESSION, texts)


def leaf(number: int, start: TextOffset, end: TextOffset) -> Node:
    """Returns a leaf with a distinct summary."""
    return Node(
        level=0,
        number=number,
        start=start,
        end=end,
        summary=f"leaf {number}",
        made=SummarySource.MODEL,
        text_tokens=10,
        summary_tokens=3,
    )


def parent(level: int, number: int, below: Sequence[Node]) -> Node:
    """Returns the parent of consecutive nodes."""
    return Node(
        level=level,
        number=number,
        first_child=below[0].number,
        children=len(below),
        start=below[0].start,
        end=below[-1].end,
        summary=f"node {level}.{number}",
        made=SummarySource.JOINED,
        text_tokens=sum(one.text_tokens for one in below),
        summary_tokens=4,
    )


def grown(leaves: Sequence[Node], group: int, ahead: int) -> list[Node]:
    """Returns the leaves, and a parent of the next `group` nodes of a level once `group + ahead` of
    them have none, in the order in which they come."""
    free: list[list[Node]] = [[]]
    counts = [0]
    made: list[Node] = []
    for one in leaves:
        made.append(one)
        free[0].append(one)
        level = 0
        while len(free[level]) >= group + ahead:
            if level + 1 == len(free):
                free.append([])
                counts.append(0)
            counts[level + 1] += 1
            above = parent(level + 1, counts[level + 1], free[level][:group])
            del free[level][:group]
            made.append(above)
            free[level + 1].append(above)
            level += 1
    return made


async def add(tx: Transaction, batches: Sequence[Sequence[Node]], applied: int) -> None:
    """Commits batches of nodes as revisions 1, 2, 3 …; the first reads the log to `applied`."""
    for number, nodes in enumerate(batches, start=1):
        await tx.execute(
            text(
                "INSERT INTO revision (session_key, memory_id, tenant_id, revision,"
                " parent_revision, from_position, to_position, kind, epoch, digest)"
                " VALUES (:key, :memory, :tenant, :n, :n - 1, :a, :b, :kind, 1, '')"
            ),
            {
                "key": KEY,
                "memory": TREE_ID,
                "tenant": DEFAULT_TENANT,
                "n": number,
                "a": 0 if number == 1 else applied,
                "b": applied,
                "kind": "step" if number == 1 else "build",
            },
        )
        if nodes:
            rows = [row(one, number) for one in nodes]
            await tx.execute(insert(tree_node).values(rows))
    await tx.execute(
        text(
            "UPDATE memory SET revision = :n, applied_position = :a, has_work = false"
            " WHERE session_key = :key AND memory_id = :memory"
        ),
        {"n": len(batches), "a": applied, "key": KEY, "memory": TREE_ID},
    )


def row(node: Node, revision: int) -> dict[str, object]:
    """Returns a node's row."""
    return {
        "session_key": KEY,
        "memory_id": TREE_ID,
        "tenant_id": DEFAULT_TENANT,
        "revision": revision,
        "level": node.level,
        "number": node.number,
        "first_child": node.first_child,
        "children": node.children,
        "start_position": node.start.position,
        "start_offset": node.start.offset,
        "end_position": node.end.position,
        "end_offset": node.end.offset,
        "summary": node.summary,
        "made": node.made.value,
        "text_tokens": node.text_tokens,
        "summary_tokens": node.summary_tokens,
    }
