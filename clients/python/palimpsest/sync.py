"""The same client without `await`, for programs that have no event loop.

A loop of its own runs in a background thread; every call is passed on to it. For what
is here, see the functions of the same names in `palimpsest.client`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from types import TracebackType
from typing import Any

from palimpsest import agents, answers, client, connection, producer, session, values
from palimpsest.answer_values import Question, Rating, TextPiece
from palimpsest.appending import APPEND_SECONDS
from palimpsest.budgets import Budget, BudgetSet, Period
from palimpsest.chunks import Appendable
from palimpsest.costs import Cost, SpendReport
from palimpsest.errors import PalimpsestError
from palimpsest.navigation_values import TrainingExample, TrajectoryEvent
from palimpsest.schemas import Schema
from palimpsest.search_values import SearchIndex, SearchResult
from palimpsest.sync_loop import Loop
from palimpsest.sync_memories import Memory, Provenance, State, Tree, Watch

__all__ = [
    "Agent",
    "AnswerStream",
    "Client",
    "Memory",
    "Producer",
    "Provenance",
    "Session",
    "State",
    "Tree",
    "Watch",
]


class Client:
    """See `palimpsest.client.Client`."""

    def __init__(self, address: str = connection.DEFAULT_ADDRESS) -> None:
        self._loop = Loop()
        self._client = self._loop.call(client.Client, address)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._loop.run(self._client.close())
        self._loop.close()

    def session(self, name: str) -> "Session":
        """A session by its name."""
        return Session(self._loop, self._loop.call(self._client.session, name))

    def create_session(self, name: str, *, exist_ok: bool = False, language: str = "") -> "Session":
        """Creates a session."""
        made = self._loop.run(
            self._client.create_session(name, exist_ok=exist_ok, language=language)
        )
        return Session(self._loop, made)

    def agent(self, session: "Session | str", **options: Any) -> "Agent":
        """What an agent's loop needs of Palimpsest; open it with `with`."""
        held = session if isinstance(session, str) else session.inner
        return Agent(self._loop, self._loop.call(self._client.agent, held, **options))

    def check_schema(self, source: str = "", *, json_schema: str = "") -> str:
        """Checks a schema; it as models will be shown it."""
        return self._loop.run(self._client.check_schema(source, json_schema=json_schema))

    def set_budget(self, period: Period, **limits: int | None) -> BudgetSet:
        """Bounds what the tenant may spend."""
        return self._loop.run(self._client.set_budget(period, **limits))

    def budgets(self) -> Iterator[Budget]:
        """All budgets, the tenant's first."""
        return self._loop.iterate(self._client.budgets())

    def clear_budget(self, period: Period) -> int:
        """Takes a budget away; how many held memories try again."""
        return self._loop.run(self._client.clear_budget(period))

    def spend(self, **wanted: Any) -> SpendReport:
        """What all model calls came to."""
        return self._loop.run(self._client.spend(**wanted))

    def resume_answer(self, session: str, answer_id: str, **options: Any) -> values.Answer:
        """Waits on for an answer of a session."""
        return self._loop.run(self._client.resume_answer(session, answer_id, **options))

    def memories(
        self, *, stalled: bool = False, waiting: bool = False
    ) -> Iterator[values.MemoryInfo]:
        """Memories of all sessions: all, or those that stalled, or that wait for their model."""
        return self._loop.iterate(self._client.memories(stalled=stalled, waiting=waiting))

    def retry_stalled(self, session: str = "") -> int:
        """Lets all stalled memories try again, of a session or of all; how many."""
        return self._loop.run(self._client.retry_stalled(session))

    def sessions(self) -> Iterator[values.SessionInfo]:
        """All sessions, by name."""
        return self._loop.iterate(self._client.sessions())


class Session:
    """See `palimpsest.client.Session`."""

    def __init__(self, loop: Loop, session: session.Session) -> None:
        self._loop = loop
        self._session = session
        self.name = session.name

    @property
    def inner(self) -> session.Session:
        """The session that calls are passed on to."""
        return self._session

    def info(self) -> values.SessionInfo:
        """Reads the session."""
        return self._loop.run(self._session.info())

    def append(
        self,
        items: Appendable | Iterable[Appendable],
        *,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        expected_head: int | None = None,
        timeout: float = APPEND_SECONDS,
    ) -> values.Appended:
        """Appends a text, a message or a step, or several of them; durable when it returns."""
        return self._loop.run(
            self._session.append(
                items,
                metadata=metadata,
                request_id=request_id,
                expected_head=expected_head,
                timeout=timeout,
            )
        )

    def producer(self, producer_id: str, **options: Any) -> "Producer":
        """A producer; open it with `with`."""
        made = self._loop.call(self._session.producer, producer_id, **options)
        return Producer(self._loop, made)

    def chunks(self, *, from_position: int = 1) -> Iterator[values.Chunk]:
        """The log from a position on."""
        return self._loop.iterate(self._session.chunks(from_position=from_position))

    def search(self, query: str, **options: Any) -> SearchResult:
        """Finds the chunks that fit a query best."""
        return self._loop.run(self._session.search(query, **options))

    def search_index(self) -> SearchIndex:
        """How far words and vectors of the session are."""
        return self._loop.run(self._session.search_index())

    def create_memory(self, name: str, schema: Schema | None = None, **spec: Any) -> "Memory":
        """Creates a PRISM memory."""
        made = self._loop.run(self._session.create_memory(name, schema, **spec))
        return Memory(self._loop, made)

    def memory(self, name: str) -> "Memory":
        """A memory by its name."""
        return Memory(self._loop, self._loop.call(self._session.memory, name))

    def create_tree(self, name: str, **settings: Any) -> "Tree":
        """Creates a summary tree."""
        return Tree(self._loop, self._loop.run(self._session.create_tree(name, **settings)))

    def tree(self, name: str) -> "Tree":
        """A tree by its name."""
        return Tree(self._loop, self._loop.call(self._session.tree, name))

    def create_state(self, name: str, **settings: Any) -> "State":
        """Creates a state memory."""
        return State(self._loop, self._loop.run(self._session.create_state(name, **settings)))

    def state(self, name: str) -> "State":
        """A state memory by its name."""
        return State(self._loop, self._loop.call(self._session.state, name))

    def memories(self) -> Sequence[values.MemoryInfo]:
        """The session's memories, by name."""
        return self._loop.run(self._session.memories())

    def flush(self) -> values.Flushed:
        """Ends the wait for more chunks of all memories."""
        return self._loop.run(self._session.flush())

    def ask(self, query: str | Question, **options: Any) -> values.Answer:
        """Asks the session. `on_event` is called in the client's own thread."""
        return self._loop.run(self._session.ask(query, **options))

    def stream_ask(self, query: str | Question, **options: Any) -> "AnswerStream":
        """Asks the session; iterate over it for the text as it is written."""
        return AnswerStream(self._loop, self._loop.call(self._session.stream_ask, query, **options))

    def ask_all(
        self, queries: Iterable[str | Question], **options: Any
    ) -> Sequence[values.Answer | PalimpsestError]:
        """Asks many questions; their answers, or errors, in the same order."""
        return self._loop.run(self._session.ask_all(queries, **options))

    def resume_answer(self, answer_id: str, **options: Any) -> values.Answer:
        """Waits on for an answer."""
        return self._loop.run(self._session.resume_answer(answer_id, **options))

    def answers(self, **wanted: Any) -> Iterator[values.Answer]:
        """The stored answers, newest first."""
        return self._loop.iterate(self._session.answers(**wanted))

    def cancel_answer(self, answer_id: str) -> values.Answer:
        """Ends the work on an answer."""
        return self._loop.run(self._session.cancel_answer(answer_id))

    def rate(self, answer_id: str, *, good: bool, **said: str) -> Rating:
        """Says whether a complete answer was good."""
        return self._loop.run(self._session.rate(answer_id, good=good, **said))

    def answer(self, answer_id: str) -> values.Answer:
        """Reads a stored answer."""
        return self._loop.run(self._session.answer(answer_id))

    def trajectory(self, answer_id: str) -> Iterator[TrajectoryEvent]:
        """What the reader of an answer did, in order."""
        return self._loop.iterate(self._session.trajectory(answer_id))

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> Iterator[TrainingExample]:
        """The moves of browsings of the log that found an answer, oldest first."""
        return self._loop.iterate(self._session.export_trajectories(answer_ids, good=good))

    def generate_schema(
        self, domain: str, example_query: str, **options: Any
    ) -> values.SchemaDraft:
        """Has a model write a schema."""
        return self._loop.run(self._session.generate_schema(domain, example_query, **options))

    def schema_draft(self, draft_id: str) -> values.SchemaDraft:
        """Reads a schema that was asked for."""
        return self._loop.run(self._session.schema_draft(draft_id))

    def set_budget(self, period: Period, **limits: int | None) -> BudgetSet:
        """Bounds what the session may spend."""
        return self._loop.run(self._session.set_budget(period, **limits))

    def budgets(self) -> Iterator[Budget]:
        """Its budgets, then those of its memories."""
        return self._loop.iterate(self._session.budgets())

    def clear_budget(self, period: Period) -> int:
        """Takes a budget away; how many held memories try again."""
        return self._loop.run(self._session.clear_budget(period))

    def spend(self, memory: str = "", **wanted: Any) -> SpendReport:
        """What the session's model calls came to, in lines."""
        return self._loop.run(self._session.spend(memory, **wanted))

    def cost(self, memory: str = "", **days: date | None) -> Cost:
        """What the session, or a memory, came to, and what it would have come to."""
        return self._loop.run(self._session.cost(memory, **days))

    def usage(self, memory: str = "") -> values.UsageReport:
        """What the model calls came to."""
        return self._loop.run(self._session.usage(memory))


class AnswerStream:
    """See `palimpsest.answers.AnswerStream`."""

    def __init__(self, loop: Loop, inner: answers.AnswerStream) -> None:
        self._loop = loop
        self._stream = inner

    def __iter__(self) -> Iterator[TextPiece]:
        return self._loop.iterate(self._stream)

    @property
    def answer(self) -> values.Answer:
        """The whole answer, behind the last piece."""
        return self._stream.answer


class Producer:
    """See `palimpsest.producer.Producer`."""

    def __init__(self, loop: Loop, inner: producer.Producer) -> None:
        self._loop = loop
        self._producer = inner

    def __enter__(self) -> "Producer":
        self._loop.run(self._producer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._producer.__aexit__(kind, error, traceback))

    @property
    def last_acked_sequence(self) -> int:
        """The highest own number that is durable."""
        return self._producer.last_acked_sequence

    def append(self, text: str, **options: Any) -> int:
        """Appends plain text; its own number."""
        return self._loop.run(self._producer.append(text, **options))

    def append_message(self, role: str, text: str, **options: Any) -> int:
        """Appends a turn of a conversation; its own number."""
        return self._loop.run(self._producer.append_message(role, text, **options))

    def append_step(self, **parts: Any) -> int:
        """Appends a step of an agent; its own number."""
        return self._loop.run(self._producer.append_step(**parts))

    def flush(self) -> values.Ack | None:
        """Waits until everything appended so far is durable."""
        return self._loop.run(self._producer.flush())


class Agent:
    """See `palimpsest.agents.Agent`."""

    def __init__(self, loop: Loop, inner: agents.Agent) -> None:
        self._loop = loop
        self._agent = inner
        self.session = Session(loop, inner.session)
        self.memory = State(loop, inner.memory)

    def __enter__(self) -> "Agent":
        self._loop.run(self._agent.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._agent.__aexit__(kind, error, traceback))

    @property
    def step(self) -> int:
        """t: the number of the next step."""
        return self._agent.step

    def context(self, **options: Any) -> values.WorkingContext:
        """The working context before the next step."""
        return self._loop.run(self._agent.context(**options))

    def record(
        self, observation: str = "", thought: str = "", action: str = "", **options: Any
    ) -> values.Ack:
        """Appends a step; it is durable when this returns."""
        return self._loop.run(self._agent.record(observation, thought, action, **options))

    def note(self, role: str, text: str, **options: Any) -> values.Ack:
        """Appends a message; it is durable when this returns."""
        return self._loop.run(self._agent.note(role, text, **options))

    def ask(self, query: str, **options: Any) -> values.Answer:
        """Asks the memory."""
        return self._loop.run(self._agent.ask(query, **options))
