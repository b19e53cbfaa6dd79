"""What the client returns: plain values, no protobuf messages."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from palimpsest import tree_values
from palimpsest.answer_values import Answer as Answer
from palimpsest.answer_values import Citation as Citation
from palimpsest.answer_values import Loss as Loss
from palimpsest.answer_values import Reading as Reading
from palimpsest.answer_values import Usage as Usage
from palimpsest.answer_values import Waiting as Waiting
from palimpsest.state_values import ChatMessage, StateSettings, StateVector
from palimpsest.tree_values import TreeLevel, TreeNode, TreeSettings, TreeTail

#: How a memory is written into prompts: a base and a line for each amendment since, or
#: one JSON object.
Encoding = Literal["adaptive", "amendments", "in_place"]
#: What the model may do to a memory.
Operations = Literal["add_and_update", "add_only"]
#: What happens to a value of another type than the schema's.
Coercion = Literal["refuse", "lossless"]
#: How the model writes its revisions; "auto" is "structured" where the model offers it.
ReplyFormat = tree_values.ReplyFormat
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """A session."""

    name: str
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Content and metadata of all chunks, in bytes of UTF-8; of those that an older release
    #: wrote without their metadata.
    content_bytes: int
    created_at: datetime
    #: What its text is searched in; empty: the service is older and does not say.
    language: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk of the log. Parts that its kind does not have are empty."""

    #: Its place in the log: 1, 2, 3 …
    position: int
    #: "text", "message" or "step".
    kind: str
    text: str = ""
    #: Who speaks, of a message.
    role: str = ""
    observation: str = ""
    thought: str = ""
    action: str = ""
    #: Whether the observation of a step came before its thought and action. None: it was appended
    #: before a service could say; its text has the observation first.
    observed_first: bool | None = False
    metadata: dict[str, str] = field(default_factory=dict)
    producer_id: str
    producer_sequence: int
    created_at: datetime

    @property
    def step_parts(self) -> tuple[tuple[str, str], ...]:
        """The parts of a step that are not empty, each behind its name, in the order in which
        a model reads them."""
        seen = ("Observation", self.observation)
        done = (("Thought", self.thought), ("Action", self.action))
        parts = (*done, seen) if self.observed_first is False else (seen, *done)
        return tuple((name, text) for name, text in parts if text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Everything up to here is durable."""

    #: The producer's own number.
    producer_sequence: int
    #: Place in the session's log.
    position: int
    #: Carry it in a read to see these chunks applied.
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Appended:
    """What was appended is durable, at `first_position` to `position` of the log."""

    first_position: int
    position: int
    #: Carry it in a read to see these chunks applied.
    token: str
    #: The name under which the same can be appended again without being stored twice.
    request_id: str

    @property
    def positions(self) -> range:
        """The place of each chunk in the session's log."""
        return range(self.first_position, self.position + 1)


class MemoryStatus(StrEnum):
    """Whether a memory goes on."""

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
    #: A tree is closed once everything up to here is in it; None when nobody asked for that.
    seal_position: int | None
    #: Why a budget does not allow its next model call; None when it goes on.
    held_reason: str | None
    #: Why its model gives no reply for now; None when it is not put off by that. It goes on
    #: by itself.
    waiting_cause: str | None
    #: Of a state memory: no compression is due.
    resting: bool
    created_at: datetime
    #: Of a PRISM memory: what its steps lost, though it goes on; empty when all is well.
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
    #: The chunks behind it: positions from_position + 1 to to_position.
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
    #: What was said about it by whoever made it by hand.
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
    #: `Memory.watch` goes on behind this revision with it.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Revised:
    """What came of edits."""

    #: The memory behind them.
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
class UsageLine:
    """Calls of one purpose and model."""

    purpose: str
    model: str
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageReport:
    """What a session's or a memory's model calls came to."""

    total: Usage
    lines: tuple[UsageLine, ...]


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
    #: Chunks up to here are compressed; the recent ones come behind it.
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
