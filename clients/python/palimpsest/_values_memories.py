"""Memories of all kinds, their history and their contexts: plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypedDict

from palimpsest._values_answers import Loss
from palimpsest._values_common import ChatMessage
from palimpsest._values_log import Chunk
from palimpsest._values_spend import Usage

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


#: What the number of steps between two compressions goes by.
StatePeriod = Literal["fixed", "adaptive"]
#: What to do when a compression is due that is not made yet: take the older vectors and
#: more recent steps, or wait for it.
Freshness = Literal["latest", "wait"]
#: Where a state vector comes from; "unknown" only where the service is newer.
VectorMade = Literal["task", "model", "cut", "skipped", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSettings:
    """How state vectors are kept. Zeros and empty texts are the service's defaults, unless
    it is said otherwise.
    """

    #: The task prompt, the first state vector.
    task: str = ""
    #: N: steps that one compression takes; 1 to 1,000.
    period: int = 0
    period_kind: StatePeriod = "fixed"
    #: Steps are also compressed before they have more tokens together; None: 4,000; 0: never
    #: for that.
    period_tokens: int | None = None
    #: Steps are also compressed when none has come for so long; 0: never for that.
    idle_seconds: float = 0.0
    #: Tokens of a state vector at most; 32 to 32,000.
    state_tokens: int = 0
    #: Strings that every state vector has word for word.
    pinned: tuple[str, ...] = ()
    #: K: so many vectors are compressed into one of the next level; 2 to 64, 0: no episodes.
    episode_vectors: int = 0
    #: Model as provider/name.
    model: str = ""
    #: How the model writes its moves when a question navigates.
    reply_format: ReplyFormat = "auto"
    #: What cannot be compressed is stood for by its beginning; else the memory stalls.
    skip_failures: bool = False


class AgentSettings(TypedDict, total=False):
    """What of `palimpsest.StateSettings` a loop may say about its memory."""

    task: str
    period: int
    period_kind: StatePeriod
    period_tokens: int | None
    idle_seconds: float
    state_tokens: int
    pinned: Sequence[str]
    episode_vectors: int
    model: str
    reply_format: ReplyFormat
    skip_failures: bool


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


#: How a memory is written into prompts: a base and a line for each amendment since, or
#: one JSON object.
Encoding = Literal["adaptive", "amendments", "in_place"]
#: What the model may do to a memory.
Operations = Literal["add_and_update", "add_only"]
#: What happens to a value of another type than the schema's.
Coercion = Literal["refuse", "lossless"]
#: What a step is shown of a memory that is larger than its `memory_tokens`: all of it, and then
#: the memory is consolidated; or what fits the step's text, and then it may grow.
Steps = Literal["whole", "focused"]
#: What a memory is.
MemoryKind = Literal["prism", "tree", "state"]
#: A form of a working context.
ContextForm = Literal["parts", "text", "messages"]
#: What an amendment does at its path; "unknown" only where the service is newer.
Op = Literal["add", "update", "remove", "unknown"]
#: What caused a revision.
RevisionKind = Literal[
    "create",
    "step",
    "skip",
    "fold",
    "edit",
    "rollback",
    "consolidation",
    "schema",
    "build",
    "seal",
    "episode",
    "unknown",
]


class MemoryStatus(StrEnum):
    """Whether a memory continues."""

    ACTIVE = "active"
    STALLED = "stalled"
    #: A tree that is closed: it reads nothing more.
    SEALED = "sealed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """Where and why a memory gave up."""

    #: First position of the step that failed.
    position: int
    cause: str
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """A memory and how far it is."""

    session: str
    name: str
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
    #: How answers are to be: their form, length, language; empty: in full sentences.
    final_task: str
    #: Model that it names; empty for the service's default.
    model: str
    encoding: Encoding
    operations: Operations
    coercion: Coercion
    reply_format: ReplyFormat
    steps: Steps
    #: Chunks are taken together up to this many tokens a step.
    chunk_tokens: int
    #: Amendments are folded into a new base when they pass this many tokens, if not before.
    fold_tokens: int
    #: The memory is consolidated when it passes this many tokens, or its steps are focused; 0, of
    #: a memory that an earlier release made: half of its model's window.
    memory_tokens: int
    #: How long a step waits for more chunks while it has few; None: the service's default,
    #: while all that waits is messages.
    linger_seconds: float | None
    #: A step that failed for good is passed over; else the memory stalls.
    skip_failures: bool
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: The session's head at the same moment.
    head: int
    status: MemoryStatus
    #: Set when it is stalled.
    stall: Stall | None
    #: The memory that it was rebuilt from; else empty.
    rebuilt_from: str
    #: Up to here the log is read before the consolidation that was asked for; else None.
    consolidate_position: int | None
    #: A tree is closed once everything up to here is in it; None when that was not asked for.
    seal_position: int | None
    #: Why a budget does not allow its next model call; None when it continues.
    held_reason: str | None
    #: Why its model gives no reply for now; None when that does not delay it. It continues
    #: by itself.
    waiting_cause: str | None
    #: Of a state memory: no compression is due.
    resting: bool
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
    #: Carry it in a later read to see at least this.
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """One change of a memory."""

    revision: int
    ordinal: int
    #: The chunks that were read for it: positions from_position + 1 to to_position.
    from_position: int
    to_position: int
    op: Op
    #: An RFC 9535 normalized path.
    path: str
    #: None when it is removed.
    value: Any
    #: The model said the other op; the path decided.
    op_corrected: bool
    #: What caused the revision.
    kind: RevisionKind
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """What a model proposed and the schema refused."""

    revision: int
    ordinal: int
    from_position: int
    to_position: int
    proposal: str
    reason: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """A committed change of a memory."""

    revision: int
    kind: RevisionKind
    #: The chunks that were read for it: positions from_position + 1 to to_position.
    from_position: int
    to_position: int
    #: The comment of an edit or a rollback.
    comment: str
    #: Of a rollback: the revision whose state it restored.
    restored_revision: int | None
    #: Of a change of the schema: the new schema as class source; else empty.
    schema_source: str
    #: How many amendments it has, and how many proposals were rejected.
    amendments: int
    rejections: int
    #: SHA-256 of the value after it, as canonical JSON; 32 bytes.
    value_digest: bytes
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A revision that a watch tells."""

    revision: Revision
    #: Its amendments, in order.
    amendments: tuple[Amendment, ...]
    #: There are more; `Memory.amendments` has them all.
    amendments_truncated: bool
    #: `Memory.watch` continues after this revision with it.
    resume_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenanceEntry:
    """An amendment that touched a path, and what it was made from."""

    amendment: Amendment
    #: The revision that has it.
    revision: Revision
    #: No later amendment has replaced it as a whole.
    in_effect: bool
    #: It first brought the value that the path holds now.
    origin: bool
    #: Position of the chunk that says it most clearly; 0 when none was read.
    best_position: int
    #: The chunks that were read for it, cut at 256 KiB.
    chunks: tuple[Chunk, ...]
    #: Some are missing; `Session.chunks` has them.
    chunks_truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A place where two states differ."""

    #: How the old side becomes the new one there.
    op: Op
    #: An RFC 9535 normalized path.
    path: str
    #: What the old side has there; None also when nothing ("add").
    old: Any
    #: What the new side has there; None also when nothing ("remove").
    new: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """Where two states differ; what is not listed is equal."""

    #: The revision of the old side, and of the new one.
    revision: int
    other_revision: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change; made by `put`, `add`, `update` or `remove`.

    A path is $['topics']['museum'][0], $.'topics'.'museum'[0] or /topics/museum/0.
    """

    op: Literal["put", "add", "update", "remove"]
    path: str
    #: What JSON can say, and the schema allows there; None for "remove".
    value: Any

    @classmethod
    def put(cls, path: str, value: Any) -> "Edit":
        """The path has the value then, whether there was one or not."""
        return cls("put", path, value)

    @classmethod
    def add(cls, path: str, value: Any) -> "Edit":
        """As `put`; it is marked as corrected when the path had a value."""
        return cls("add", path, value)

    @classmethod
    def update(cls, path: str, value: Any) -> "Edit":
        """As `put`; it is marked as corrected when the path had no value."""
        return cls("update", path, value)

    @classmethod
    def remove(cls, path: str) -> "Edit":
        """The path is gone then; later elements of a list move up."""
        return cls("remove", path, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """What came of edits."""

    #: The memory after them.
    info: MemoryInfo
    #: What was made of them, in order.
    amendments: tuple[Amendment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """What came of a fold."""

    info: MemoryInfo
    #: Whether there was something to fold.
    folded: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Flushed:
    """The log as it was when the wait for more chunks was ended."""

    #: Carry it in a read to see these chunks applied.
    token: str
    #: Position of the newest chunk then.
    head: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaDraft:
    """A schema that a model was asked to write."""

    draft_id: str
    #: What the texts are.
    domain: str
    #: A question of the kind that will be asked.
    example_query: str
    #: "pending", "complete" or "failed".
    status: str
    #: Class source, for `Session.create_memory`.
    schema_source: str
    #: The model that wrote it. "offline/extractive" is no language model.
    model: str
    #: Replies of the model that it took.
    attempts: int
    #: Why it failed.
    failure: str
    usage: Usage
    created_at: datetime


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
