"""Writes trees: their revisions, the new nodes of these, and requests to seal them.

The keys of `storage.tables.tree_node` refuse a gap, an overlap or a second node over the same text,
whatever the code here does.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from service.domain.search.entries import EntryChanges
from service.domain.tree.nodes import Node, TextOffset, node_entries
from service.domain.values.json_values import canonical
from storage.engine.claims import Claim, change_locked
from storage.engine.database import Transaction
from storage.memories.flushing import ready_unless_failing
from storage.memories.revisions import NewRevision, advance
from storage.tables import memory
from storage.tree.views import NODE_COLUMNS, node_of

#: Bytes of a leaf's text whose words are indexed: the words of any text of this length fit in the
#: megabyte that PostgreSQL allows.
INDEXED_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """What a builder must know of a tree."""

    #: Number of nodes by level, from 0 up.
    nodes: tuple[int, ...]
    #: How many of them, the first ones, have a parent.
    grouped: tuple[int, ...]
    #: Nodes without a parent, in the order of levels and numbers.
    tops: tuple[Node, ...]
    #: The end of the last leaf.
    end: TextOffset
    #: The digest of the newest revision.
    digest: bytes


# From the leaves up, the last node of each level: its number is that of all, and its children are
# the last on the level below with a parent.
_READ_GROWTH = f"""
WITH RECURSIVE level AS (
    (SELECT level, number, first_child + children - 1 AS grouped, end_position, end_offset
     FROM tree_node
     WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = 0
     ORDER BY number DESC LIMIT 1)
    UNION ALL
    SELECT above.* FROM level, LATERAL (
        SELECT n.level, n.number, n.first_child + n.children - 1, n.end_position, n.end_offset
        FROM tree_node n
        WHERE n.session_key = %(session)s AND n.memory_id = %(memory)s
            AND n.level = level.level + 1
        ORDER BY n.number DESC LIMIT 1
    ) AS above
)
SELECT r.digest, l.level, l.number AS nodes, coalesce(p.grouped, 0) AS grouped,
    l.end_position AS level_position, l.end_offset AS level_offset, n.*
FROM revision r
LEFT JOIN level l ON true
LEFT JOIN level p ON p.level = l.level + 1
LEFT JOIN LATERAL (
    SELECT {", ".join(NODE_COLUMNS[1:])} FROM tree_node
    WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = l.level
        AND number > coalesce(p.grouped, 0)
) AS n ON true
WHERE r.session_key = %(session)s AND r.memory_id = %(memory)s AND r.revision = %(revision)s
ORDER BY l.level, n.number
"""  # noqa: S608 - all of it is ours


async def read_growth(tx: Transaction, held: Claim) -> Growth:
    """Returns what a builder must know of the claimed tree, in one round trip."""
    values = {
        "session": held.session_key,
        "memory": held.memory_id,
        "revision": held.revision,
    }
    rows = await tx.fetch(_READ_GROWTH, values, prepare=None)
    digest = bytes(rows[0].digest)
    levels = {row.level: row for row in rows}
    if None in levels:
        return Growth(nodes=(), grouped=(), tops=(), end=TextOffset(1), digest=digest)
    return Growth(
        nodes=tuple(row.nodes for row in levels.values()),
        grouped=tuple(row.grouped for row in levels.values()),
        tops=tuple(node_of(row) for row in rows if row.number is not None),
        end=TextOffset(rows[0].level_position, rows[0].level_offset),
        digest=digest,
    )


async def commit(
    tx: Transaction,
    held: Claim,
    new: NewRevision,
    nodes: Sequence[Node],
    texts: Mapping[int, str],
    *,
    has_work: bool,
) -> bool:
    """Writes a tree's next revision with its new nodes; returns whether there is work.

    `texts` has the text of each new leaf by its number. Raises Fenced as `revisions.advance` does.
    """
    number = held.revision + 1
    written = [one for node in nodes for one in node_entries(node, number)]
    new = replace(new, entries=EntryChanges(written=written))
    has_more = await advance(tx, held, new, has_work=has_work)
    await add_nodes(tx, held, nodes, number, texts)
    return has_more


async def seal(tx: Transaction, held: Claim, new: NewRevision) -> None:
    """Writes a tree's last revision: it never has work again. Raises Fenced."""
    await advance(tx, held, new, has_work=False, sealed=True)


# The types of the columns in the order of `_row`.
_TYPES = (
    *("integer", "bigint", "bigint", "integer", "bigint", "bigint", "bigint", "bigint"),
    *("text", "text", "bigint", "bigint", "text"),
)
_COLUMNS = ", ".join(NODE_COLUMNS)
_ADD_NODES = f"""
INSERT INTO tree_node (session_key, memory_id, tenant_id, revision, {_COLUMNS}, words)
SELECT %s, %s, %s, %s, {_COLUMNS}, to_tsvector('simple', leaf)
FROM unnest({", ".join(f"%s::{of}[]" for of in _TYPES)}) AS t ({_COLUMNS}, leaf)
"""  # noqa: S608 - all of it is ours


async def add_nodes(
    tx: Transaction,
    held: Claim,
    nodes: Sequence[Node],
    revision: int,
    texts: Mapping[int, str],
) -> None:
    """Writes the new nodes of a revision, in one statement.

    `texts` has the text of each new leaf by its number, whose words are indexed.
    """
    if not nodes:
        return
    columns = zip(*(_row(node, texts) for node in nodes), strict=True)
    values = (held.session_key, held.memory_id, tx.tenant_id, revision, *map(list, columns))
    await tx.execute(_ADD_NODES, values, prepare=None)


def _row(node: Node, texts: Mapping[int, str]) -> tuple[Any, ...]:
    leaf = indexed(texts[node.number]) if node.level == 0 else None
    return (
        *(node.level, node.number, node.first_child, node.children),
        *(node.start.position, node.start.offset, node.end.position, node.end.offset),
        *(node.summary, node.made.value, node.text_tokens, node.summary_tokens, leaf),
    )


def indexed(text: str) -> str:
    """Returns the part of a leaf's text whose words are indexed."""
    return text.encode()[:INDEXED_BYTES].decode(errors="ignore")


def digest(parent: bytes, nodes: Iterable[Node]) -> bytes:
    """Returns the SHA-256 of a revision: over that of its parent, and its new nodes."""
    made = hashlib.sha256(parent)
    for node in nodes:
        made.update(
            canonical([_plain(getattr(node, field.name)) for field in fields(node)]).encode()
        )
    return made.digest()


def _plain(value: Any) -> Any:
    return [value.position, value.offset] if isinstance(value, TextOffset) else value


async def cancel_seal(tx: Transaction, held: Claim) -> None:
    """Withdraws what `want_seal` requested. The caller has the memory from `revisions.lock`."""
    is_open = memory.c.status != "sealed"
    # A worker that seals it has its result refused.
    await change_locked(tx, held, is_open, seal_position=None, epoch=memory.c.epoch + 1)
    tx.changed.add(held.memory_id)


async def want_seal(tx: Transaction, held: Claim, position: int) -> bool:
    """Requests that a tree is closed once everything up to `position` is in it.

    A worker that closes it elsewhere has its result refused, and continues reading. False, and no
    change, when that was requested before or the tree is closed. The caller has the memory from
    `revisions.lock`, and the session's head from `sessions.lock_head`.
    """
    tx.changed.add(held.memory_id)
    is_new = memory.c.seal_position.is_distinct_from(position)
    wanted = {"seal_position": position, "has_work": True, "ready_at": ready_unless_failing()}
    return await change_locked(tx, held, is_new, memory.c.status != "sealed", **wanted)
