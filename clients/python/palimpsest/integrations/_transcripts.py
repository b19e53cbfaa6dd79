"""Conversations of frameworks: each item as the framework has it, and as a model reads it.

An item is one chunk or more of a thread. What a model reads is the first chunk's content, so that
the session's memories know what was said; the framework's own form is in the chunks' metadata.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from palimpsest._errors import NotFound
from palimpsest._values_log import Chunk
from palimpsest.integrations._packing import APPEND_CHUNKS, Packing
from palimpsest.sync import Session

_PACKING = Packing(mark="item", values=12, max_bytes=16 * 1024 * 1024)
#: Characters of what a model reads of one item.
MAX_READ_CHARACTERS = 50_000


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a model reads of an item: a message, or a step of an agent."""

    role: str = ""
    #: Of a step: what was said before its action.
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
        try:
            found = list(_PACKING.whole(self.session.chunks(threads=[self.thread])))
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
            return []
        return [
            StoredItem(item=json.loads(data), positions=tuple(one.position for one in chunks))
            for data, chunks in found
        ]

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
        # ASCII, since what a model wrote may have halves of surrogate pairs.
        data = json.dumps(item, separators=(",", ":")).encode()
        for number, marks in enumerate(_PACKING.pieces(data, "an item")):
            yield self._chunk(said if number == 0 else _MORE, marks)

    def _chunk(self, said: Said, metadata: Mapping[str, str]) -> Chunk:
        parts: dict[str, Any] = {"thread": self.thread, "metadata": dict(metadata)}
        if said.role and said.role != "user":
            parts["source"] = self._source
        if said.action or said.observation:
            action, observation = _cut(said.action), _cut(said.observation)
            parts["thought"] = _cut(said.text)
            return Chunk(kind="agent_step", action=action, observation=observation, **parts)
        text = _cut(said.text) or "(no text)"
        return Chunk(kind="message", role=said.role or "system", text=text, **parts)


_MORE = Said(role="system", text="(more of the item before)")


def _cut(text: str) -> str:
    clean = text.replace("\0", "").encode(errors="replace").decode()
    return clean if len(clean) <= MAX_READ_CHARACTERS else clean[:MAX_READ_CHARACTERS] + " …"
