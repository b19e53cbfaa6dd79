"""Values that several rooms share: ranges of positions and characters, read points, messages."""

from dataclasses import dataclass
from typing import Literal

#: How far long work is; "abandoned" only of answers. "unknown" only where the service is newer.
OperationState = Literal[
    "pending", "running", "done", "failed", "cancelled", "abandoned", "unknown"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionRange:
    """Positions of a log, both included, from 1 on."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CharacterRange:
    """Characters of a chunk's text, counted in code points, up to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPoint:
    """What a read returned: no read is silently stale."""

    #: The revision of the memory; 0 where the log was read.
    revision: int
    #: All chunks up to this position were applied.
    applied_position: int
    #: For `after=` of a later read, which then is at least as fresh.
    read_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    """A message for a chat model."""

    #: "system", "user", "assistant", or the role of a message chunk.
    role: str
    content: str
