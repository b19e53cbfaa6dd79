"""The log: what can be appended, chunks, acks and searches, to and from the proto's messages."""

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from palimpsest._convert import known_name, message_of, moment, number_of, value_of
from palimpsest._errors import InvalidArgument
from palimpsest._values_log import (
    Ack,
    Chunk,
    ChunkKind,
    FoundChunk,
    SearchIndex,
    SearchMode,
    SearchResult,
    SessionInfo,
)
from palimpsest.v1 import chunks_pb2
from palimpsest.v1alpha1 import log_pb2, search_pb2, sessions_pb2

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
Appendable = str | Mapping[str, Any] | MessageLike | Chunk


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
    return isinstance(items, str | bytes | Mapping | Chunk) or not isinstance(items, Iterable)


def _chunk(item: Any, metadata: dict[str, str]) -> log_pb2.Chunk:
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
    if chunk.kind in ("step", "agent_step"):
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


def session(message: sessions_pb2.Session) -> SessionInfo:
    """Returns a session."""
    return value_of(SessionInfo, message, created_at=moment(message.create_time))


def logged(message: chunks_pb2.Chunk) -> Chunk:
    """Returns a chunk of the log, from the message of version 1."""
    kind, step = message.WhichOneof("content") or "", message.agent_step
    return value_of(
        Chunk,
        message,
        kind=kind,
        text=message.message.text if kind == "message" else message.text,
        role=message.message.role,
        observation=step.observation,
        thought=step.thought,
        action=step.action,
        observed_first=step.observed_first,
        metadata=dict(message.metadata),
        created_at=moment(message.created_at),
    )


def chunk(message: log_pb2.LoggedChunk) -> Chunk:
    """Returns a chunk of the log."""
    content = message.chunk
    kind = content.WhichOneof("content") or ""
    said = kind != "step" or content.step.HasField("observed_first")
    return value_of(
        Chunk,
        message,
        kind=kind,
        text=content.message.text if kind == "message" else content.text,
        role=content.message.role,
        observation=content.step.observation,
        thought=content.step.thought,
        action=content.step.action,
        observed_first=content.step.observed_first if said else None,
        metadata=dict(content.metadata),
        created_at=moment(message.create_time),
    )


def logged_chunk(message: chunks_pb2.Chunk) -> Chunk:
    """Returns a chunk of the log."""
    kind = message.WhichOneof("content") or ""
    return value_of(
        Chunk,
        message,
        kind="step" if kind == "agent_step" else kind,
        text=message.message.text if kind == "message" else message.text,
        role=message.message.role,
        observation=message.agent_step.observation,
        thought=message.agent_step.thought,
        action=message.agent_step.action,
        observed_first=message.agent_step.observed_first,
        metadata=dict(message.metadata),
        created_at=moment(message.created_at),
    )


def ack(message: log_pb2.Ack) -> Ack:
    """Returns an ack."""
    return Ack(
        producer_sequence=message.through_producer_sequence,
        position=message.through_position,
        token=message.token,
    )


_MODES: dict[SearchMode, Any] = {
    "auto": search_pb2.SEARCH_MODE_UNSPECIFIED,
    "words": search_pb2.SEARCH_MODE_WORDS,
    "vectors": search_pb2.SEARCH_MODE_VECTORS,
    "hybrid": search_pb2.SEARCH_MODE_HYBRID,
}
_KINDS: dict[ChunkKind, Any] = {
    "text": search_pb2.CHUNK_KIND_TEXT,
    "message": search_pb2.CHUNK_KIND_MESSAGE,
    "step": search_pb2.CHUNK_KIND_STEP,
}
_SEARCHED_BY = {name: number for name, number in _MODES.items() if name != "auto"}


def search_request(
    session: str,
    query: str,
    *,
    limit: int,
    mode: SearchMode,
    since: datetime | None,
    until: datetime | None,
    kinds: Collection[ChunkKind],
    metadata: Mapping[str, str] | None,
    rerank: bool,
    **positions: int,
) -> search_pb2.SearchChunksRequest:
    """Returns the request of a search. Raises TypeError and ValueError that name the field."""
    if isinstance(kinds, str):
        # Each of its letters would be a kind.
        raise ValueError("kinds must be a collection of strings, not one string")
    chunk_filter = message_of(
        search_pb2.ChunkFilter,
        from_time=_instant("since", since),
        to_time=_instant("until", until),
        kinds=[number_of("kinds", _KINDS, kind) for kind in dict.fromkeys(kinds)],
        metadata=dict(metadata or {}),
        **positions,
    )
    return message_of(
        search_pb2.SearchChunksRequest,
        session=session,
        query=query,
        limit=limit,
        mode=number_of("mode", _MODES, mode),
        filter=chunk_filter,
        rerank=rerank,
    )


def _instant(setting: str, given: datetime | None) -> datetime | None:
    if given is not None and given.tzinfo is None:
        raise ValueError(f"{setting} must have a time zone, as in datetime.now(UTC)")
    return given


def search_result(message: search_pb2.SearchChunksResponse) -> SearchResult:
    """Returns what a search found."""
    return value_of(
        SearchResult,
        message,
        chunks=tuple(_found(one) for one in message.chunks),
        mode=known_name(_SEARCHED_BY, message.mode),
        index=search_index(message.index),
    )


def search_index(message: search_pb2.SearchIndex) -> SearchIndex:
    """Returns how far words and vectors of a session are."""
    return value_of(SearchIndex, message)


def _found(message: search_pb2.FoundChunk) -> FoundChunk:
    found = chunk(message.chunk)
    return value_of(
        FoundChunk,
        message,
        chunk=found,
        text=_text_of(found),
        words_rank=message.words_rank or None,
        vectors_rank=message.vectors_rank or None,
        words_score=message.words_score if message.words_rank else None,
        vectors_score=message.vectors_score if message.vectors_rank else None,
    )


def _text_of(chunk: Chunk) -> str:
    """Returns a chunk as one text, as the service counts its characters."""
    if chunk.kind == "message":
        return f"{chunk.role}: {chunk.text}"
    if chunk.kind == "step":
        return "\n".join(f"{name}: {text}" for name, text in chunk.step_parts)
    return chunk.text
