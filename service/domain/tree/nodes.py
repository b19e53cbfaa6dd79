"""Nodes of a tree, and the parts of the log that they cover."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from service.domain.access.trust import Trust
from service.domain.prompting.flows import Fetch
from service.domain.search.entries import WrittenEntry, text_entries


@dataclass(frozen=True, order=True, slots=True)
class TextOffset:
    """A spot between two characters of a session's log.

    The end of a chunk is always written as the beginning of the next position, so that
    equal offsets are equal values.
    """

    #: A position of the log, from 1; one after the head for the end of the log.
    position: int
    #: Characters into the chunk's text as a model reads it (`Chunk.as_text`).
    offset: int = 0

    @property
    def last_position(self) -> int:
        """The last position that has text before this offset; 0 for the log's beginning."""
        return self.position if self.offset else self.position - 1


class SummarySource(StrEnum):
    """Where a summary comes from."""

    #: The model wrote it.
    MODEL = "model"
    #: It is the children's summaries, which are short enough.
    JOINED = "joined"
    #: The model wrote it and it was too long: it was cut at a sentence.
    CUT = "cut"
    #: The model failed for good: it is the beginning of the text.
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node of a tree. It never changes."""

    #: 0 for leaves; a parent is one above its children.
    level: int
    #: 1, 2, 3 … on its level, in the order of the text.
    number: int
    #: Number of the first child, on the level below; 0 for a leaf.
    first_child: int = 0
    #: How many children; 0 for a leaf.
    children: int = 0
    #: The text under it: from here …
    start: TextOffset
    #: … to before here.
    end: TextOffset
    summary: str
    made: SummarySource
    #: Tokens of the text under it, and of the summary.
    text_tokens: int
    summary_tokens: int

    @property
    def node_id(self) -> str:
        """Its name within the tree: level and number."""
        return f"{self.level}.{self.number}"

    @property
    def from_position(self) -> int:
        """The first position that it covers, at least in part."""
        return self.start.position

    @property
    def to_position(self) -> int:
        """The last position that it covers, at least in part."""
        return self.end.last_position


def node_entries(node: Node, revision: int) -> Iterator[WrittenEntry]:
    """Yields what searches find of a node: its summary."""
    for one in text_entries(node.node_id, node.summary):
        yield WrittenEntry(
            entry=one,
            revision=revision,
            first_position=node.from_position,
            last_position=node.to_position,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """A node as a reader meets it: stored, or made up over what has no parent yet.

    Ids: "3.1" (level.number) of a stored node; "root" and "v1.2" of nodes that stand in
    for parents which are not there yet; "t.1" of a piece of the unsummarized tail.
    """

    node_id: str
    #: As of a stored node; 0 for a piece of the tail.
    level: int
    #: The summary; the beginning of the text for a piece of the tail.
    summary: str
    #: Ids of the children in the order of the text; empty for what holds text itself.
    children: tuple[str, ...]
    start: TextOffset
    end: TextOffset
    #: Tokens of the text under it.
    text_tokens: int
    #: Whether it is a stored node, which never changes.
    is_stored: bool

    @property
    def is_leaf(self) -> bool:
        """Whether it holds text itself."""
        return not self.children


@dataclass(frozen=True, kw_only=True, slots=True)
class Children(Fetch):
    """The children of a node, in the order of the text. Its reply is a tuple of View."""

    node_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Fetch):
    """The text under a leaf or a piece of the tail. Its reply is a LeafText."""

    node_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafText:
    """The text under a leaf or a piece of the tail."""

    text: str
    #: The least trusted level of what is in it.
    trust: Trust = Trust.TRUSTED


@dataclass(frozen=True, kw_only=True, slots=True)
class BestLeaves(Fetch):
    """The leaves and pieces of the tail whose text fits a question best.

    Its reply is a tuple of paths, best first: each a tuple of View from a child of the root
    down to the leaf.
    """

    query: str
    #: 1 to 32.
    count: int
