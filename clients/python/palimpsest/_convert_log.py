"""The log: what can be appended, chunks, acks and searches, to and from the proto's messages."""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from palimpsest._convert import if_set, message_of, moment, value_of
from palimpsest._errors import InvalidArgument
from palimpsest._values_log import Ack, Chunk
from palimpsest._values_memories import RecentStep
from palimpsest.v1alpha1 import log_pb2

#: Longest role, in characters.
MAX_ROLE_CHARACTERS = 64
#: Of metadata: entries, and characters of a key and of a value.
MAX_METADATA = (16, 64, 1024)
#: Keys of a message and of a step of an agent.
_MESSAGE_KEYS = frozenset({"role", "content"})
_STEP_KEYS = frozenset({"observation", "thought", "action"})
_OBSERVED_FIRST = "observed_first"
_FORMS = (
    "a text, a message {'role': …, 'content': …}, a step {'observation': …, 'thought': …,"
    " 'action': …}, or a chunk of a log"
)


class MessageLike(Protocol):
    """A turn of a conversation, as many libraries have it."""

    @property
    def role(self) -> str:
        """The speaker of a message."""

    @property
    def content(self) -> str:
        """What was said."""


#: A text; a message, or a step of an agent, as a mapping (each may have `metadata`); a message
#: as an object; a chunk of a log.
Appendable = str | Mapping[str, Any] | MessageLike | Chunk | RecentStep


def text_chunk(text: str, metadata: Mapping[str, str] | None) -> log_pb2.Chunk:
    """Returns a chunk of plain text. Raises TypeError and ValueError that name the field."""
    return message_of(log_pb2.Chunk, text=text, metadata=metadata)


def message_chunk(role: str, text: str, metadata: Mapping[str, str] | None) -> log_pb2.Chunk:
    """Returns a turn of a conversation; otherwise as `text_chunk`."""
    turn = message_of(log_pb2.Chunk.Message, role=role, text=text)
    return message_of(log_pb2.Chunk, message=turn, metadata=metadata)


def step_chunk(
    observation: str,
    thought: str,
    action: str,
    metadata: Mapping[str, str] | None,
    *,
    observed_first: bool = False,
) -> log_pb2.Chunk:
    """Returns a step of an agent; otherwise as `text_chunk`."""
    step = message_of(
        log_pb2.Chunk.Step,
        observation=observation,
        thought=thought,
        action=action,
        observed_first=observed_first or None,
    )
    return message_of(log_pb2.Chunk, step=step, metadata=metadata)


def chunks_of(
    items: Appendable | Iterable[Appendable], metadata: Mapping[str, str] | None
) -> Sequence[log_pb2.Chunk]:
    """Returns the chunks of one item, or of several; `metadata` is that of all.

    Raises TypeError or ValueError that name the item, from 1, for what is none of
    `Appendable`; ValueError when there are none; and InvalidArgument as `check` does.
    """
    held = [items] if _is_one(items) else list(items)  # type: ignore[arg-type]
    if not held:
        raise ValueError("there is nothing to append")
    chunks = []
    for number, item in enumerate(held, start=1):
        try:
            chunk = _chunk(item, dict(metadata or {}))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"item {number}: {error}") from error
        check(chunk, number, f"item {number}")
        chunks.append(chunk)
    return chunks


def _is_one(items: object) -> bool:
    return isinstance(items, str | bytes | Mapping | Chunk | RecentStep) or not isinstance(
        items, Iterable
    )


def _chunk(item: Any, metadata: dict[str, str]) -> log_pb2.Chunk:
    if isinstance(item, RecentStep):
        item = item.chunk
    if isinstance(item, str):
        return text_chunk(item, metadata)
    if isinstance(item, Chunk):
        return _logged(item, {**metadata, **item.metadata})
    if isinstance(item, Mapping):
        return _mapped(item, metadata)
    role, content = getattr(item, "role", None), getattr(item, "content", None)
    if role is None or content is None:
        raise TypeError(f"a {type(item).__name__} is not {_FORMS}")
    return message_chunk(role, content, metadata)


def _logged(chunk: Chunk, metadata: Mapping[str, str]) -> log_pb2.Chunk:
    if chunk.kind == "message":
        return message_chunk(chunk.role, chunk.text, metadata)
    if chunk.kind == "agent_step":
        return step_chunk(
            chunk.observation,
            chunk.thought,
            chunk.action,
            metadata,
            observed_first=bool(chunk.observed_first),
        )
    return text_chunk(chunk.text, metadata)


def _mapped(item: Mapping[str, Any], metadata: dict[str, str]) -> log_pb2.Chunk:
    # Libraries leave None where a message has nothing.
    given = {key: value for key, value in item.items() if value is not None}
    metadata |= given.pop("metadata", {})
    if given.keys() == _MESSAGE_KEYS:
        return message_chunk(given["role"], given["content"], metadata)
    if _STEP_KEYS & given.keys() and given.keys() <= {*_STEP_KEYS, _OBSERVED_FIRST}:
        first = given.get(_OBSERVED_FIRST, False)
        parts = {key: given.get(key, "") for key in _STEP_KEYS}
        return step_chunk(**parts, metadata=metadata, observed_first=first)
    keys = ", ".join(sorted(map(str, given))) or "nothing"
    raise ValueError(f"a mapping of {keys} is not {_FORMS}; what else it has can be metadata")


def check(chunk: log_pb2.Chunk, number: int, name: str) -> None:
    """Raises InvalidArgument for what the service refuses whatever its limits are.

    `number` and `name` say which chunk it is: the service would refuse all that is sent with it.
    """
    wrong = _wrong(chunk)
    if wrong:
        raise InvalidArgument(
            f"{name}: {wrong}",
            reason="FIELD_INVALID",
            metadata={"producer_sequence": str(number)},
            fields={name: wrong},
        )


def _wrong(chunk: log_pb2.Chunk) -> str:
    kind = chunk.WhichOneof("content")
    if kind == "step":
        parts = [chunk.step.observation, chunk.step.thought, chunk.step.action]
    else:
        parts = [chunk.message.text if kind == "message" else chunk.text]
    if not any(parts):
        return "its text is empty"
    if kind == "message" and not 1 <= len(chunk.message.role) <= MAX_ROLE_CHARACTERS:
        return f"its role must have 1 to {MAX_ROLE_CHARACTERS} characters"
    pairs = chunk.metadata.items()
    entries, key_characters, value_characters = MAX_METADATA
    if len(pairs) > entries:
        return f"it has {len(pairs)} entries of metadata; {entries} are the most"
    if any(not 1 <= len(key) <= key_characters for key, _ in pairs):
        return f"a key of its metadata must have 1 to {key_characters} characters"
    if any(len(value) > value_characters for _, value in pairs):
        return f"a value of its metadata must have at most {value_characters} characters"
    if any("\0" in text for text in (*parts, chunk.message.role, *(k + v for k, v in pairs))):
        return "it holds a NUL character"
    return ""


def digest(chunk: log_pb2.Chunk) -> bytes:
    """SHA-256 of a chunk's content, 32 bytes, as docs/guides/appending.md defines it."""
    kind = chunk.WhichOneof("content") or ""
    parts = ["", "", "", "", ""]
    if kind == "text":
        parts[1] = chunk.text
    elif kind == "message":
        parts[0], parts[1] = chunk.message.role, chunk.message.text
    else:
        step = chunk.step
        parts[2:] = step.observation, step.thought, step.action
    pieces: list[bytes] = []
    for part in (kind, *parts):
        raw = part.encode()
        pieces += (struct.pack(">Q", len(raw)), raw)
    pieces.append(struct.pack(">Q", len(chunk.metadata)))
    for key in sorted(chunk.metadata):
        for part in (key, chunk.metadata[key]):
            raw = part.encode()
            pieces += (struct.pack(">Q", len(raw)), raw)
    if chunk.step.observed_first:
        pieces.append(b"\x01")
    return hashlib.sha256(b"".join(pieces)).digest()


def size_bytes(chunk: log_pb2.Chunk) -> int:
    """Size of a chunk's content and metadata, in bytes of UTF-8: what counts in credits."""
    size = _content_bytes(chunk)
    if chunk.metadata:
        size += sum(len(one.encode()) for pair in chunk.metadata.items() for one in pair)
    return size


def _content_bytes(chunk: log_pb2.Chunk) -> int:
    kind = chunk.WhichOneof("content")
    if kind == "text":
        return len(chunk.text.encode())
    if kind == "message":
        return len(chunk.message.role.encode()) + len(chunk.message.text.encode())
    step = chunk.step
    return sum(len(part.encode()) for part in (step.observation, step.thought, step.action))


def chunk(message: log_pb2.LoggedChunk) -> Chunk:
    """Returns a chunk of the log."""
    content = message.chunk
    kind = content.WhichOneof("content") or ""
    # What does not say so is read with the observation first.
    unsaid = kind == "step" and not content.step.HasField("observed_first")
    return value_of(
        Chunk,
        message,
        kind="agent_step" if kind == "step" else kind,
        text=content.message.text if kind == "message" else content.text,
        role=content.message.role,
        observation=content.step.observation,
        thought=content.step.thought,
        action=content.step.action,
        observed_first=content.step.observed_first or unsaid,
        metadata=dict(content.metadata),
        thread=content.thread,
        source=content.source,
        occurred_at=if_set(content, "occurred_at", moment),
        created_at=moment(message.create_time),
    )


def ack(message: log_pb2.Ack) -> Ack:
    """Returns an ack."""
    return Ack(
        producer_sequence=message.through_producer_sequence,
        position=message.through_position,
        token=message.token,
    )
