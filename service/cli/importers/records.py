"""Defines what importers read: records with labels, and what they share to read them."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from palimpsest import Chunk
from palimpsest._splitting import split

#: What the proto allows of an id, in bytes, and of metadata.
MAX_ID_BYTES = 256
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 1024
MAX_ROLE = 64
#: Characters of a chunk: longer texts are several. They fit its bytes in each language.
MAX_CHARACTERS = 60_000
#: Content of a chunk, and of a batch of chunks, in bytes: less than the service's limits.
MAX_CHUNK_BYTES, MAX_BATCH_BYTES = 240_000, 1_000_000
#: Chunks of a batch.
MAX_BATCH_CHUNKS = 16
#: The last key of metadata, for what has no place of its own.
MORE = "more"
_JOINERS = "\u200c\u200d"
_UNPRINTABLE = {"Cc", "Cf", "Zl", "Zp", "Cs"}


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadableRecord:
    """A record that cannot be read."""

    #: Where in the file it is, such as "results[3]".
    place: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRecord:
    """A text, message or step of another service."""

    place: str
    #: Its own id, by which the same record is recognized in another file; empty: it has none.
    id: str
    text: str = ""
    #: The role of a message: "user", "assistant" …
    role: str = ""
    #: What an agent thought and did in a step.
    observation: str = ""
    thought: str = ""
    action: str = ""
    thread: str = ""
    source: str = ""
    occurred_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: What could not be read of it, so that it is imported without.
    problem: str = ""
    #: What the template of session ids may name: user, agent, run …
    names: Mapping[str, str] = field(default_factory=dict)

    def chunks(self) -> Iterator[Chunk]:
        """Yields its chunks: several, where its text is long, or the parts of its step are."""
        labels: dict[str, Any] = {
            "thread": plain_id(self.thread),
            "source": plain_id(self.source),
            "occurred_at": self.occurred_at,
            "metadata": dict(self.metadata),
        }
        if self.observation or self.thought or self.action:
            for step in self._steps():
                yield Chunk(kind="agent_step", **step, **labels)
            return
        for part in split(_without_nul(self.text), MAX_CHARACTERS):
            if self.role:
                role = _cut(_without_nul(self.role), MAX_ROLE)
                yield Chunk(kind="message", role=role, text=part, **labels)
            else:
                yield Chunk(kind="text", text=part, **labels)

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Yields the step, or pieces of its parts where they do not fit one chunk."""
        parts = {"thought": self.thought, "action": self.action, "observation": self.observation}
        parts = {name: _without_nul(text) for name, text in parts.items()}
        if sum(len(text.encode()) for text in parts.values()) <= MAX_CHUNK_BYTES:
            yield parts
            return
        for name, text in parts.items():
            for piece in split(text, MAX_CHARACTERS):
                yield {name: piece}

    def request_id(self, session: str) -> str:
        """Returns the id under which it is stored once in a session."""
        chunks = [repr(one) for one in self.chunks()]
        content = json.dumps([session, self.id, *chunks])
        return f"import-{hashlib.sha256(content.encode(errors='replace')).hexdigest()}"


def _without_nul(text: str) -> str:
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Yields chunks together as one append may have them."""
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        parts = (chunk.role, chunk.text, chunk.thought, chunk.action, chunk.observation)
        own = sum(len(part.encode()) for part in parts)
        if batch and (len(batch) == MAX_BATCH_CHUNKS or size + own > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(chunk)
        size += own
    if batch:
        yield batch


def plain_id(text: str) -> str:
    """Returns a text as an id: without what ids may not have, and not too long.

    One that is changed ends with a digest, so that different texts are different ids.
    """
    kept = "".join(
        "_"
        if one == "/" or (unicodedata.category(one) in _UNPRINTABLE and one not in _JOINERS)
        else one
        for one in text
    ).strip()
    kept = "_" if kept in (".", "..") else kept
    if not kept or (kept == text and len(kept.encode()) <= MAX_ID_BYTES):
        return kept
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return kept.encode()[: MAX_ID_BYTES - 17].decode(errors="ignore").strip() + "-" + digest


def metadata_of(*parts: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns values as the metadata of a chunk; what does not fit is cut.

    Of more than MAX_PAIRS values the last ones are one, as JSON.
    """
    pairs: dict[str, str] = {}
    for part in parts:
        for key, value in (part or {}).items():
            if key and value is not None and value != "" and value != [] and value != {}:
                pairs.setdefault(_cut(_without_nul(str(key)), MAX_KEY), _as_text(value))
    if len(pairs) <= MAX_PAIRS:
        return pairs
    first = dict(list(pairs.items())[: MAX_PAIRS - 1])
    rest = {key: value for key, value in pairs.items() if key not in first}
    return {**first, MORE: _as_text(rest)}


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _cut(_without_nul(text), MAX_VALUE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def others(record: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Returns the fields that have no place of their own."""
    return {key: value for key, value in record.items() if key not in known}


_FRACTION = re.compile(r"(\.\d{6})\d+")


def moment(value: Any) -> datetime | None:
    """Returns a time that is a text as of RFC 3339, or seconds since 1970; None for none.

    A text without a zone is in UTC. Raises ValueError.
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            at = datetime.fromisoformat(_FRACTION.sub(r"\1", value))
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"its time {str(value)[:40]!r} is none") from error
    raise ValueError(f"its time {str(value)[:40]!r} is none")


def timed(value: Any) -> dict[str, Any]:
    """Returns the fields of a record that say when it was, or that its time cannot be read."""
    try:
        return {"occurred_at": moment(value)}
    except ValueError as error:
        return {"problem": f"{error}; it is imported without a time"}


def text_of(value: Any, name: str) -> str:
    """Returns a value that has to be a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"it has no text {name!r}")
    return value


def each(
    values: Iterable[Any], place: str, number_from: int = 0
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yields each value with its place; None for one that is no object."""
    for number, value in enumerate(values, number_from):
        yield f"{place}[{number}]", value if isinstance(value, Mapping) else None


def parts_text(content: Any) -> str:
    """Returns the text of a message's content: a text, or parts of type text. Raises ValueError."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("its content is neither a text nor a list")
    texts = [
        one if isinstance(one, str) else one.get("text", "")
        for one in content
        if isinstance(one, str)
        or (isinstance(one, Mapping) and one.get("type", "text") in TEXT_TYPES)
    ]
    return "\n".join(one for one in texts if isinstance(one, str) and one)


#: Types of parts that have a text.
TEXT_TYPES = ("text", "input_text", "output_text")
