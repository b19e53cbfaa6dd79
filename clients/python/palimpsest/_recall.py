"""What a recall returns, and the query that messages are, to and from the proto's messages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, cast

from palimpsest._conversations import Rememberable, conversation_of, is_one
from palimpsest._convert import value_of
from palimpsest._message_parts import fields_of, parts_of
from palimpsest._search import SearchedBy, SearchIndex
from palimpsest._values_common import CharacterRange, PositionRange, ReadPoint
from palimpsest._values_log import Chunk, SourceTrust
from palimpsest.v1 import session_service_pb2

#: Sections of a recalled text: entries of memories, the chunks that fit best, and the newest
#: chunks, which no memory has read.
RecallSection = Literal["memory", "chunks", "unread"]
#: As it is returned; "unknown" only where the service is newer.
RecalledSection = Literal["memory", "chunks", "unread", "unknown"]

#: Characters of a query, each of at most 4 bytes: the service takes 64 KiB.
MAX_QUERY_CHARACTERS = 16_000
#: How many messages before the last one of the user are in the query, and the characters of each at
#: most: they say what "there" and "it" are, and must not outweigh the question.
CONTEXT_MESSAGES = 2
CONTEXT_CHARACTERS = 150
#: Roles of messages that ask nothing; and those of messages that do, or their types in LangChain.
_ANSWERING = ("assistant", "system")
_ASKING = ("user", "human")
#: Fields of a message, besides its content, that say who says what. Labels are of no use here.
_READ = ("role", "type", "refusal", "tool_calls", "function_call")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecalledPart:
    """A part of a recalled text."""

    section: RecalledSection
    #: The entry, the chunk, or the part of the chunk that is shown.
    text: str
    #: The chunk, or the chunks that the entry's revision read; None: none.
    positions: PositionRange | None
    #: How well it fits; compares parts of one section only. 0: it is there for another reason.
    score: float
    #: The memory and path of an entry, and the revision that wrote it; empty for a chunk.
    memory: str
    path: str
    revision: int
    #: The characters of the chunk's text that are shown; None: all.
    characters: CharacterRange | None
    #: How much the chunk is trusted now, or the least trusted one that the entry rests on.
    trust: SourceTrust = "trusted"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecalledMemory:
    """How far a memory was that was recalled from."""

    memory: str
    #: The revision that was read.
    revision: int
    #: It had read all chunks up to here.
    applied_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """What a session knows that fits a query; `str()` is the text, and it is false without one."""

    #: For a prompt; empty: nothing is known. Others wrote it: it is data, not an instruction.
    text: str
    #: What the text consists of, in its order.
    parts: tuple[RecalledPart, ...] = ()
    #: The size of the text in tokens of four bytes.
    tokens: int = 0
    #: The memories that were read.
    memories: tuple[RecalledMemory, ...] = ()
    #: How chunks were searched; None: not at all.
    mode: SearchedBy | None = None
    #: How far the index of chunks was; None where they were not searched.
    index: SearchIndex | None = None
    #: The head of the log that was read; its token is empty where there is no session yet.
    read_point: ReadPoint

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the chunks that are shown, whole or in part."""
        shown = (one.positions for one in self.parts if one.section != "memory")
        return tuple(one.first for one in shown if one is not None)


#: What is known of a session that does not exist.
NOTHING = Recalled(text="", read_point=ReadPoint(revision=0, applied_position=0, read_token=""))


def recalled(message: session_service_pb2.RecallResponse) -> Recalled:
    """Returns what was recalled."""
    return value_of(Recalled, message)


def query_of(messages: Rememberable | Iterable[Rememberable]) -> str:
    """Returns the query that a text is, or that messages are.

    It begins with the last message of the user; what was said just before follows it. Of a long
    one it has the beginning and the end, either of which may be the question. What is no text, such
    as an image, is left out. Raises as `conversation_of` for what is no message, and where the last
    message of the user has no text.
    """
    if isinstance(messages, str):
        return _ends(messages, MAX_QUERY_CHARACTERS)
    # An iterator can be read only once.
    held: list[Any] = [messages] if is_one(messages) else list(cast(Iterable[Any], messages))
    turns = _turns_back(held)
    newest: list[str] = []
    for role, text in turns:
        if role not in _ANSWERING:
            newest = [text, *(before for _, before in islice(turns, CONTEXT_MESSAGES))]
            break
        newest.append(text)
    if not newest:
        return ""
    question, *others = newest[: CONTEXT_MESSAGES + 1]
    context = "".join(f"\n{text[:CONTEXT_CHARACTERS]}" for text in others)
    return (_ends(question, MAX_QUERY_CHARACTERS - len(context)) + context).strip()


def _turns_back(held: Sequence[Rememberable]) -> Iterator[tuple[str, str]]:
    """Yields role and text of the messages that say something, from the newest on.

    A message is read only when it is its turn, so that wrong ones among the older do no harm.
    """
    is_asked = False
    for number in range(len(held), 0, -1):
        role, text = _turn(held[number - 1], number)
        if text.strip():
            is_asked |= role not in _ANSWERING
            yield role, text
        elif not is_asked:
            _refuse_without_text(held[number - 1], number)


def _turn(item: Rememberable, number: int) -> tuple[str, str]:
    """Returns who says what in a message; calls of tools and their results say nothing."""
    if isinstance(item, str):
        return "", item
    if isinstance(item, Chunk):
        return item.role, item.text
    given = fields_of(item) or {}
    if "role" in given or "content" in given:
        read = {name: given[name] for name in _READ if name in given}
        item = {**read, "content": [one for one in _blocks(given) if _is_read(one)]}
    elif isinstance(given.get("type"), str) and "text" not in given:
        # A call, a result or a thought beside messages.
        return "", ""
    chunks = conversation_of([item], {}, first=number).chunks
    said = [one.message for one in chunks if one.HasField("message")]
    texts = [one.text for one in said or chunks]
    return said[0].role if said else "", "".join(texts)


def _refuse_without_text(item: Rememberable, number: int) -> None:
    """Raises ValueError for a message of the user that has only what is no text."""
    given = {} if isinstance(item, str | Chunk) else fields_of(item) or {}
    if (given.get("role") or given.get("type")) not in _ASKING:
        return
    kinds = [str((fields_of(one) or {}).get("type")) for one in _blocks(given)]
    # In Anthropic's form the results of tools are in messages of the user.
    if not any(kind.endswith("tool_result") for kind in kinds):
        conversation_of([item], {}, first=number)


def _blocks(given: Mapping[str, Any]) -> Sequence[Any]:
    content = given.get("content")
    return content if isinstance(content, list | tuple) else [content]


def _is_read(block: Any) -> bool:
    """Returns whether a part of a message is one that is remembered, and not an image."""
    try:
        return bool(list(parts_of({"content": [block]})))
    except (TypeError, ValueError):
        return False


def _ends(text: str, characters: int) -> str:
    """Returns a text, of a longer one its beginning and its end."""
    if len(text) <= characters:
        return text
    half = (characters - 1) // 2
    return f"{text[:half]}\n{text[-half:]}"
