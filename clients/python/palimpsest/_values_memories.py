"""Memories of all kinds, their history and their contexts: plain values."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from palimpsest._values_answers import Loss
from palimpsest._values_log import Chunk
from palimpsest._values_specs import (
    AllowedOps,
    Coercion,
    Encoding,
    ReplyFormat,
    StateSettings,
    Steps,
    TreeSettings,
)

#: Where a summary comes from; "unknown" only where the service is newer.
Made = Literal["model", "joined", "cut", "skipped", "unknown"]


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


#: What to do when a compression is due that is not made yet: take the older vectors and
#: more recent steps, or wait for it.
Freshness = Literal["latest", "wait"]
#: Where a state vector comes from; "unknown" only where the service is newer.
VectorMade = Literal["task", "model", "cut", "skipped", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateVector:
    """A state vector. It never changes."""

    #: That brought it; 0 for the task prompt.
    revision: int
    #: 1: of steps; 2 and up: an episode, of vectors of the level below.
    level: int
    text: str
    #: Of the text, as the model that made it counts.
    tokens: int
    made: VectorMade
    #: It stands for the positions after_position + 1 to to_position; what is new in it is
    #: from_position + 1 to to_position.
    after_position: int
    from_position: int
    to_position: int
    #: Revisions of the vectors that an episode was made from.
    children: tuple[int, ...]
    #: Replies of the model that it took.
    replies: int
    #: Pinned strings that the model had dropped.
    appended: tuple[str, ...]
    #: When it was committed; None in a working context.
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    """A message for a chat model."""

    role: str
    content: str


#: What a memory is.
MemoryKind = Literal["prism", "tree", "state"]
#: A form of a working context.
ContextForm = Literal["parts", "text", "messages"]


class MemoryStatus(StrEnum):
    """What a memory is doing. Only a stalled one needs a client: the others go on by themselves."""

    ACTIVE = "active"
    #: It stopped at `blocked.position` and waits for `Memory.retry`.
    STALLED = "stalled"
    #: A tree that is complete: it reads nothing more.
    SEALED = "sealed"
    #: Its model gives no reply for now; it tries again.
    WAITING = "waiting"
    #: A budget does not allow its next model call.
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """Why a memory does not advance."""

    #: In a sentence or two, with what to do.
    cause: str
    #: First position of the step that failed; 0 unless it is stalled.
    position: int
    #: How often that step was tried; 0 unless it is stalled.
    attempts: int
    #: Since when; None where that is not recorded.
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """A memory and how far it is."""

    session: str
    #: Unique within the session.
    id: str
    kind: MemoryKind
    #: Of a tree; None for others.
    tree: TreeSettings | None
    #: Of a state memory; None for others.
    state: StateSettings | None
    #: From here up to `skip_failures` of a PRISM memory; others have these empty.
    #: The shape of the memory, as class source, as the model is shown it.
    schema_source: str
    task: str
    question: str
    #: How answers are written: their form, length, language; empty: in full sentences.
    final_task: str
    #: Model that it names; empty for the service's default.
    model: str
    encoding: Encoding
    allowed_ops: AllowedOps
    coercion: Coercion
    reply_format: ReplyFormat
    steps: Steps
    #: A step reads chunks up to this many tokens.
    chunk_tokens: int
    #: Amendments are folded into a new base when they pass this many tokens, if not before.
    fold_tokens: int
    #: The memory is consolidated when it passes this many tokens, or its steps are focused; 0, of
    #: a memory that an earlier release made: half of its model's window.
    memory_tokens: int
    #: How long a step waits for more chunks while it has few; None: the service's default,
    #: while all that waits is messages.
    linger_seconds: float | None
    #: A step that failed for good is skipped; else the memory stalls.
    skip_failures: bool
    status: MemoryStatus
    #: Why it does not advance, when it is stalled, waiting or over budget; else None.
    blocked: Blocked | None
    #: The newest revision.
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: The session's head at the same moment.
    head: int
    #: The memory that it was rebuilt from; else empty.
    rebuilt_from: str
    #: Of a state memory: no compression is due.
    idle: bool
    created_at: datetime
    #: Of a PRISM memory: what its steps lost, though it continues; empty when all is well.
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryState:
    """A memory's value at one revision."""

    info: MemoryInfo
    #: The state. Of a tree: `sealed`, `tops` and `tail`, as `Tree.outline` has them.
    value: dict[str, Any]
    #: The revision that it is the state at.
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: For `after=` of a later read, which then is at least as fresh.
    read_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flushed:
    """The log as it was when the wait for more chunks was ended."""

    #: For `after=` of a read that must see these chunks applied.
    read_token: str
    #: Position of the newest chunk then.
    head: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOutline:
    """A tree as of a revision."""

    info: MemoryInfo
    #: What was read.
    revision: int
    #: All chunks up to here are in it, if only in its tail.
    applied_position: int
    #: From the leaves upwards.
    levels: tuple[TreeLevel, ...]
    #: The nodes without a parent, in the order of the text; of a closed tree the root.
    tops: tuple[TreeNode, ...]
    #: What is not summarized yet; None when nothing is.
    tail: TreeTail | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentStep:
    """A chunk that is not compressed, with its size."""

    chunk: Chunk
    #: One for every four bytes.
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingContext:
    """What an agent reads before a step; every chunk up to `head` is in it exactly once.

    The forms that were not asked for are empty.
    """

    #: The revision that the vectors are of.
    revision: int
    #: Chunks up to here are compressed; the recent ones come after it.
    applied_position: int
    #: The last position of the recent ones.
    head: int
    #: The highest level first, M last.
    vectors: tuple[StateVector, ...]
    recent: tuple[RecentStep, ...]
    #: All of it as a text.
    text: str
    #: All of it for a chat model.
    messages: tuple[ChatMessage, ...]
    #: Tokens of the vectors, and of the recent chunks.
    memory_tokens: int
    recent_tokens: int
    #: A compression is due and not made yet.
    compression_due: bool
    #: Why it is not made, where the memory has stalled or a budget holds it; else None.
    trouble: str | None
    #: Carry it in a later read to see at least this.
    token: str

    @property
    def tokens(self) -> int:
        """Of all of it."""
        return self.memory_tokens + self.recent_tokens
