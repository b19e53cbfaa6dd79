"""Trees as the client returns them: plain values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: How the model writes its moves; "auto" is "structured" where the model offers it.
ReplyFormat = Literal["auto", "text", "structured"]
#: What navigation carries down the path.
WorkingMemory = Literal["off", "cut", "summarized"]
#: Where a summary comes from; "unknown" only where the service is newer.
Made = Literal["model", "joined", "cut", "skipped", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSettings:
    """How a tree is built and navigated. Zeros and empty texts are the service's defaults."""

    #: Tokens of the text under a leaf at most; 64 to 100,000.
    segment_tokens: int = 0
    #: Children of a node at most; 2 to 32.
    max_children: int = 0
    #: Tokens of a summary at most; 16 to 8,000.
    summary_tokens: int = 0
    #: Whether the model says why before it moves. Weak models do better without.
    reasoning: bool = True
    working_memory: WorkingMemory = "cut"
    #: Tokens of the working memory at most; 16 to 32,000.
    working_memory_tokens: int = 0
    #: Model for summaries as provider/name.
    model: str = ""
    #: Model for navigation; empty means `model`.
    navigation_model: str = ""
    reply_format: ReplyFormat = "auto"
    #: What cannot be summarized is stood for by its beginning; else the tree stalls.
    skip_failures: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeNode:
    """A node of a tree. It never changes, but for the parent that it gets."""

    #: level.number, for example "0.17".
    node_id: str
    #: 0 for leaves.
    level: int
    #: 1, 2, 3 … on its level.
    number: int
    #: The node above it; empty while there is none.
    parent_id: str
    #: The nodes below it, in the order of the text; empty for a leaf.
    child_ids: tuple[str, ...]
    #: Where the text under it begins: a position, and characters into its text.
    from_position: int
    from_offset: int
    #: The last position under it; all of it where `to_offset` is 0, else so many characters.
    to_position: int
    to_offset: int
    summary: str
    made: Made
    #: Tokens of the text under it, and of the summary.
    text_tokens: int
    summary_tokens: int
    #: The revision that brought it.
    revision: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLevel:
    """A level of a tree."""

    #: 0 for the leaves.
    level: int
    #: How many nodes it has.
    nodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeTail:
    """Text that a tree has and that is not summarized yet."""

    #: Where it begins: a position, and characters into its text.
    from_position: int
    from_offset: int
    #: The position that it ends with.
    to_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """A chunk's text as a model reads it, or a part of it."""

    position: int
    #: Characters into the chunk's text: from here …
    from_offset: int
    #: … to before here.
    to_offset: int
    text: str
