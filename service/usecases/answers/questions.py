"""Checks questions, and chooses their readers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from service.domain.answers.browse.spec import BrowseRequest
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.memories.specs import kinds_read_by
from service.domain.values.errors import InvalidInput
from service.domain.values.memory_specs import ReaderName
from service.domain.values.reasons import Reason
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.lookup import refuse_other_kind
from service.usecases.memories.consistency import Consistency
from storage.memories.memories import StoredMemory

#: What reads the log itself.
OF_LOG = frozenset({ReaderName.DCISO, ReaderName.WHOLE})
_BROWSING = frozenset({ReaderName.DCISO, ReaderName.AUTO})
_NAVIGATING = frozenset({ReaderName.MEMWALKER, ReaderName.AUTO})


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked of which memory, or of a session."""

    session: str
    #: Empty: the log itself is read, or the automatic reader chooses.
    memory: str
    query: str
    consistency: Consistency
    #: For trees and state memories; None: a tree is navigated with the defaults, a state memory
    #: is asked without.
    navigation: NavigationRequest | None = None
    #: None: the one of the memory's kind; without a memory the automatic one.
    reader: ReaderName | None = None
    #: For DCISO, and for the automatic reader when it chooses that.
    browsing: BrowseRequest | None = None
    #: JSON Schema that the answer is to fit; None: text is enough.
    response_schema: Mapping[str, Any] | None = None
    #: Which chunks may be cited, and are read by what reads the log; None: all.
    filter: ChunkFilter | None = None
    #: Whether the text is streamed as it is written.
    tells_text: bool = False
    #: The model of readers that no memory's spec gives one; empty: the service's.
    model: str = ""
    #: For a multiple-choice question; the answer is one of them, word for word.
    options: tuple[str, ...] = ()
    #: Whether it is answered although no client waits for that.
    unattended: bool = False

    @property
    def named_reader(self) -> ReaderName | None:
        """Returns the reader, as far as the question alone determines it."""
        return self.reader or (None if self.memory else ReaderName.AUTO)

    def check(self) -> None:
        """Raises InvalidInput for what contradicts itself."""
        reader = self.named_reader
        if reader in OF_LOG and self.memory:
            raise _invalid("memory", f"the reader {reader} reads the log itself: name no memory")
        if not self.memory and kinds_read_by(reader):
            raise _invalid("memory", f"the reader {reader} reads a memory: name one")
        if self.navigation is not None and reader is not None and reader not in _NAVIGATING:
            raise _invalid("navigation", f"the reader {reader} does not navigate")
        if self.browsing is not None:
            if reader not in _BROWSING:
                raise _invalid("browsing", "only the readers dciso and auto browse")
            if problem := self.browsing.problem():
                raise _invalid("browsing", problem)
        if self.filter is not None:
            self.filter.check()
        if self.model and reader not in OF_LOG | {ReaderName.AUTO}:
            raise _invalid("model", "a memory is read by the model of its spec")
        if any(not option.strip() for option in self.options):
            raise _invalid("options", "each must have a character that is no blank")
        if len(self.options) == 1:
            raise _invalid("options", "give two or more to choose from, or none")


@contextmanager
def naming(number: int, *, of: int) -> Iterator[None]:
    """Names the question in refusals of its fields, where there are several."""
    try:
        yield
    except InvalidInput as error:
        if of == 1:
            raise
        name = f"questions[{number}]"
        raise InvalidInput(
            error.reason,
            f"{name}: {error.message}",
            error.metadata,
            field=f"{name}.{error.field}" if error.field else name,
        ) from error


def _invalid(field: str, problem: str) -> InvalidInput:
    return InvalidInput(Reason.FIELD_INVALID, f"{field}: {problem}", field=field)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a question is asked of, as it was at one moment."""

    session_key: UUID
    head: int
    incarnation: int
    #: None when none is named.
    memory: StoredMemory | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """How a question is read."""

    #: None: the one of the memory's kind, which has no name.
    reader: ReaderName | None
    navigation: NavigationRequest | None
    #: Where the memory is; 0 without one.
    revision: int
    #: The last position that is read.
    applied_position: int
    #: How far a memory must be to be fresh enough; what reads the log is so at any time.
    wanted_position: int
    #: Whether what is read has the wanted position.
    fresh: bool


def take(question: Question, source: Source, token_key: bytes) -> ReadPlan:
    """Chooses the reader, and where it reads.

    Raises InvalidInput (token), FailedPrecondition (another kind).
    """
    reader, navigation = _reader(question, source.memory)
    wanted = question.consistency.wanted_position(
        token_key, source.session_key, head=source.head, incarnation=source.incarnation
    )
    memory = source.memory
    # What reads the log has all of it.
    if memory is None or reader is ReaderName.AUTO or memory.spec.has_whole_log:
        applied = source.head
    else:
        applied = memory.applied_position
    return ReadPlan(
        reader=reader,
        navigation=navigation,
        revision=0 if memory is None else memory.revision,
        applied_position=applied,
        wanted_position=wanted,
        fresh=applied >= wanted,
    )


def _reader(
    question: Question, memory: StoredMemory | None
) -> tuple[ReaderName | None, NavigationRequest | None]:
    """Returns the reader, and how it navigates; None: not at all."""
    reader, navigation = question.named_reader, question.navigation
    if memory is None:
        assert reader is not None, "without a memory it is the automatic reader"
        return reader, navigation
    if navigation is not None and reader is None:
        reader = ReaderName.MEMWALKER
    if reader is not None:
        what = f"the reader {reader}"
        refuse_other_kind(question.memory, memory.spec, *kinds_read_by(reader), what=what)
    reader = reader or next(iter(memory.spec.ways.values()), None)
    if reader is ReaderName.MEMWALKER:
        navigation = replace(navigation or NavigationRequest(), options=question.options)
    return reader, navigation
