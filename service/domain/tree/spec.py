"""The spec of a summary tree: how it is built and navigated."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, runtime_checkable

from service.domain.values.memory_specs import MemorySpec, ReaderName, ReplyFormat, Way


class WorkingMemory(StrEnum):
    """What navigation carries down the path (section 3): the summaries of what it entered."""

    OFF = "off"
    #: Cut to its limit, the nearest summaries first.
    CUT = "cut"
    #: Summarized by the model when it passes its limit (the footnote's open idea).
    SUMMARIZED = "summarized"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSpec(MemorySpec):
    """How a tree is kept. Its `model` builds; SKIP: a text that cannot be summarized is stood for
    by its beginning."""

    kind = "tree"
    ways: ClassVar = {Way.TREE: ReaderName.MEMWALKER}
    model_fields = ("model", "navigation_model")
    parsers: ClassVar = {
        **MemorySpec.parsers,
        "working_memory": WorkingMemory,
        "reply_format": ReplyFormat,
    }

    #: Tokens of a segment, the text under a leaf, at most; 64 to 100,000.
    segment_tokens: int = 1000
    #: Children of a node at most; 2 to 32.
    max_children: int = 8
    #: Tokens of a node's summary at most; 16 to 8,000. The children's summaries together
    #: are their parent's where they have no more than that; else the model compresses them.
    summary_tokens: int = 250
    #: Whether the model says why before it moves. Weak models do better without (table 3).
    reasoning: bool = True
    working_memory: WorkingMemory = WorkingMemory.CUT
    #: Tokens of the working memory at most; 16 to 32,000.
    working_memory_tokens: int = 500
    #: Model for navigating; empty means the one for building.
    navigation_model: str = ""
    reply_format: ReplyFormat = ReplyFormat.AUTO

    def as_tree(self) -> "TreeSpec":
        """Returns how its levels are navigated."""
        return self


@runtime_checkable
class Navigable(Protocol):
    """How a memory is kept whose levels can be navigated."""

    def as_tree(self) -> TreeSpec:
        """Returns how its levels are navigated."""
