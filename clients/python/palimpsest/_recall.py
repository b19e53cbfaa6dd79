"""What a recall returns, and the query that messages are, to and from the proto's messages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from palimpsest._conversations import Rememberable, conversation_of, is_one
from palimpsest._convert import value_of
from palimpsest._search import SearchedBy, SearchIndex
from palimpsest._values_common import CharacterRange, PositionRange, ReadPoint
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

    It begins with the last message of the user; what was said just before follows it. Raises as
    `conversation_of`.
    """
    if isinstance(messages, str):
        return messages[:MAX_QUERY_CHARACTERS]
    # An iterator can be read only once.
    held = messages if is_one(messages) else list(cast(Iterable[Rememberable], messages))
    if held == []:
        return ""
    turns = [
        (one.message.role, one.message.text or one.text)
        for one in conversation_of(held, {}).chunks
        if not one.HasField("agent_step")
    ]
    asked = [at for at, (role, _) in enumerate(turns) if role not in ("assistant", "system")]
    last = asked[-1] if asked else len(turns) - 1
    before = [
        text[:CONTEXT_CHARACTERS] for _, text in turns[max(last - CONTEXT_MESSAGES, 0) : last]
    ]
    context = "\n".join(reversed(before))
    question = turns[last][1] if turns else ""
    return f"{question}\n{context}".strip()[:MAX_QUERY_CHARACTERS]
