"""The table of summary trees."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Computed,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

from storage.tables.common import count, created, ids, metadata, of_revision

tree_node = Table(
    "tree_node",
    metadata,
    # A node of a summary tree, written once. The keys prevent a gap, an overlap or a second node
    # over the same text: see `tree_node_chain_fkey`.
    *ids("session_key", "memory_id", "tenant_id"),
    # 0 for leaves.
    Column("level", Integer, nullable=False),
    # 1, 2, 3 … on its level.
    count("number"),
    # The revision that added it.
    count("revision"),
    # On the level below; 0 and 0 for a leaf.
    count("first_child"),
    Column("children", Integer, nullable=False),
    # Beginning and end of its text: positions, and characters into their chunks.
    count("start_position"),
    count("start_offset"),
    count("end_position"),
    count("end_offset"),
    Column("summary", Text, nullable=False),
    Column("made", Text, nullable=False),
    count("text_tokens"),
    count("summary_tokens"),
    # The words of a leaf's text, for retrieval.
    Column("words", TSVECTOR),
    Column("previous", BigInteger, Computed("NULLIF(number - 1, 0)", persisted=True)),
    created(),
    PrimaryKeyConstraint("session_key", "memory_id", "level", "number", name="tree_node_pkey"),
    # The chain below refers to it.
    UniqueConstraint(
        "session_key",
        "memory_id",
        "level",
        "number",
        "end_position",
        "end_offset",
        name="tree_node_end",
    ),
    # The chain: on every level a node begins where its predecessor ended.
    ForeignKeyConstraint(
        ["session_key", "memory_id", "level", "previous", "start_position", "start_offset"],
        [
            "tree_node.session_key",
            "tree_node.memory_id",
            "tree_node.level",
            "tree_node.number",
            "tree_node.end_position",
            "tree_node.end_offset",
        ],
        name="tree_node_chain_fkey",
    ),
    of_revision("tree_node_revision_fkey"),
    CheckConstraint("number >= 1 AND level >= 0", name="tree_node_place"),
    CheckConstraint(
        "number > 1 OR (start_position = 1 AND start_offset = 0)", name="tree_node_first"
    ),
    CheckConstraint(
        "(end_position, end_offset) > (start_position, start_offset)", name="tree_node_range"
    ),
    CheckConstraint(
        "(level = 0) = (children = 0) AND (level = 0) = (first_child = 0)",
        name="tree_node_children",
    ),
    CheckConstraint("made IN ('model', 'joined', 'cut', 'skipped')", name="tree_node_made"),
    # The parent of a child; no child is the first of two.
    Index(
        "tree_node_parent",
        "session_key",
        "memory_id",
        "level",
        "first_child",
        unique=True,
        postgresql_where=text("level > 0"),
    ),
    # For removals: references to a removed node or revision.
    Index("tree_node_next", "session_key", "memory_id", "level", "previous"),
    Index("tree_node_by_revision", "session_key", "memory_id", "revision"),
)
