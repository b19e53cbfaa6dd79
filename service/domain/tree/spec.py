"""The spec of a summary tree: how it is built and navigated."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from service.domain.values.memory_kinds import OnFailure, ReplyFormat


class WorkingMemory(StrEnum):
    """What navigation carries down the path (section 3): the summaries of what it entered."""

    OFF = "off"
    #: Cut to its limit, the nearest summaries first.
    CUT = "cut"
    #: Summarized by the model when it passes its limit (the footnote's open idea).
    SUMMARIZED = "summarized"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSpec:
    """How a tree is kept. It never changes."""

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
    #: Model for building as provider/name; empty means the service's default.
    model: str = ""
    #: Model for navigating; empty means the one for building.
    navigation_model: str = ""
    reply_format: ReplyFormat = ReplyFormat.AUTO
    #: SKIP: a text that cannot be summarized is stood for by its beginning.
    on_failure: OnFailure = OnFailure.STALL

    @property
    def linger_ms(self) -> int:
        """A tree reads chunks as they come: a text is part of it before it is summarized."""
        return 0

    def changed(self, changes: Mapping[str, Any]) -> "TreeSpec":
        """The spec with other fields."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "TreeSpec":
        """The spec from `to_json`. Raises ValueError for what it does not know."""
        unknown = value.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"a spec of a newer release: {', '.join(sorted(unknown))}")
        return cls(**{name: _READ.get(name, _as_it_is)(held) for name, held in value.items()})


def _as_it_is(value: Any) -> Any:
    return value


_READ: dict[str, Any] = {
    "working_memory": WorkingMemory,
    "reply_format": ReplyFormat,
    "on_failure": OnFailure,
}
