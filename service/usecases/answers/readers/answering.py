"""What readers have in common: a stored question in, an answer out."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from service.domain.answers.trajectory import Action, Emit, Event, EventKind, NoAnswer
from service.domain.calls.ledger import CallScope
from service.domain.prompting.ends import End
from service.domain.prompting.flows import Fetch, FlowRequest, ModelReply, ModelRequest
from service.domain.tree.recording import Statistics
from service.domain.values.work_items import WorkItem
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config
from service.usecases.answers.ask import occasion
from service.usecases.answers.text_streaming import stream_text
from service.usecases.memories.kinds import KindUseCases
from storage.answers import trajectories
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.engine.database import Database

#: Characters of a chunk's text that a citation repeats.
EXCERPT_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeAnswer:
    """The result of a question."""

    #: The answer; empty when there is none.
    text: str
    citations: Sequence[StoredCitation]
    #: The model that read.
    model: str
    #: Why there is no answer, and that in a sentence; None when there is one.
    no_answer: NoAnswer | None = None
    failure: str = ""
    #: Set for a navigation.
    statistics: Statistics | None = None
    #: By the schema that was asked for; None is JSON's null, if one was asked for.
    value: Any = None
    #: Whether the model named anything that it rests on.
    rests: bool = True
    #: Whether it is an option that was chosen although nothing that was read says it.
    guessed: bool = False
    #: Whether the text was cut off at its bound.
    truncated: bool = False
    #: The first and the last chunk of what the reader did not go through, for there is more than
    #: it may; None: it could go anywhere.
    left_out: tuple[int, int] | None = None
    #: The ordinal of the last event about how it became one of the options; 0: there is none.
    events: int = 0

    @classmethod
    def none(cls, model: str, why: NoAnswer, failure: str) -> "MadeAnswer":
        """Returns that there is no answer, and why in a sentence."""
        return cls(text="", citations=(), model=model, no_answer=why, failure=failure)


class MemoryReader(Protocol):
    """Answers questions to memories of one kind, as they were when the question came."""

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Answers a question. Made again after a failure, it gets the replies of the ledger."""


def scope_of(item: WorkItem, asked: StoredAnswer) -> CallScope:
    """Returns the scope of the model calls for an answer."""
    return CallScope(
        tenant_id=item.tenant_id,
        session_key=asked.session_key,
        memory_id=asked.asked_memory,
        occasion=occasion(asked.answer_id),
        incarnation=asked.incarnation,
    )


class AnswerCalls:
    """The model calls and the events of answers, in one worker process."""

    def __init__(self, database: Database, gateway: Gateway) -> None:
        self._database = database
        self._gateway = gateway

    async def call(
        self, item: WorkItem, asked: StoredAnswer, ask: ModelRequest, model: str
    ) -> ModelReply:
        """Returns the reply to a prompt of an answer.

        Where the question asks for that, the answer's text is streamed while it is written.
        """
        scope = scope_of(item, asked)
        if ask.find_text is None or not asked.tells_text:
            return await self._gateway.call(ask, model=model, scope=scope)
        key = (asked.session_key, asked.answer_id)
        async with stream_text(self._database, item.tenant_id, key, ask.find_text) as on_text:
            return await self._gateway.call(ask, model=model, scope=scope, on_text=on_text)

    async def tell(self, item: WorkItem, asked: StoredAnswer, event: Event) -> None:
        """Stores an event of the reader, which clients that wait receive at once."""
        if asked.chosen is not None:
            event = replace(event, ordinal=event.ordinal + asked.chosen.events)
        await self.record(item, asked, event)

    async def tell_cut(self, item: WorkItem, asked: StoredAnswer, text: str) -> None:
        """Stores that an answer lacks its end, for readers that have no other event."""
        await self.tell(
            item,
            asked,
            Event(ordinal=1, kind=EventKind.END, action=Action.ANSWER, text=text, end=End.LENGTH),
        )

    async def record(self, item: WorkItem, asked: StoredAnswer, event: Event) -> None:
        """Stores an event, at its ordinal among all."""
        async with self._database.transaction(item.tenant_id, name="answer.event") as tx:
            await trajectories.append(tx, (asked.session_key, asked.answer_id), event)

    async def next_ordinal(
        self, item: WorkItem, asked: StoredAnswer, kind: EventKind, after: int = 0
    ) -> int:
        """Returns the next ordinal of events of a kind, after all that are stored.

        Where a worker that died stored such events after `after`, the first of these.
        """
        key = asked.session_key, asked.answer_id
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            return await trajectories.next_ordinal(tx, key, kind, after)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingKit:
    """What readings of one process work with, those that were made before too."""

    database: Database
    #: What is known of a model, by its name.
    facts: Callable[[str], ModelFacts]
    #: Derives the marks about texts from outside.
    marker_key: bytes
    config: Config


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderKit(ReadingKit):
    """What every reader of one worker process works with."""

    calls: AnswerCalls


class ReadKind(Protocol):
    """A kind of memory, as far as its memories are asked."""

    @property
    def use_cases(self) -> KindUseCases:
        """What is different for memories of this kind."""

    @property
    def reader(self) -> Callable[[ReaderKit], MemoryReader]:
        """Makes what answers the questions that name no other reader."""


@dataclass(frozen=True, slots=True)
class ReadingReplies:
    """Serves the requests of one question's reading: to models, to what it reads, to clients."""

    calls: AnswerCalls
    item: WorkItem
    asked: StoredAnswer
    #: Looks up what is read.
    fetch: Callable[[Fetch], Awaitable[Any]]
    model: str

    async def to(self, ask: FlowRequest) -> Any:
        """Returns the reply to a request of any kind."""
        match ask:
            case ModelRequest():
                return await self.calls.call(self.item, self.asked, ask, self.model)
            case Emit():
                return await self.calls.tell(self.item, self.asked, ask.event)
            case Fetch():
                return await self.fetch(ask)
