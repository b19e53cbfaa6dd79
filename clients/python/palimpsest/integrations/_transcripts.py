"""Conversations of frameworks: each item as the framework has it, and as a model reads it.

An item is one chunk or more of a thread. What a model reads is the first chunk's content, so that
the session's memories know what was said; the framework's own form is in the chunks' metadata.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from palimpsest._errors import NotFound
from palimpsest._values_log import Chunk
from palimpsest.sync import Session

#: Characters of a value of metadata, and how many values of a chunk have a part of an item.
VALUE_CHARACTERS = 1024
VALUES = 12
CHUNK_CHARACTERS = VALUE_CHARACTERS * VALUES
#: Characters of what a model reads of one item.
MAX_READ_CHARACTERS = 50_000
#: Chunks of one append.
APPEND_CHUNKS = 128
#: Bytes of an item as JSON.
MAX_ITEM_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a model reads of an item: a message, or a step of an agent."""

    role: str = ""
    text: str = ""
    action: str = ""
    observation: str = ""


@dataclass(frozen=True, kw_only=True)
class StoredItem:
    """An item of a conversation, and where its chunks are."""

    item: Any
    positions: Sequence[int]


class Transcript:
    """One thread of a session; the session is made by the first item."""

    def __init__(self, session: Session, thread: str, source: str = "") -> None:
        """`source` is the name of what the agent or the framework adds; empty: none."""
        self.session = session
        self.thread = thread
        self._source = source

    def add(self, items: Iterable[tuple[Any, Said]]) -> None:
        """Stores items in order, durably; each is JSON."""
        chunks = [chunk for item, said in items for chunk in self._chunks(item, said)]
        for start in range(0, len(chunks), APPEND_CHUNKS):
            part, request = chunks[start : start + APPEND_CHUNKS], uuid4().hex
            try:
                self.session.append(part, request_id=request)
            except NotFound as error:
                if error.reason != "SESSION_NOT_FOUND":
                    raise
                self.session.create(exist_ok=True)
                self.session.append(part, request_id=request)

    def items(self) -> list[StoredItem]:
        """Returns the items of the thread, oldest first; what was forgotten is not among them."""
        parts: dict[str, list[Chunk]] = {}
        try:
            for chunk in self.session.chunks(threads=[self.thread]):
                if not chunk.redaction and "item" in chunk.metadata:
                    parts.setdefault(chunk.metadata["item"], []).append(chunk)
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
        return [item for chunks in parts.values() for item in _whole(chunks)]

    def remove(self, items: Iterable[StoredItem], reason: str) -> None:
        """Removes items for good, with what memories derived from them."""
        positions = [position for item in items for position in item.positions]
        if positions:
            self.session.forget(positions=positions, reason=reason)

    def clear(self, reason: str) -> None:
        """Removes the thread for good."""
        try:
            self.session.forget(thread=self.thread, reason=reason)
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise

    def _chunks(self, item: Any, said: Said) -> Iterator[Chunk]:
        data = json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()
        if len(data) > MAX_ITEM_BYTES:
            raise ValueError(f"an item has more than {MAX_ITEM_BYTES} bytes")
        text = base64.b64encode(zlib.compress(data)).decode()
        pieces = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
        name = uuid4().hex
        for number, piece in enumerate(pieces):
            marks = {"item": name, "part": str(number), "parts": str(len(pieces))}
            values = range(0, len(piece), VALUE_CHARACTERS)
            marks |= {f"v{i}": piece[at : at + VALUE_CHARACTERS] for i, at in enumerate(values)}
            yield self._chunk(said if number == 0 else _MORE, marks)

    def _chunk(self, said: Said, metadata: Mapping[str, str]) -> Chunk:
        parts: dict[str, Any] = {"thread": self.thread, "metadata": dict(metadata)}
        if said.role and said.role != "user":
            parts["source"] = self._source
        if said.action or said.observation:
            action, observation = _cut(said.action), _cut(said.observation)
            return Chunk(kind="agent_step", action=action, observation=observation, **parts)
        text = _cut(said.text) or "(no text)"
        return Chunk(kind="message", role=said.role or "system", text=text, **parts)


_MORE = Said(role="system", text="(more of the item before)")


def _cut(text: str) -> str:
    clean = text.replace("\0", "").encode(errors="replace").decode()
    return clean if len(clean) <= MAX_READ_CHARACTERS else clean[:MAX_READ_CHARACTERS] + " …"


def _whole(chunks: Sequence[Chunk]) -> Iterator[StoredItem]:
    """Yields the item of its chunks, unless some are missing."""
    by_part = {int(chunk.metadata["part"]): chunk for chunk in chunks}
    first = by_part.get(0)
    if first is None or len(by_part) != int(first.metadata["parts"]):
        return
    numbers = range(len(by_part))
    values = [by_part[at].metadata.get(f"v{i}", "") for at in numbers for i in range(VALUES)]
    reader = zlib.decompressobj()
    data = reader.decompress(base64.b64decode("".join(values), validate=True), MAX_ITEM_BYTES)
    positions = tuple(by_part[at].position for at in numbers)
    yield StoredItem(item=json.loads(data), positions=positions)
