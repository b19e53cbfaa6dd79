"""Sessions, chunks and what a search returns: plain values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypedDict

from palimpsest._values_common import PositionRange


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


ChunkKind = Literal["text", "message", "agent_step"]


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
    #: Of one of these kinds.
    kinds: Collection[ChunkKind]
    #: Of one of these threads, of none of those, from one of these sources; an empty one
    #: stands for chunks that have none.
    threads: Collection[str]
    excluded_threads: Collection[str]
    sources: Collection[str]
    #: With all of these keys and values.
    metadata: Mapping[str, str] | None


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


#: By what chunks are found; "auto": by both where vectors can be searched, else by words.
SearchMode = Literal["auto", "words", "vectors", "hybrid"]
#: By what was searched; "unknown" only where the service is newer.
SearchedBy = Literal["words", "vectors", "hybrid", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundChunk:
    """A chunk that fits a query."""

    chunk: Chunk
    #: The chunk as one text, which the characters below count in.
    text: str
    #: 1, 2, 3 …
    rank: int
    #: Of the fusion; compares chunks of one result only.
    score: float
    #: Its rank by words alone, and by vectors alone; None: not found by them.
    words_rank: int | None
    vectors_rank: int | None
    #: BM25; and the cosine of the angle between query and chunk, -1 to 1.
    words_score: float | None
    vectors_score: float | None
    #: The characters of `text` that fit best; both 0: none in particular.
    from_character: int
    to_character: int

    @property
    def excerpt(self) -> str:
        """What of the text fits best; empty: nothing in particular."""
        return self.text[self.from_character : self.to_character]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchIndex:
    """How far words and vectors of a session are."""

    #: Position of the newest chunk.
    head: int
    #: Chunks up to here have words in the index, and vectors; 0: none has.
    indexed_position: int
    embedded_position: int
    #: A configuration of PostgreSQL's full-text search.
    language: str
    #: The model of the vectors; empty where there are none.
    embedding_model: str
    #: Why vectors cannot be searched; empty when they can.
    vectors_unavailable: str
    #: Why the last try to write words failed, or else to embed; empty when neither did.
    failure: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search found."""

    #: Best first.
    chunks: tuple[FoundChunk, ...]
    mode: SearchedBy
    #: How far the index was.
    index: SearchIndex
    #: Chunks that were not searched by words: they have none yet, and there are too many newer
    #: ones. 0 as a rule; more where much was appended within seconds.
    unread_chunks: int = 0
