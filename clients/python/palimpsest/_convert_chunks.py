"""Converts chunks and filters of chunks to and from the proto's messages."""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, Unpack, cast
from uuid import uuid4

from palimpsest._convert import CONVERTERS, message_of, refuse_unknown, value_of
from palimpsest._errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PalimpsestError,
    reworded,
)
from palimpsest._transport import MAX_SENT_BYTES
from palimpsest._values_log import Ack, Chunk, ChunkFilterOptions, ChunkLabels, SourceTrust
from palimpsest.v1 import chunks_pb2, common_pb2, session_service_pb2

Range = TypeVar("Range", common_pb2.PositionRange, common_pb2.TimeRange)

#: Chunks of a batch at most; the service accepts no more.
BATCH_CHUNKS = 256
#: Longest role, in characters.
MAX_ROLE_CHARACTERS = 64
#: Limits of metadata: entries, and characters of a key and of a value.
MAX_METADATA = (16, 64, 1024)
#: Keys of a message and of a step of an agent.
_MESSAGE_KEYS = frozenset({"role", "content"})
_STEP_KEYS = frozenset({"observation", "thought", "action"})
_FORMS = (
    "a text, {'text': …}, a message {'role': …, 'content': …}, a step {'observation': …,"
    " 'thought': …, 'action': …}, or a chunk"
)


class MessageLike(Protocol):
    """A turn of a conversation, as many libraries have it."""

    @property
    def role(self) -> str:
        """The speaker of a message."""

    @property
    def content(self) -> str:
        """What was said."""


#: A text; a text, a message or a step of an agent as a mapping, which may have `thread`,
#: `source`, `occurred_at` and `metadata`; a message as an object; a chunk.
Appendable = str | Mapping[str, Any] | MessageLike | Chunk


def text_chunk(text: str, **labels: Unpack[ChunkLabels]) -> chunks_pb2.Chunk:
    """Returns a chunk of plain text. Raises TypeError and ValueError that name the field."""
    return message_of(chunks_pb2.Chunk, text=text, **_labels(labels))


def message_chunk(role: str, text: str, **labels: Unpack[ChunkLabels]) -> chunks_pb2.Chunk:
    """Returns a turn of a conversation; otherwise as `text_chunk`."""
    turn = message_of(chunks_pb2.Chunk.Message, role=role, text=text)
    return message_of(chunks_pb2.Chunk, message=turn, **_labels(labels))


def step_chunk(
    *,
    observation: str = "",
    thought: str = "",
    action: str = "",
    observed_first: bool = False,
    **labels: Unpack[ChunkLabels],
) -> chunks_pb2.Chunk:
    """Returns a step of an agent; otherwise as `text_chunk`."""
    step = message_of(
        chunks_pb2.Chunk.AgentStep,
        observation=observation,
        thought=thought,
        action=action,
        observed_first=observed_first,
    )
    return message_of(chunks_pb2.Chunk, agent_step=step, **_labels(labels))


def _labels(labels: ChunkLabels) -> dict[str, Any]:
    refuse_unknown("label", labels, ChunkLabels)
    given = {name: value for name, value in labels.items() if value}
    if labels.get("occurred_at") is not None:
        given["occurred_at"] = instant("occurred_at", labels["occurred_at"])
    return given


def chunks_of(
    items: Appendable | Iterable[Appendable], **labels: Unpack[ChunkLabels]
) -> Sequence[chunks_pb2.Chunk]:
    """Returns the chunks of one item, or of several.

    `labels` are those of all; an item's own go before them. Raises TypeError or ValueError
    that name the item, from 1, for what is none of `Appendable`; ValueError when there are
    none; and InvalidArgument as `check` does.
    """
    held = [items] if _is_one(items) else list(items)  # type: ignore[arg-type]
    if not held:
        raise ValueError("there is nothing to append")
    chunks = []
    for number, item in enumerate(held, start=1):
        try:
            chunk = one_chunk(item, labels)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"item {number}: {error}") from error
        check(chunk, f"item {number}", {"chunk": str(number - 1)})
        chunks.append(chunk)
    return chunks


def _is_one(items: object) -> bool:
    return isinstance(items, str | bytes | Mapping | Chunk) or not isinstance(items, Iterable)


def one_chunk(item: Any, labels: ChunkLabels) -> chunks_pb2.Chunk:
    """Returns the chunk of one item. Raises TypeError and ValueError, as `text_chunk`."""
    if isinstance(item, str):
        return text_chunk(item, **labels)
    if isinstance(item, Chunk):
        return chunk_message(item, labels)
    if isinstance(item, Mapping):
        return _mapped(item, labels)
    role, content = getattr(item, "role", None), getattr(item, "content", None)
    if role is None or content is None:
        raise TypeError(f"a {type(item).__name__} is not {_FORMS}")
    return message_chunk(role, content, **labels)


def chunk_message(chunk: Chunk, labels: ChunkLabels) -> chunks_pb2.Chunk:
    """Returns the content of a chunk, to be appended; `labels` if it has none of its own."""
    own = united(labels, {name: getattr(chunk, name) for name in ChunkLabels.__annotations__})
    if chunk.kind == "message":
        return message_chunk(chunk.role, chunk.text, **own)
    if chunk.kind == "agent_step":
        step = {name: getattr(chunk, name) for name in _STEP_KEYS}
        return step_chunk(**step, observed_first=chunk.observed_first, **own)
    return text_chunk(chunk.text, **own)


def _mapped(item: Mapping[str, Any], labels: ChunkLabels) -> chunks_pb2.Chunk:
    # Libraries have None for missing parts of a message.
    given = {key: value for key, value in item.items() if value is not None}
    own = {name: given.pop(name) for name in ChunkLabels.__annotations__ if name in given}
    whole = united(labels, own)
    if given.keys() == {"text"}:
        return text_chunk(given["text"], **whole)
    if given.keys() == _MESSAGE_KEYS:
        return message_chunk(given["role"], given["content"], **whole)
    if _STEP_KEYS & given.keys() and given.keys() <= {*_STEP_KEYS, "observed_first"}:
        return step_chunk(**given, **whole)
    keys = ", ".join(sorted(map(str, given))) or "nothing"
    raise ValueError(f"a mapping of {keys} is not {_FORMS}; what else it has can be metadata")


def united(labels: ChunkLabels, own: Mapping[str, Any]) -> ChunkLabels:
    """Returns the labels of a chunk: its own, else those of all chunks."""
    metadata = {**(labels.get("metadata") or {}), **(own.get("metadata") or {})}
    given = {name: value for name, value in own.items() if value}
    return cast(ChunkLabels, {**labels, **given, "metadata": metadata})


def check(chunk: chunks_pb2.Chunk, name: str, which: Mapping[str, str]) -> None:
    """Raises InvalidArgument for what the service refuses whatever its limits are.

    `name` and `which`, in words and as metadata, say which chunk it is: the service would refuse
    all that is sent with it.
    """
    wrong = _wrong(chunk)
    if wrong:
        raise InvalidArgument(
            f"{name}: {wrong}",
            reason="FIELD_INVALID",
            metadata=which,
            fields={name: wrong},
        )


def _wrong(chunk: chunks_pb2.Chunk) -> str:
    role, *texts = _parts(chunk)
    if not any(texts):
        return "its text is empty"
    if chunk.HasField("message") and not 1 <= len(role) <= MAX_ROLE_CHARACTERS:
        return f"its role must have 1 to {MAX_ROLE_CHARACTERS} characters"
    pairs = chunk.metadata.items()
    entries, key_characters, value_characters = MAX_METADATA
    if len(pairs) > entries:
        return f"it has {len(pairs)} entries of metadata; {entries} are the most"
    if any(not 1 <= len(key) <= key_characters for key, _ in pairs):
        return f"a key of its metadata must have 1 to {key_characters} characters"
    if any(len(value) > value_characters for _, value in pairs):
        return f"a value of its metadata must have at most {value_characters} characters"
    if any("\0" in text for text in (role, *texts, *(k + v for k, v in pairs))):
        return "it holds a NUL character; text.replace('\\0', '') removes it"
    return ""


def _parts(chunk: chunks_pb2.Chunk) -> Sequence[str]:
    """Returns role, text, observation, thought and action; empty where its kind has none."""
    turn, step = chunk.message, chunk.agent_step
    return turn.role, turn.text or chunk.text, step.observation, step.thought, step.action


def shortened(text: str, most: int) -> str:
    """Returns at most `most` bytes of a text, with a mark of how many are missing.

    Raises ValueError when there is no room for the mark.
    """
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    # As if nothing were kept: the number is never longer.
    mark = f"… [{len(encoded)} bytes cut]"
    room = most - len(mark.encode())
    if room < 0:
        raise ValueError(f"cut_bytes must be {len(mark.encode())} or more, not {most}")
    kept = encoded[:room].decode(errors="ignore")
    return f"{kept}… [{len(encoded) - len(kept.encode())} bytes cut]"


def append_request(
    session: str,
    items: Appendable | Iterable[Appendable],
    labels: ChunkLabels,
    request_id: str | None,
    expected_head: int | None,
) -> session_service_pb2.AppendRequest:
    """Returns the request. Raises as `chunks_of`, and for what no service takes in one call."""
    chunks = chunks_of(items, **labels)
    for one in chunks:
        one.digest = digest(one)
    request = session_service_pb2.AppendRequest(
        session=session,
        expected_head=expected_head,
        request_id=uuid4().hex if request_id is None else request_id,
        chunks=chunks,
    )
    if not request.request_id:
        raise ValueError("a request_id must not be empty; None has one made")
    count, size = len(chunks), request.ByteSize()
    if count > BATCH_CHUNKS or size > MAX_SENT_BYTES:
        raise InvalidArgument(
            f"{count} chunks of {size} bytes are too many for one append, which stores all or none:"
            f" {BATCH_CHUNKS} chunks of {MAX_SENT_BYTES} bytes are the most."
            " Append them in parts, or use session.producer(...), which does so by itself",
            reason="BATCH_TOO_LARGE",
            metadata={"chunks": str(count), "limit_chunks": str(BATCH_CHUNKS)},
        )
    return request


#: Errors after which a request has certainly stored nothing. After all others one of its tries may
#: have been stored without a reply.
REFUSED = (Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound)


def may_be_stored(error: PalimpsestError, request_id: str) -> PalimpsestError:
    """Returns the error with the id to append the same with again."""
    return reworded(
        error,
        f"{error}; it may be stored: append the same again with request_id={request_id!r},"
        " which stores it once",
        request_id=request_id,
    )


def digest(chunk: chunks_pb2.Chunk) -> bytes:
    """Returns the SHA-256 of a chunk's content, see docs/guides/appending.md#the-digest."""
    kind = chunk.WhichOneof("content") or ""
    pieces: list[bytes] = []
    for part in ("step" if kind == "agent_step" else kind, *_parts(chunk)):
        pieces += _sized(part)
    pieces.append(struct.pack(">Q", len(chunk.metadata)))
    for key in sorted(chunk.metadata):
        for part in (key, chunk.metadata[key]):
            pieces += _sized(part)
    if chunk.agent_step.observed_first:
        pieces.append(b"\x01")
    if chunk.thread or chunk.source or chunk.HasField("occurred_at"):
        pieces += (b"\x02", *_sized(chunk.thread), *_sized(chunk.source))
        if chunk.HasField("occurred_at"):
            at = chunk.occurred_at
            pieces.append(struct.pack(">q", at.seconds * 1_000_000 + at.nanos // 1000))
    return hashlib.sha256(b"".join(pieces)).digest()


def _sized(part: str) -> tuple[bytes, bytes]:
    raw = part.encode()
    return struct.pack(">Q", len(raw)), raw


def size_bytes(chunk: chunks_pb2.Chunk) -> int:
    """Returns what counts in credits: UTF-8 bytes of content, thread, source and metadata."""
    metadata = (one for pair in chunk.metadata.items() for one in pair)
    return sum(len(one.encode()) for one in (*_parts(chunk), chunk.thread, chunk.source, *metadata))


def chunk(message: chunks_pb2.Chunk) -> Chunk:
    """Returns a chunk of the log."""
    kind = message.WhichOneof("content")
    turn, step = message.message, message.agent_step
    return value_of(
        Chunk,
        message,
        kind=kind or "text",
        text=turn.text if kind == "message" else message.text,
        role=turn.role,
        observation=step.observation,
        thought=step.thought,
        action=step.action,
        observed_first=step.observed_first,
        # What is trusted, which nearly all is, has no field.
        trust=_TRUSTS.get(message.trust, "unknown"),
    )


_TRUSTS: Mapping[int, SourceTrust] = {
    chunks_pb2.SOURCE_TRUST_UNSPECIFIED: "trusted",
    chunks_pb2.SOURCE_TRUST_TRUSTED: "trusted",
    chunks_pb2.SOURCE_TRUST_UNVERIFIED: "unverified",
    chunks_pb2.SOURCE_TRUST_BLOCKED: "blocked",
}
CONVERTERS[Chunk] = chunk


def text_of(chunk: Chunk) -> str:
    """Returns a chunk as one text, as models read it and the service counts its characters."""
    return f"{_heading(chunk)}{_content(chunk)}"


def _heading(chunk: Chunk) -> str:
    parts = []
    if chunk.occurred_at is not None:
        at = chunk.occurred_at.astimezone(UTC).replace(microsecond=0, tzinfo=None)
        parts.append(f"occurred at {at.isoformat()}Z")
    named = (("source", chunk.source), ("thread", chunk.thread))
    parts += (f"{name} {json.dumps(one, ensure_ascii=False)}" for name, one in named if one)
    return f"[{', '.join(parts)}]\n" if parts else ""


def _content(chunk: Chunk) -> str:
    if chunk.kind == "message":
        return f"{chunk.role}: {chunk.text}"
    if chunk.kind == "agent_step":
        return "\n".join(f"{name}: {text}" for name, text in chunk.step_parts)
    return chunk.text


def chunk_filter(
    *,
    from_position: int = 0,
    to_position: int = 0,
    **options: Unpack[ChunkFilterOptions],
) -> chunks_pb2.ChunkFilter:
    """Returns which chunks are wanted. Raises TypeError and ValueError that name the setting."""
    refuse_unknown("filter", options, ChunkFilterOptions)
    ids: dict[str, Any] = {}
    for name in ("kinds", "threads", "excluded_threads", "sources"):
        given = options.get(name) or ()
        # One string is refused as a whole below.
        ids[name] = given if isinstance(given, str) else list(dict.fromkeys(given))  # type: ignore[call-overload]
    return message_of(
        chunks_pb2.ChunkFilter,
        positions=_range(common_pb2.PositionRange, first=from_position, last=to_position),
        created=_times("since", "until", options),
        occurred=_times("occurred_since", "occurred_until", options),
        metadata=dict(options.get("metadata") or {}),
        min_trust=options.get("min_trust"),
        **ids,
    )


def _times(start: str, end: str, options: Mapping[str, Any]) -> common_pb2.TimeRange | None:
    return _range(
        common_pb2.TimeRange,
        start=instant(start, options.get(start)),
        end=instant(end, options.get(end)),
    )


def _range(kind: type[Range], **ends: Any) -> Range | None:
    """Returns a range; None where both of its ends are open."""
    return message_of(kind, **ends) if any(ends.values()) else None


def instant(setting: str, given: datetime | None) -> datetime | None:
    """Returns a time that was given for a setting.

    Raises ValueError without a time zone, and for a time that is before or after all of UTC.
    """
    if not isinstance(given, datetime):
        return given
    if given.tzinfo is None:
        raise ValueError(f"{setting} must have a time zone, as in datetime.now(UTC)")
    try:
        return given.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"{setting} {given.isoformat()} is not within the years 1 to 9999 of UTC"
        ) from None


def ack(message: session_service_pb2.AppendChunksResponse.Ack) -> Ack:
    """Returns an ack."""
    return Ack(
        producer_sequence=message.through_producer_sequence,
        position=message.through_position,
        read_token=message.read_token,
    )
