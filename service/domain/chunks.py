"""Chunks: the unit of the log, its digest and its text."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


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
    #: Kept and returned, never shown to a model.
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """The content in its fixed order: role, text, observation, thought, action."""
        return (self.role, self.text, self.observation, self.thought, self.action)

    def is_empty(self) -> bool:
        """Whether there is nothing to read in it."""
        return not (self.text or self.observation or self.thought or self.action)

    def content_bytes(self) -> int:
        """Size of the content in bytes of UTF-8, without metadata."""
        return sum(len(part.encode()) if part else 0 for part in self.parts)

    def metadata_bytes(self) -> int:
        """Size of the metadata's keys and values in bytes of UTF-8."""
        if not self.metadata:
            return 0
        return sum(len(key.encode()) + len(value.encode()) for key, value in self.metadata.items())

    def size_bytes(self) -> int:
        """Size of content and metadata in bytes of UTF-8."""
        return self.content_bytes() + self.metadata_bytes()

    def digest(self) -> bytes:
        """SHA-256 over kind, parts and metadata, 32 bytes.

        Each string is preceded by its length in bytes as a 64-bit big-endian
        number; metadata follows the parts as key, value, key, value … in the
        order of the keys' code points, preceded by the number of pairs. The byte 1 follows
        for a step that observed first.
        """
        pieces: list[bytes] = []
        for part in (self.kind.value, *self.parts):
            raw = part.encode()
            pieces += (struct.pack(">Q", len(raw)), raw)
        pieces.append(struct.pack(">Q", len(self.metadata)))
        for key in sorted(self.metadata):
            for part in (key, self.metadata[key]):
                raw = part.encode()
                pieces += (struct.pack(">Q", len(raw)), raw)
        if self.observed_first:
            pieces.append(b"\x01")
        return hashlib.sha256(b"".join(pieces)).digest()

    def as_text(self) -> str:
        """The chunk as a model reads it."""
        if self.kind is ChunkKind.MESSAGE:
            return f"{self.role}: {self.text}"
        if self.kind is ChunkKind.STEP:
            seen = ("Observation", self.observation)
            done = (("Thought", self.thought), ("Action", self.action))
            # What reads otherwise than when it was indexed, cut and cited is cited wrongly.
            parts = (*done, seen) if self.observed_first is False else (seen, *done)
            return "\n".join(f"{name}: {part}" for name, part in parts if part)
        return self.text


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
