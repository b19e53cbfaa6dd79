"""Sessions, chunks and acks: plain values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypedDict

from palimpsest._values_common import PositionRange

ChunkKind = Literal["text", "message", "agent_step"]
DefaultMemory = Literal["none", "general"]
#: Why content was removed; "unknown" only where the service is newer.
RedactionCause = Literal["redacted", "expired", "unknown"]


#: How much a source is trusted.
SourceTrust = Literal["trusted", "unverified", "blocked", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How many days the data of a session is kept; nothing expires unless a policy says so.

    None: as the tenant's policy says. 0: for ever.
    """

    #: The session itself, after the last append, question or change of a memory.
    idle_session_days: int | None = None
    #: The session itself, from its creation on.
    session_days: int | None = None
    #: Content of chunks that all memories have read; their positions stay.
    chunk_days: int | None = None
    #: Texts of model calls; tokens and costs stay.
    call_days: int | None = None
    #: Answers, with trajectories and ratings.
    answer_days: int | None = None
    #: Trajectories of answers.
    trajectory_days: int | None = None
    #: All revisions of PRISM memories; of older ones the last of each day is kept.
    history_days: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOrigin:
    """Where an imported session is from."""

    #: Its id where it was exported.
    session: str
    export_id: str
    exported_at: datetime
    imported_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """A session."""

    id: str
    #: What its text is searched in.
    language: str
    #: Your own values; no model sees them.
    metadata: dict[str, str] = field(default_factory=dict)
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Content and metadata of all chunks, in bytes of UTF-8.
    content_bytes: int
    #: Changes with each update of the session; for `Session.update`.
    etag: str
    created_at: datetime
    #: The memory that its first append makes if it has none by then.
    default_memory: DefaultMemory = "none"
    #: Where it differs from the tenant's policy.
    retention: Retention = Retention()
    #: None: it was not imported.
    imported_from: SessionOrigin | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Redaction:
    """A removal of the content of chunks."""

    #: For `Client.operation`; empty: it is of no operation.
    operation: str
    #: "redacted": `Session.forget`; "expired": a policy of retention.
    cause: RedactionCause
    #: Which credentials requested it. This and all that follows is empty in searches.
    principal: str
    reason: str
    #: How many chunks it redacted.
    chunks: int
    #: None: not given.
    redacted_at: datetime | None
    #: Rows that were removed with the chunks, by table; empty but in operations.
    removed: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk, of the log or to be appended. Parts that its kind does not have are empty."""

    #: Its place in the log: 1, 2, 3 …; 0: it is of no log.
    position: int = 0
    kind: ChunkKind
    text: str = ""
    #: The speaker of a message.
    role: str = ""
    observation: str = ""
    thought: str = ""
    action: str = ""
    #: Whether the observation of a step came before its thought and action, and is read
    #: before them.
    observed_first: bool = False
    #: The conversation within the session that it belongs to; empty: none.
    thread: str = ""
    #: The person, device, document or system that it comes from; empty: not given.
    source: str = ""
    #: When it happened; None: not given.
    occurred_at: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    #: The producer that sent it; empty for `session.append`.
    producer_id: str = ""
    producer_sequence: int = 0
    #: When it was committed; None: it is of no log.
    created_at: datetime | None = None
    #: Why it is empty: its content was removed. None: it has its content.
    redaction: Redaction | None = None
    #: How much its source is trusted now.
    trust: SourceTrust = "trusted"

    @property
    def step_parts(self) -> tuple[tuple[str, str], ...]:
        """The parts of a step that are not empty, each after its name, in the order in which
        a model reads them."""
        seen = ("Observation", self.observation)
        done = (("Thought", self.thought), ("Action", self.action))
        parts = (seen, *done) if self.observed_first else (*done, seen)
        return tuple((name, text) for name, text in parts if text)


class ChunkLabels(TypedDict, total=False):
    """What a chunk of any kind may have besides its content."""

    #: The conversation within the session that it belongs to: an id. Models read it, with
    #: source and time, in a line before the content.
    thread: str
    #: The person, device, document or system that it comes from: an id, such as "user:42".
    source: str
    #: When it happened; with a time zone.
    occurred_at: datetime | None
    #: Kept and returned; never shown to a model.
    metadata: Mapping[str, str] | None


class ChunkFilterOptions(TypedDict, total=False):
    """Which chunks are wanted: those that match all that is given."""

    #: Committed from the first to before the second.
    since: datetime | None
    until: datetime | None
    #: Happened from the first to before the second; chunks without `occurred_at` do not match.
    occurred_since: datetime | None
    occurred_until: datetime | None
    #: Only chunks of one of these kinds.
    kinds: Collection[ChunkKind]
    #: Only chunks of one of these threads, of none of those, from one of these sources; an empty
    #: one stands for chunks that have none.
    threads: Collection[str]
    excluded_threads: Collection[str]
    sources: Collection[str]
    #: With all of these keys and values.
    metadata: Mapping[str, str] | None
    #: From sources that are at least so trusted: "trusted" or "unverified"; None: from all.
    min_trust: Literal["trusted", "unverified"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Everything up to here is durable."""

    #: The producer's own number.
    producer_sequence: int
    #: Place in the session's log.
    position: int
    #: For `after=` of a read that must see these chunks applied.
    read_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Appended:
    """What was appended; it is durable."""

    #: Where it is in the session's log.
    positions: PositionRange
    #: For `after=` of a read that must see these chunks applied.
    read_token: str
    #: The id under which the same can be appended again without being stored twice.
    request_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """What `Session.remember` stored; it is durable."""

    #: From the first chunk to the last in the session's log; chunks of other clients may be
    #: between them. None: nothing was left to store.
    positions: PositionRange | None
    #: For `after=` of a read that must see these chunks applied; empty: nothing was stored.
    read_token: str
    #: The id under which the same can be remembered again without being stored twice.
    request_id: str
    #: Chunks that the messages are: a step for each call of a tool, several for a long text.
    chunks: int
    #: Messages that were left out: those of the system, and empty ones.
    skipped: int
