"""A small tree written straight into the database, for tests of what reads trees."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, insert, update

from service.domain.log.chunks import LoggedChunk
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import Node, SummarySource, TextOffset
from service.domain.tree.spec import TreeSpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage.engine.database import Database, Transaction
from storage.log import chunks as log
from storage.log import sessions
from storage.memories import memories
from storage.tables import memory, revision, tree_node
from tests.integration.support.writing import append_texts

KEY = session_key(DEFAULT_TENANT, "s")
TREE = memory_id(KEY, "t")
SPEC = TreeSpec(segment_tokens=64, max_children=3, summary_tokens=64, model="test/scripted")


async def make_tree(
    database: Database, leaves: Sequence[str], *, tail: Sequence[str] = (), **changes: Any
) -> None:
    """Makes the session `s` and the tree `t` over it: each leaf one chunk, then a tail.

    Revision 1 adds the leaves and the parents of all whole groups, revision 2 the tail.
    """
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    await append_texts(database, "s", [*leaves, *tail])
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await memories.create(
            tx,
            session_key=KEY,
            memory_id=TREE,
            name="t",
            spec=replace(SPEC, **changes),
            head=len(leaves) + len(tail),
            digest=b"",
        )
        if leaves:
            await _step(tx, 1, 0, len(leaves))
            children = replace(SPEC, **changes).max_children
            await _add_nodes(tx, await log.read(tx, KEY, 0, len(leaves)), children)
        if tail:
            await _step(tx, 2 if leaves else 1, len(leaves), len(leaves) + len(tail))


async def _step(tx: Transaction, number: int, start: int, end: int) -> None:
    await tx.execute(
        insert(revision).values(
            session_key=KEY,
            memory_id=TREE,
            tenant_id=DEFAULT_TENANT,
            revision=number,
            parent_revision=number - 1,
            from_position=start,
            to_position=end,
            kind="step",
            epoch=0,
            digest=b"",
        )
    )
    await tx.execute(
        update(memory)
        .where(memory.c.session_key == KEY, memory.c.memory_id == TREE)
        .values(revision=number, applied_position=end, has_work=False)
    )


def _leaf(logged: LoggedChunk) -> Node:
    text = logged.chunk.as_text()
    return Node(
        level=0,
        number=logged.position,
        start=TextOffset(logged.position),
        end=TextOffset(logged.position + 1),
        summary=f"about {text[:20]}",
        made=SummarySource.MODEL,
        text_tokens=estimate_tokens(text),
        summary_tokens=6,
    )


async def _add_nodes(tx: Transaction, chunks: Sequence[LoggedChunk], children: int) -> None:
    level = [_leaf(logged) for logged in chunks]
    words = [logged.chunk.as_text() for logged in chunks]
    while level:
        await _insert(tx, level, words)
        words = []
        whole = len(level) // children * children
        groups = [level[at : at + children] for at in range(0, whole, children)]
        level = [_parent(number, group) for number, group in enumerate(groups, 1)]


def _parent(number: int, group: Sequence[Node]) -> Node:
    return Node(
        level=group[0].level + 1,
        number=number,
        first_child=group[0].number,
        children=len(group),
        start=group[0].start,
        end=group[-1].end,
        summary=" ".join(child.summary for child in group),
        made=SummarySource.JOINED,
        text_tokens=sum(child.text_tokens for child in group),
        summary_tokens=sum(child.summary_tokens for child in group),
    )


async def _insert(tx: Transaction, nodes: Sequence[Node], words: Sequence[str]) -> None:
    for index, node in enumerate(nodes):
        text = words[index] if words else None
        await tx.execute(
            insert(tree_node).values(
                session_key=KEY,
                memory_id=TREE,
                tenant_id=DEFAULT_TENANT,
                revision=1,
                level=node.level,
                number=node.number,
                first_child=node.first_child,
                children=node.children,
                start_position=node.start.position,
                start_offset=node.start.offset,
                end_position=node.end.position,
                end_offset=node.end.offset,
                summary=node.summary,
                made=node.made,
                text_tokens=node.text_tokens,
                summary_tokens=node.summary_tokens,
                words=None if text is None else func.to_tsvector("simple", text),
            )
        )
