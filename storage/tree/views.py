"""Reads trees: nodes, those without a parent, and the text of nodes.

A tree only grows, on each level in the order of the numbers (`tree_node_chain_fkey`). So the nodes
of a level at any revision are its first ones, and those with a parent are the first of these. All
reads use keys, and take a few steps whatever the size of the tree and the revision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from service.domain.tree.nodes import Node, SummarySource, TextOffset
from storage.engine.database import Transaction
from storage.engine.listing import ALL_BYTES
from storage.log.chunks import CONTENT_BYTES, CONTENT_COLUMNS, FOUND_COLUMNS, logged_of

#: The revision of a query for the tree as it is now.
_NEWEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredNode:
    """A node with its stored attributes."""

    node: Node
    #: The revision that added it.
    revision: int
    created_at: datetime
    #: Number of its parent, on the level above; None while there is none.
    parent: int | None

    @property
    def parent_id(self) -> str | None:
        """The id of its parent; None while there is none."""
        return None if self.parent is None else f"{self.node.level + 1}.{self.parent}"

    @property
    def child_ids(self) -> tuple[str, ...]:
        """The ids of its children, in the order of the text; empty for a leaf."""
        first, below = self.node.first_child, self.node.level - 1
        return tuple(f"{below}.{n}" for n in range(first, first + self.node.children))


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLevel:
    """A level of a tree."""

    #: 0 for the leaves.
    level: int
    #: Number of nodes, which are numbered from 1.
    nodes: int
    #: How many of them, the first ones, have a parent.
    grouped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """The text of a chunk, or a part of it."""

    position: int
    #: Characters into the chunk's text as a model reads it: from here …
    from_offset: int
    #: … to before here.
    to_offset: int
    text: str
    #: The offset after it.
    end: TextOffset


def parse_node_id(node_id: str) -> tuple[int, int]:
    """Returns level and number in the id of a stored node. Raises ValueError."""
    level, separator, number = node_id.partition(".")
    if not (separator and level.isdecimal() and number.isdecimal()):
        raise ValueError(f"{node_id!r} is no id of a stored node")
    return int(level), int(number)


#: The columns of `node_of`.
NODE_COLUMNS = (
    "level",
    "number",
    "first_child",
    "children",
    "start_position",
    "start_offset",
    "end_position",
    "end_offset",
    "summary",
    "made",
    "text_tokens",
    "summary_tokens",
)
_COLUMNS = ", ".join(f"n.{name}" for name in (*NODE_COLUMNS, "revision", "created_at"))

#: The parent: the last node whose first child does not follow this one.
_PARENT = """LEFT JOIN LATERAL (
    SELECT p.number, p.first_child + p.children AS upto, p.revision FROM tree_node p
    WHERE p.session_key = %(session)s AND p.memory_id = %(memory)s
        AND p.level = n.level + 1 AND p.level > 0 AND p.first_child <= n.number
    ORDER BY p.first_child DESC LIMIT 1
) AS above ON above.upto > n.number AND above.revision <= %(revision)s"""

_OF_TREE = "session_key = %(session)s AND memory_id = %(memory)s"

# The last node of each level, from the top down; where that was added later, the last one at the
# revision by binary search, which only reads of the past need.
_LEVELS = f"""
WITH RECURSIVE newest AS (
    (SELECT level, number, revision FROM tree_node WHERE {_OF_TREE}
     ORDER BY level DESC, number DESC LIMIT 1)
    UNION ALL
    SELECT below.* FROM newest, LATERAL (
        SELECT level, number, revision FROM tree_node
        WHERE {_OF_TREE} AND level = newest.level - 1
        ORDER BY number DESC LIMIT 1
    ) AS below
), halving AS (
    SELECT level, CASE WHEN revision <= %(revision)s THEN number ELSE 0 END AS there,
        number AS upto
    FROM newest
    UNION ALL
    SELECT h.level,
        CASE WHEN m.revision <= %(revision)s THEN m.number ELSE h.there END,
        CASE WHEN m.revision <= %(revision)s THEN h.upto ELSE m.number - 1 END
    FROM halving h, LATERAL (
        SELECT number, revision FROM tree_node
        WHERE {_OF_TREE} AND level = h.level AND number = (h.there + h.upto + 1) / 2
        LIMIT 1
    ) AS m
    WHERE h.there < h.upto
), level AS (
    SELECT level, there AS nodes FROM halving WHERE there = upto AND there > 0
)"""  # noqa: S608 - all of it is ours

_READ_LEVELS = f"""{_LEVELS}
SELECT level.level, level.nodes, coalesce((
    SELECT first_child + children - 1 FROM tree_node
    WHERE {_OF_TREE} AND tree_node.level = above.level AND number = above.nodes
), 0) AS grouped
FROM level LEFT JOIN level AS above ON above.level = level.level + 1
ORDER BY level.level
"""  # noqa: S608 - all of it is ours

_READ_TOPS = f"""
SELECT {_COLUMNS}, NULL AS parent
FROM unnest(%(levels)s::int[], %(after)s::bigint[], %(upto)s::bigint[]) AS r (level, after, upto),
LATERAL (
    SELECT * FROM tree_node
    WHERE {_OF_TREE} AND level = r.level AND number > r.after AND number <= r.upto
    ORDER BY number LIMIT r.upto - r.after
) AS n
ORDER BY n.start_position, n.start_offset
"""  # noqa: S608 - all of it is ours

_READ_NODES = f"""
SELECT {_COLUMNS}, above.number AS parent
FROM unnest(%(levels)s::int[], %(numbers)s::bigint[]) AS w (level, number),
LATERAL (
    SELECT * FROM tree_node
    WHERE {_OF_TREE} AND level = w.level AND number = w.number AND revision <= %(revision)s
    LIMIT 1
) AS n
{_PARENT}
"""  # noqa: S608 - all of it is ours

_READ_CHILDREN = f"""
SELECT {_COLUMNS}, p.number AS parent
FROM (
    SELECT * FROM tree_node
    WHERE {_OF_TREE} AND level = %(level)s AND number = %(number)s
        AND level > 0 AND revision <= %(revision)s
    LIMIT 1
) AS p, LATERAL (
    SELECT * FROM tree_node
    WHERE {_OF_TREE} AND level = p.level - 1
        AND number >= p.first_child AND number < p.first_child + p.children
    ORDER BY number LIMIT p.children
) AS n
ORDER BY n.number
"""  # noqa: S608 - all of it is ours

_LIST_LEVEL = f"""
SELECT {_COLUMNS}, above.number AS parent
FROM (
    SELECT *, sum(octet_length(summary)) OVER (
        ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
    ) AS before FROM tree_node
    WHERE {_OF_TREE} AND level = %(level)s AND number > %(after)s
    ORDER BY number LIMIT %(limit)s
) AS n
{_PARENT}
WHERE n.revision <= %(revision)s AND coalesce(n.before, 0) < %(bytes)s
ORDER BY n.number
"""  # noqa: S608 - all of it is ours

# From chunk to chunk, so that a page costs no more than its content, however long the rest is.
_WALK_TEXT = f"""
WITH RECURSIVE walk AS (
    SELECT {CONTENT_COLUMNS}, 0::bigint AS before, %(each)s + {CONTENT_BYTES} AS bytes
    FROM chunk c WHERE c.session_key = %(session)s AND c.position = %(first)s
    UNION ALL
    SELECT n.* FROM walk, LATERAL (
        SELECT {CONTENT_COLUMNS}, walk.before + walk.bytes, %(each)s + {CONTENT_BYTES}
        FROM chunk c WHERE c.session_key = %(session)s AND c.position = walk.position + 1
        LIMIT 1
    ) AS n
    WHERE walk.position < %(last)s
        AND walk.before + walk.bytes < %(bytes)s
)
SELECT {FOUND_COLUMNS} FROM walk AS c ORDER BY c.position
"""  # noqa: S608 - all of it is ours


async def count_levels(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int | None = None
) -> Sequence[TreeLevel]:
    """Returns the levels, from the leaves upwards; None means as it is now."""
    values = _values(session_key, memory_id, revision)
    rows = await tx.fetch(_READ_LEVELS, values, prepare=None)
    return [TreeLevel(level=row.level, nodes=row.nodes, grouped=row.grouped) for row in rows]


async def read_tops(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int | None = None
) -> Sequence[StoredNode]:
    """Returns the nodes without a parent, in the order of the text; None means as it is now."""
    levels = await count_levels(tx, session_key, memory_id, revision)
    return await tops_of(tx, session_key, memory_id, levels)


async def tops_of(
    tx: Transaction, session_key: UUID, memory_id: UUID, levels: Sequence[TreeLevel]
) -> Sequence[StoredNode]:
    """Returns the nodes without a parent of the levels that `count_levels` returned."""
    values = {
        **_values(session_key, memory_id, None),
        "levels": [one.level for one in levels],
        "after": [one.grouped for one in levels],
        "upto": [one.nodes for one in levels],
    }
    rows = await tx.fetch(_READ_TOPS, values, prepare=None)
    return [_stored(row) for row in rows]


async def read_nodes(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    ids: Sequence[str],
    revision: int | None = None,
) -> Mapping[str, StoredNode]:
    """Returns nodes by their ids, without those that do not exist (at the revision).

    Raises ValueError for an invalid id.
    """
    wanted = [parse_node_id(one) for one in dict.fromkeys(ids)]
    values = {
        **_values(session_key, memory_id, revision),
        "levels": [level for level, _ in wanted],
        "numbers": [number for _, number in wanted],
    }
    rows = await tx.fetch(_READ_NODES, values, prepare=None)
    return {one.node.node_id: one for one in map(_stored, rows)}


async def read_children(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    level: int,
    number: int,
    revision: int | None = None,
) -> Sequence[StoredNode]:
    """Returns the children of a node, in order; none of a leaf or a missing node."""
    values = {**_values(session_key, memory_id, revision), "level": level, "number": number}
    rows = await tx.fetch(_READ_CHILDREN, values, prepare=None)
    return [_stored(row) for row in rows]


async def list_level(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    level: int,
    after_number: int,
    limit: int,
    revision: int | None = None,
    *,
    max_bytes: int = ALL_BYTES,
) -> Sequence[StoredNode]:
    """Returns up to `limit` nodes of a level after `after_number`, in order.

    Only the first with `max_bytes` of summaries together, and one more.
    """
    values = {
        **_values(session_key, memory_id, revision),
        "level": level,
        "after": after_number,
        "limit": limit,
        "bytes": max_bytes,
    }
    rows = await tx.fetch(_LIST_LEVEL, values, prepare=None)
    return [_stored(row) for row in rows]


async def read_text(
    tx: Transaction,
    session_key: UUID,
    start: TextOffset,
    end: TextOffset,
    max_bytes: int,
    *,
    part_bytes: int = 0,
) -> Sequence[TextPart]:
    """Returns the text from `start` to before `end`, chunk by chunk, as models read it.

    Ends early, between two characters, at `max_bytes` of UTF-8 but after at least one character:
    the rest begins at the last part's `end`. Each part counts `part_bytes` besides its text.
    """
    if end <= start:
        return []
    values = {
        "session": session_key,
        "first": start.position,
        "last": end.last_position,
        "each": part_bytes,
        # The beginning of the first chunk is read but not returned; 4 bytes per character.
        "bytes": max_bytes + 4 * start.offset,
    }
    rows = await tx.fetch(_WALK_TEXT, values, prepare=None)
    parts: list[TextPart] = []
    room = max_bytes
    for row in rows:
        text = logged_of(row).chunk.as_text()
        here = start.offset if row.position == start.position else 0
        upto = end.offset if row.position == end.position else len(text)
        room -= part_bytes
        part = _part(row.position, text, here, upto, room if parts else max(room, 4))
        parts.append(part)
        room -= len(part.text.encode())
        if room <= 0 or part.to_offset < upto:
            break
    return [part for part in parts if part.text]


def _part(position: int, text: str, here: int, upto: int, room: int) -> TextPart:
    shown = text[here:upto]
    if len(shown) * 4 > room:
        # Whole characters only.
        shown = shown.encode()[: max(room, 0)].decode(errors="ignore")
    to_offset = here + len(shown)
    end = TextOffset(position + 1) if to_offset == len(text) else TextOffset(position, to_offset)
    return TextPart(position=position, from_offset=here, to_offset=to_offset, text=shown, end=end)


def _values(session_key: UUID, memory_id: UUID, revision: int | None) -> dict[str, Any]:
    return {
        "session": session_key,
        "memory": memory_id,
        "revision": _NEWEST if revision is None else revision,
    }


def node_of(row: Any) -> Node:
    """Returns a node from a row with NODE_COLUMNS."""
    return Node(
        level=row.level,
        number=row.number,
        first_child=row.first_child,
        children=row.children,
        start=TextOffset(row.start_position, row.start_offset),
        end=TextOffset(row.end_position, row.end_offset),
        summary=row.summary,
        made=SummarySource(row.made),
        text_tokens=row.text_tokens,
        summary_tokens=row.summary_tokens,
    )


def _stored(row: Any) -> StoredNode:
    return StoredNode(
        node=node_of(row),
        revision=row.revision,
        created_at=row.created_at,
        parent=row.parent,
    )
