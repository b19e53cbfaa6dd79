"""Chunks: the unit of the log, its digest and its text."""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from service.domain.access.trust import Trust

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ChunkKind(StrEnum):
    """What a chunk holds."""

    TEXT = "text"
    MESSAGE = "message"
    STEP = "step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """What a chunk holds, without its place in the log.

    Parts that a kind does not have are empty strings.
    """

    kind: ChunkKind
    #: TEXT and MESSAGE: the text.
    text: str = ""
    #: MESSAGE: who speaks.
    role: str = ""
    #: STEP: what the agent saw.
    observation: str = ""
    #: STEP: what it thought.
    thought: str = ""
    #: STEP: what it did.
    action: str = ""
    #: STEP: whether the observation came before the thought and the action. It is their result
    #: otherwise. None: the log did not say so yet; its text has the observation first.
    observed_first: bool | None = False
    #: The conversation within the session that it belongs to; empty: none.
    thread: str = ""
    #: Its speaker or origin; empty: not given.
    source: str = ""
    #: When it happened, where its producer says so.
    occurred_at: datetime | None = None
    #: Kept and returned, never shown to a model.
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Whether it is a tombstone: its content was removed, and all other fields are empty.
    is_redacted: bool = False

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """The content in its fixed order: role, text, observation, thought, action."""
        return (self.role, self.text, self.observation, self.thought, self.action)

    def is_empty(self) -> bool:
        """Returns whether there is nothing to read in it."""
        return not (self.text or self.observation or self.thought or self.action)

    def content_bytes(self) -> int:
        """Returns the size of the content in bytes of UTF-8, without metadata."""
        return sum(len(part.encode()) if part else 0 for part in self.parts)

    def metadata_bytes(self) -> int:
        """Returns the size of thread, source and metadata in bytes of UTF-8."""
        ids = len(self.thread.encode()) + len(self.source.encode())
        if not self.metadata:
            return ids
        pairs = self.metadata.items()
        return ids + sum(len(key.encode()) + len(value.encode()) for key, value in pairs)

    def size_bytes(self) -> int:
        """Returns the size of content, thread, source and metadata in bytes of UTF-8."""
        return self.content_bytes() + self.metadata_bytes()

    def digest(self) -> bytes:
        """Returns SHA-256 over kind, parts, metadata, thread, source and time, 32 bytes.

        Each string is preceded by its length in bytes as a 64-bit big-endian
        number; metadata follows the parts as key, value, key, value … in the
        order of the keys' code points, preceded by the number of pairs. The byte 1 follows
        for a step that observed first. Where a chunk has a thread, a source or a time, the
        byte 2 follows, then thread and source, then the time in microseconds since 1970 as a
        signed 64-bit big-endian number, or nothing without a time.
        """
        pieces = [_sized(part) for part in (self.kind.value, *self.parts)]
        pieces.append(struct.pack(">Q", len(self.metadata)))
        for key in sorted(self.metadata):
            pieces += (_sized(key), _sized(self.metadata[key]))
        if self.observed_first:
            pieces.append(b"\x01")
        if self.has_heading():
            pieces += (b"\x02", _sized(self.thread), _sized(self.source))
            if self.occurred_at is not None:
                pieces.append(struct.pack(">q", (self.occurred_at - _EPOCH) // _MICROSECOND))
        return hashlib.sha256(b"".join(pieces)).digest()

    def has_heading(self) -> bool:
        """Returns whether a thread, a source or a time is known."""
        return bool(self.thread or self.source) or self.occurred_at is not None

    def heading(self) -> str:
        """Returns the line that says time, source and thread; empty when none is known."""
        if not self.has_heading():
            return ""
        parts: list[str] = []
        if self.occurred_at is not None:
            at = self.occurred_at.astimezone(UTC).replace(microsecond=0, tzinfo=None)
            parts.append(f"occurred at {at.isoformat()}Z")
        # Quoted: an id may have commas and brackets, and reads as no other field.
        named = (("source", self.source), ("thread", self.thread))
        parts += (f"{name} {json.dumps(id_, ensure_ascii=False)}" for name, id_ in named if id_)
        return f"[{', '.join(parts)}]\n"

    def as_text(self) -> str:
        """Returns the chunk as a model reads it: its content after its heading."""
        return f"{self.heading()}{self._content()}"

    def _content(self) -> str:
        if self.is_redacted:
            return ""
        if self.kind is ChunkKind.MESSAGE:
            return f"{self.role}: {self.text}"
        if self.kind is ChunkKind.STEP:
            seen = ("Observation", self.observation)
            done = (("Thought", self.thought), ("Action", self.action))
            # What reads otherwise than when it was indexed, cut and cited is cited wrongly.
            parts = (*done, seen) if self.observed_first is False else (seen, *done)
            return "\n".join(f"{name}: {part}" for name, part in parts if part)
        return self.text


def _sized(part: str) -> bytes:
    raw = part.encode()
    return struct.pack(">Q", len(raw)) + raw


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedChunk:
    """A chunk as the log holds it."""

    #: 1, 2, 3 … in its session.
    position: int
    chunk: Chunk
    producer_id: str
    #: 1, 2, 3 … of its producer.
    producer_sequence: int
    #: When it was committed (the database's clock).
    created_at: datetime
    #: The redaction that removed its content; None: it has its content.
    redaction_id: UUID | None = None
    #: How much its source was trusted when it was read.
    trust: Trust = Trust.TRUSTED

    def for_readers(self) -> "LoggedChunk":
        """Returns it as steps, searches and answers read it: empty when its source is blocked."""
        return replace(self, chunk=_WITHHELD) if self.trust is Trust.BLOCKED else self

    @property
    def is_read(self) -> bool:
        """Returns whether there is something for a step to read in it."""
        return not self.chunk.is_empty()


#: What is read of a chunk that is withheld: nothing.
_WITHHELD = Chunk(kind=ChunkKind.TEXT)
