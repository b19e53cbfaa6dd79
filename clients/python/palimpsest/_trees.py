"""Trees, their nodes and the text under them, to and from the proto's messages."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._convert import value_of
from palimpsest._memories import MemoryInfo, memory
from palimpsest._values_common import CharacterRange, ReadPoint
from palimpsest.v1 import tree_service_pb2

#: How a summary was written; "unknown" only where the service is newer.
NodeOrigin = Literal["model", "joined", "cut", "skipped", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRange:
    """Text of a log that may begin and end within a chunk."""

    #: It begins in this chunk, after so many characters of the chunk's text.
    first_position: int
    first_offset: int
    #: It ends in this chunk, before so many characters; 0: with the chunk.
    last_position: int
    last_offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeNode:
    """A node of a tree. It is immutable, but for the parent that it gets."""

    #: level.number, for example "0.17".
    id: str
    #: 0 for leaves.
    level: int
    #: 1, 2, 3 … on its level.
    number: int
    #: The node above it; empty while there is none.
    parent: str
    #: The nodes below it, in the order of the text; empty for a leaf.
    children: tuple[str, ...]
    #: The text under it.
    text_range: TextRange
    #: What represents the text.
    summary: str
    #: How it was written.
    origin: NodeOrigin
    #: Tokens of the text under it, and of the summary.
    text_tokens: int
    summary_tokens: int
    #: The revision that added it.
    revision: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLevel:
    """A level of a tree."""

    #: 0 for the leaves.
    level: int
    #: How many nodes it has.
    node_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """A chunk's text as a model reads it, or a part of it."""

    #: The chunk.
    position: int
    #: Which characters of its text.
    characters: CharacterRange | None
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOutline:
    """A tree as of a revision."""

    #: The tree as a memory.
    info: MemoryInfo
    #: What was read. All chunks up to its `applied_position` are in the tree, if only in its tail.
    read_point: ReadPoint
    #: From the leaves upwards.
    levels: tuple[TreeLevel, ...]
    #: The nodes without a parent, in the order of the text; of a sealed tree the root.
    tops: tuple[TreeNode, ...]
    #: What is not summarized yet; None when nothing is.
    tail: TextRange | None


def tree_outline(message: tree_service_pb2.Tree) -> TreeOutline:
    """Returns the outline of a tree."""
    return value_of(TreeOutline, message, info=memory(message.memory))
