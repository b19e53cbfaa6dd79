"""Converts conversations to chunks: messages, and calls of tools with their results as steps."""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from uuid import uuid4

from palimpsest._convert_chunks import (
    BATCH_CHUNKS,
    REFUSED,
    Appendable,
    check,
    chunk_message,
    digest,
    message_chunk,
    one_chunk,
    size_bytes,
    step_chunk,
    text_chunk,
    united,
)
from palimpsest._errors import PalimpsestError, reworded
from palimpsest._message_parts import (
    Call,
    Result,
    Said,
    Thought,
    fields_of,
    items_of,
    parts_of,
    result_of,
)
from palimpsest._send_queue import BATCH_BYTES
from palimpsest._splitting import CHUNK_CHARACTERS, split
from palimpsest._values_common import PositionRange
from palimpsest._values_log import Chunk, ChunkLabels, Remembered
from palimpsest.v1 import chunks_pb2, session_service_pb2

#: Characters of a message, or of each part of a step, that stay in one chunk: a turn is whole
#: where it can be, and none is more than the service takes (256 KiB).
TURN_CHARACTERS = 8000
#: Bytes of a thread or a source at most: they are ids.
MAX_ID_BYTES = 256
#: Unicode's categories of control and format characters and line ends; and the two of the format
#: characters that ids may have.
_UNPRINTED = frozenset({"Cc", "Cf", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
#: Roles whose messages are instructions of the program, not of the conversation.
_INSTRUCTIONS = ("system", "developer")
#: Roles by the types of LangChain's messages.
_ROLES = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "tool": "tool",
}
#: What a message has at least one of, be it None.
_CONTENTS = frozenset({"content", "tool_calls", "function_call", "refusal"})
_STEP_KEYS = frozenset({"observation", "thought", "action"})
_FORMS = (
    "a text, a message with role and content as OpenAI's and Anthropic's clients have it, or what"
    " session.append takes"
)


class SdkMessage(Protocol):
    """A message as an object of a client of models, such as OpenAI's, Anthropic's or LiteLLM's."""

    def model_dump(self) -> dict[str, Any]:
        """Returns its fields."""


#: A text; a message as a mapping or an object; a step of an agent; a chunk.
Rememberable = Appendable | SdkMessage


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """What a conversation is in a log."""

    chunks: Sequence[chunks_pb2.Chunk]
    #: Messages of which nothing is kept: instructions, and empty ones.
    skipped: int


@dataclass(slots=True)
class _Entry:
    """A text, a message or a step, before long ones are cut. A step may get its result later."""

    #: The number of the message that it is from.
    number: int
    #: Its own, without those of all messages.
    labels: ChunkLabels
    #: Empty: a text, or a step.
    role: str = ""
    text: str = ""
    #: Parts of a step by their names, in the order in which models read them.
    step: dict[str, str] = field(default_factory=dict)
    call: Call | None = None
    #: What is a chunk already.
    chunk: chunks_pb2.Chunk | None = None


def conversation_of(
    messages: Rememberable | Iterable[Rememberable],
    labels: ChunkLabels,
    *,
    include_system: bool = False,
    first: int = 1,
) -> Conversation:
    """Returns the chunks of a conversation, whose messages have numbers from `first` on.

    Raises TypeError, ValueError and InvalidArgument that name the message, and ValueError when
    there is none.
    """
    held = [messages] if is_one(messages) else list(cast(Iterable[Rememberable], messages))
    if not held or held == [""]:
        raise ValueError("there is nothing to remember: give a text or at least one message")
    reader = _Reader(labels, include_system=include_system)
    for number, item in enumerate(held, start=first):
        with _naming(number):
            reader.read(item, number)
    chunks = []
    for entry in reader.entries:
        with _naming(entry.number):
            made = list(_chunks(entry, labels))
        for chunk in made:
            with _naming(entry.number):
                _refuse_wrong_labels(chunk)
            check(chunk, f"message {entry.number}", {"message": str(entry.number)})
            chunk.digest = digest(chunk)
        chunks += made
    return Conversation(chunks=chunks, skipped=reader.skipped)


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Names the message in errors."""
    try:
        yield
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start])
        raise ValueError(
            f"message {number}: it holds {found}, half of a surrogate pair, which is no text:"
            " text.encode('utf-8', 'replace').decode() replaces it"
        ) from error
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"message {number}: {error}") from error


def append_requests(
    session: str, chunks: Iterable[chunks_pb2.Chunk], request_id: str | None
) -> Sequence[session_service_pb2.AppendRequest]:
    """Returns the requests that append the chunks in order, each within the service's limits.

    The first has the request's id, the others ids that are derived from it. What is appended
    again under the same id is divided in the same way, so that each part is stored once.
    """
    if request_id is not None and not request_id:
        raise ValueError("a request_id must not be empty; None has one made")
    name = request_id or uuid4().hex
    requests: list[session_service_pb2.AppendRequest] = []
    room = 0
    for chunk in chunks:
        size = size_bytes(chunk)
        if not requests or size > room or len(requests[-1].chunks) == BATCH_CHUNKS:
            part = name if not requests else _part_id(name, len(requests) + 1)
            requests.append(session_service_pb2.AppendRequest(session=session, request_id=part))
            room = BATCH_BYTES
        requests[-1].chunks.append(chunk)
        room -= size
    return requests


def _part_id(request_id: str, number: int) -> str:
    """Returns an id that no client gives to a request of its own, and that fits the limit."""
    return hashlib.sha256(f"remember\0{request_id}\0{number}".encode()).hexdigest()


def stored_in_part(
    error: PalimpsestError, requests: Sequence[session_service_pb2.AppendRequest], done: int
) -> PalimpsestError:
    """Returns the error of a request after `done` others, with the id to continue with."""
    stored, total = (sum(len(one.chunks) for one in some) for some in (requests[:done], requests))
    name = requests[0].request_id
    if not isinstance(error, REFUSED):
        said = (
            f"{stored} of {total} chunks are stored for certain: pass the same messages again with"
            f" request_id={name!r}, which stores the rest, and nothing twice"
        )
    elif stored:
        said = f"{stored} of {total} chunks had been stored before"
    else:
        return error
    metadata = {"request_id": name, "stored_chunks": str(stored)}
    return reworded(error, f"{error}; {said}", **metadata)


def remembered_of(
    talk: Conversation,
    requests: Sequence[session_service_pb2.AppendRequest],
    responses: Sequence[session_service_pb2.AppendResponse],
) -> Remembered:
    """Returns what was stored by all requests."""
    counts = {"chunks": len(talk.chunks), "skipped": talk.skipped}
    if not responses:
        return Remembered(positions=None, read_token="", request_id="", **counts)
    first, last = responses[0].positions.first, responses[-1].positions.last
    return Remembered(
        positions=PositionRange(first=first, last=last),
        read_token=responses[-1].read_token,
        request_id=requests[0].request_id,
        **counts,
    )


def stored_unread(error: PalimpsestError, remembered: Remembered) -> PalimpsestError:
    """Returns the error of a wait for memories, after everything was stored."""
    last = remembered.positions and remembered.positions.last
    is_stalled = error.reason == "MEMORY_STALLED"
    later = "this memory reads it once it is retried" if is_stalled else "memories will read it"
    return reworded(
        error,
        f"{error}. Everything is stored all the same, up to position {last}, and {later}: do not"
        " pass it again",
        request_id=remembered.request_id,
        read_token=remembered.read_token,
    )


def is_one(messages: object) -> bool:
    """Returns whether it is one message or text, and not several."""
    # Objects of pydantic can be iterated, over their fields.
    of_sdk = isinstance(messages, Mapping) or fields_of(messages) is not None
    return of_sdk or isinstance(messages, str | bytes | Chunk) or not isinstance(messages, Iterable)


class _Reader:
    """Reads the messages of a conversation one after the other."""

    def __init__(self, labels: ChunkLabels, *, include_system: bool) -> None:
        self._labels = labels
        self._include_system = include_system
        self.entries: list[_Entry] = []
        self.skipped = 0
        #: Steps whose call has no result yet, oldest first.
        self._waiting: list[_Entry] = []

    def read(self, item: Any, number: int) -> None:
        """Reads a message. Raises TypeError and ValueError."""
        if isinstance(item, str):
            kept = self._add(_Entry(number, {}, text=item))
        elif isinstance(item, Chunk):
            kept = self._add(_Entry(number, {}, chunk=chunk_message(item, self._labels)))
        else:
            kept = self._read(item, number)
        self.skipped += not kept

    def _read(self, item: Any, number: int) -> bool:
        """Reads a mapping or an object; returns whether anything of it is kept."""
        given = fields_of(item)
        if given is None:
            raise TypeError(f"a value of type {type(item).__name__} is not {_FORMS}")
        own = {name: given[name] for name in ChunkLabels.__annotations__ if given.get(name)}
        entry = _Entry(number, united({}, own))
        role = given.get("role") or _ROLES.get(str(given.get("type")))
        if role is None:
            return self._read_other(entry, given)
        if not isinstance(role, str):
            raise TypeError(f"its role must be a text, not {type(role).__name__}")
        if not _CONTENTS & given.keys():
            raise ValueError(f"it has no content, only {_keys(given)}")
        if role in _INSTRUCTIONS and not self._include_system:
            return False
        if role in ("tool", "function"):
            return self._add_result(result_of(given), entry)
        if given.get("name") and not own.get("source"):
            entry.labels = {**entry.labels, "source": _source(given["name"])}
        entry.role = role
        return self._add_turn(entry, given)

    def _read_other(self, entry: _Entry, given: Mapping[str, Any]) -> bool:
        """Reads what has no role: an item beside messages, a text, a step of an agent."""
        items = items_of(given)
        if items is not None:
            return self._add_items(items, entry)
        if isinstance(given.get("text"), str):
            if not given.get("type"):
                one_chunk(given, {})  # Refuses what else it has.
            entry.text = given["text"]
        elif _STEP_KEYS & given.keys():
            entry.chunk = one_chunk(given, self._labels)
        elif {"choices", "output"} & given.keys():
            raise ValueError(
                "it is a whole reply: give its message, such as reply.choices[0].message or"
                " reply.output"
            )
        else:
            raise ValueError(f"a mapping of {_keys(given)} is not {_FORMS}")
        return self._add(entry)

    def _add_items(self, items: Sequence[Call | Result], entry: _Entry) -> bool:
        kept = False
        for item in items:
            step = _Entry(entry.number, entry.labels)
            if isinstance(item, Call):
                kept |= self._add_call(item, "", step)
            else:
                kept |= self._add_result(item, step)
        return kept

    def _add_turn(self, entry: _Entry, given: Mapping[str, Any]) -> bool:
        """Adds a message, and the steps of its calls.

        What comes before a call is the thought of that step. Other thoughts are not kept.
        """
        kept = False
        before: list[Said | Thought] = []
        for part in parts_of(given):
            step = _Entry(entry.number, entry.labels)
            match part:
                case Call():
                    kept |= self._add_call(part, _joined(before), step)
                    before = []
                case Result():
                    kept |= self._add_result(part, step)
                case _:
                    before.append(part)
        entry.text = _joined([one for one in before if isinstance(one, Said)])
        return self._add(entry) or kept

    def _add_call(self, call: Call, thought: str, entry: _Entry) -> bool:
        entry.call = call
        entry.step = {"thought": thought, "action": f"{call.name}({call.arguments})"}
        self._waiting.append(entry)
        return self._add(entry)

    def _add_result(self, result: Result, entry: _Entry) -> bool:
        """Adds a result to the step of its call; without one it is a step of its own.

        Labels of the call come before those of the result.
        """
        step = self._step_of(result)
        if step is None:
            entry.step = {"observation": result.text}
            return self._add(entry)
        # What is wrong with them is an error of this message, not of its call.
        _refuse_wrong_labels(text_chunk("", **entry.labels))
        step.labels = united(entry.labels, step.labels)
        self._waiting.remove(step)
        step.step["observation"] = result.text
        return True

    def _step_of(self, result: Result) -> _Entry | None:
        """Returns the waiting step that a result belongs to.

        It is of the latest message that has one, since a call that was aborted waits for ever, and
        ids may be used again. Within it the oldest is next: results have the order of their calls.
        """
        if result.id:
            found = [one for one in self._waiting if one.call and one.call.id == result.id]
        else:
            found = _of_latest(self._waiting)
        if not result.id and result.name:
            found = [one for one in found if one.call and one.call.name == result.name]
        return next(iter(_of_latest(found)), None)

    def _add(self, entry: _Entry) -> bool:
        """Adds an entry unless it is empty; returns whether it was added."""
        texts = (entry.text, *entry.step.values())
        kept = entry.chunk is not None or any(text.strip() for text in texts)
        if kept:
            self.entries.append(entry)
        return kept


def _of_latest(entries: list[_Entry]) -> list[_Entry]:
    """Returns those of the latest message that has any."""
    return [one for one in entries if one.number == entries[-1].number]


def _joined(parts: Sequence[Said | Thought]) -> str:
    """Returns parts as one text, each on a line of its own where they are no one sentence."""
    text, was_joined = "", False
    for part in parts:
        joined = isinstance(part, Said) and part.joined
        text += ("" if not text or joined or was_joined else "\n") + part.text
        was_joined = joined
    return text


def _source(name: object) -> str:
    """Returns the name of a participant as the source of a chunk. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"its name must be a text, not {type(name).__name__}")
    _refuse_wrong_id("name", name)
    return name


def _refuse_wrong_labels(chunk: chunks_pb2.Chunk) -> None:
    for label in ("thread", "source"):
        _refuse_wrong_id(label, getattr(chunk, label))


def _refuse_wrong_id(field: str, given: str) -> None:
    """Raises ValueError for what the service takes as no id, before anything is sent to it."""
    kinds = [unicodedata.category(one) for one in given if one not in _JOINERS]
    if (
        "/" in given
        or given in (".", "..")
        or given != given.strip()
        or len(given.encode()) > MAX_ID_BYTES
        or not _UNPRINTED.isdisjoint(kinds)
    ):
        raise ValueError(
            f"its {field} {given!r} is no id: it must be printable, without a slash and without"
            f" blanks at its ends, and have at most {MAX_ID_BYTES} bytes"
        )


def _keys(given: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, given))) or "nothing"


def _chunks(entry: _Entry, labels: ChunkLabels) -> Iterator[chunks_pb2.Chunk]:
    """Yields the chunks of an entry: several where it is long. `labels`: those of all."""
    own = united(labels, entry.labels)
    if entry.chunk is not None:
        yield entry.chunk
    elif entry.step:
        for step in _steps(entry.step):
            whole = step_chunk(**own)
            for name, text in step.items():
                setattr(whole.agent_step, name, text)
            yield whole
    elif entry.role:
        for piece in _pieces(entry.text, TURN_CHARACTERS):
            yield message_chunk(entry.role, piece, **own)
    else:
        for piece in _pieces(entry.text, CHUNK_CHARACTERS):
            yield text_chunk(piece, **own)


def _steps(parts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yields a step, or what of it follows in further ones, in the order of reading."""
    step: dict[str, str] = {}
    for name, text in parts.items():
        for piece in _pieces(text, TURN_CHARACTERS):
            if name in step:
                yield step
                step = {}
            step[name] = piece
    if step:
        yield step


def _pieces(text: str, characters: int) -> Iterator[str]:
    if len(text) > characters:
        yield from split(text, characters)
    elif text.strip():
        yield text
