"""What the client returns: plain values, no protobuf messages."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """A session."""

    name: str
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Content of all chunks, in bytes of UTF-8.
    content_bytes: int
    created_at: datetime


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
    metadata: dict[str, str] = field(default_factory=dict)
    producer_id: str
    producer_sequence: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Everything up to here is durable."""

    #: The producer's own number.
    producer_sequence: int
    #: Place in the session's log.
    position: int
    #: Carry it in a read to see these chunks applied.
    token: str


class MemoryStatus(StrEnum):
    """Whether a memory goes on."""

    ACTIVE = "active"
    STALLED = "stalled"


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
    #: The shape of the memory, as class source.
    schema_source: str
    task: str
    #: Model that it names; empty for the service's default.
    model: str
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: The session's head at the same moment.
    head: int
    status: MemoryStatus
    #: Set when it is stalled.
    stall: Stall | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryState:
    """A memory's value at one revision."""

    info: MemoryInfo
    #: The state.
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
    #: "add" or "update".
    op: str
    #: An RFC 9535 normalized path.
    path: str
    value: Any
    #: The model said the other op; the path decided.
    op_corrected: bool
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
class Usage:
    """Model calls, summed."""

    calls: int
    input_tokens: int
    #: Of these, those that the prefix cache predicted to be warm.
    predicted_cached_tokens: int
    #: None when no call reported any: unknown is not 0.
    reported_cached_tokens: int | None
    output_tokens: int
    #: In millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None


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
class Citation:
    """A place in the log that an answer rests on."""

    position: int
    #: The path of the memory that it was written to.
    path: str
    #: The revision that wrote it.
    revision: int
    excerpt: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The memory is not yet as far as asked."""

    applied_position: int
    wanted_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The answer is being made."""

    answer_id: str
    revision: int
    applied_position: int


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
class Answer:
    """A stored reply to a query."""

    answer_id: str
    query: str
    #: "pending", "complete" or "failed".
    status: str
    text: str
    citations: tuple[Citation, ...]
    #: Where it was read.
    revision: int
    applied_position: int
    #: The model that wrote it. "offline/extractive" is no language model.
    model: str
    #: Why it failed.
    failure: str
    usage: Usage
    created_at: datetime
