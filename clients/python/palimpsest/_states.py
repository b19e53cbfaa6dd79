"""State vectors and working contexts, to and from the proto's messages."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._memories import Blocked
from palimpsest._values_common import ChatMessage, PositionRange, ReadPoint
from palimpsest._values_log import Chunk

#: How a state vector was written; "unknown" only where the service is newer.
VectorOrigin = Literal["task", "model", "cut", "skipped", "unknown"]
#: A form of a working context.
ContextForm = Literal["parts", "text", "messages"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateVector:
    """A paragraph that replaces compressed chunks. It is immutable."""

    #: The revision that added it; 0 for the task prompt.
    revision: int
    #: 1: of chunks; 2 and up: an episode, of vectors of the level below.
    level: int
    text: str
    #: Tokens of the text, as its model counts them.
    tokens: int
    #: How it was written.
    origin: VectorOrigin
    #: The chunks that it replaces; None for the task prompt.
    positions: PositionRange | None
    #: The chunks among these that the previous vector does not cover.
    new_positions: PositionRange | None
    #: Revisions of the vectors that an episode was compressed from.
    children: tuple[int, ...]
    #: Replies of the model for it.
    replies: int
    #: Pinned strings that the model dropped and that were added after its text.
    added_pins: tuple[str, ...]
    #: When it was committed.
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingContext:
    """What an agent reads before a step; every chunk up to `head` is in it exactly once.

    The forms that were not asked for are empty.
    """

    #: What the vectors were read at: chunks up to its `applied_position` are compressed.
    read_point: ReadPoint
    #: The last position of the recent chunks.
    head: int
    #: One of each level that has any: the highest level first, M last.
    vectors: tuple[StateVector, ...]
    #: The chunks that are not compressed, in order of position.
    recent: tuple[Chunk, ...]
    #: All of it as a text.
    text: str
    #: All of it for a chat model.
    messages: tuple[ChatMessage, ...]
    #: Tokens of the vectors, and of the recent chunks, one for every four bytes.
    memory_tokens: int
    recent_tokens: int
    #: Whether a compression is due.
    compression_due: bool
    #: Why it is not complete, where the memory does not advance; else None.
    blocked: Blocked | None

    @property
    def tokens(self) -> int:
        """The tokens of all of it."""
        return self.memory_tokens + self.recent_tokens
