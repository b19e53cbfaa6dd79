"""The same client without `await`, for programs that have no event loop.

A loop of its own runs in a background thread; every call is passed on to it. Each method has
the parameters of the method of the same name in `palimpsest`, and its docstring.
"""

from types import TracebackType
from typing import Unpack

from palimpsest import agents, client, producer, session, values
from palimpsest.connection import REACH_SECONDS
from palimpsest.sync_loop import Loop, Passing, gives, lists, names, waits
from palimpsest.sync_memories import AnswerStream, Memory, Provenance, State, Tree, Watch

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
    "connect",
]


def connect(address: str | None = None, *, reach_seconds: float = REACH_SECONDS) -> "Client":
    """A client without `await`; otherwise as `palimpsest.connect`. Use it with `with`."""
    return Client(address, reach_seconds=reach_seconds)


class Producer(Passing):
    """See `palimpsest.producer.Producer`."""

    def __enter__(self) -> "Producer":
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, traceback))

    @property
    def last_acked_sequence(self) -> int:
        """The highest own number that is durable."""
        inner: producer.Producer = self._inner
        return inner.last_acked_sequence

    @property
    def last_ack(self) -> values.Ack | None:
        """The newest ack of this run; None before the first."""
        inner: producer.Producer = self._inner
        return inner.last_ack

    append = waits(producer.Producer.append)
    append_message = waits(producer.Producer.append_message)
    append_step = waits(producer.Producer.append_step)
    flush = waits(producer.Producer.flush)


class Session(Passing):
    """See `palimpsest.session.Session`. Callbacks are called in the client's own thread."""

    def __init__(self, loop: Loop, inner: session.Session) -> None:
        super().__init__(loop, inner)
        self.name = inner.name

    create = waits(session.Session.create)
    info = waits(session.Session.info)
    append = waits(session.Session.append)
    producer = names(session.Session.producer, Producer)
    chunks = lists(session.Session.chunks)
    chunk = waits(session.Session.chunk)
    search = waits(session.Session.search)
    search_index = waits(session.Session.search_index)
    create_memory = gives(session.Session.create_memory, Memory)
    memory = names(session.Session.memory, Memory)
    create_tree = gives(session.Session.create_tree, Tree)
    tree = names(session.Session.tree, Tree)
    create_state = gives(session.Session.create_state, State)
    state = names(session.Session.state, State)
    memories = waits(session.Session.memories)
    flush = waits(session.Session.flush)
    ask = waits(session.Session.ask)
    stream_ask = names(session.Session.stream_ask, AnswerStream)
    ask_all = waits(session.Session.ask_all)
    resume_answer = waits(session.Session.resume_answer)
    answers = lists(session.Session.answers)
    cancel_answer = waits(session.Session.cancel_answer)
    rate = waits(session.Session.rate)
    answer = waits(session.Session.answer)
    trajectory = lists(session.Session.trajectory)
    export_trajectories = lists(session.Session.export_trajectories)
    generate_schema = waits(session.Session.generate_schema)
    schema_draft = waits(session.Session.schema_draft)
    set_budget = waits(session.Session.set_budget)
    budgets = lists(session.Session.budgets)
    clear_budget = waits(session.Session.clear_budget)
    spend = waits(session.Session.spend)
    cost = waits(session.Session.cost)
    usage = waits(session.Session.usage)


class Agent(Passing):
    """See `palimpsest.agents.Agent`."""

    def __init__(self, loop: Loop, inner: agents.Agent) -> None:
        super().__init__(loop, inner)
        self.session = Session(loop, inner.session)
        self.memory = State(loop, inner.memory)

    def __enter__(self) -> "Agent":
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, traceback))

    @property
    def step(self) -> int:
        """t: the number of the next step."""
        inner: agents.Agent = self._inner
        return inner.step

    context = waits(agents.Agent.context)
    record = waits(agents.Agent.record)
    note = waits(agents.Agent.note)
    ask = waits(agents.Agent.ask)


class Client(Passing):
    """See `palimpsest.client.Client`."""

    def __init__(self, address: str | None = None, *, reach_seconds: float = REACH_SECONDS) -> None:
        loop = Loop()
        super().__init__(loop, loop.call(client.Client, address, reach_seconds=reach_seconds))

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
        self._loop.run(self._inner.close())
        self._loop.close()

    session = names(client.Client.session, Session)
    create_session = gives(client.Client.create_session, Session)
    sessions = lists(client.Client.sessions)
    memories = lists(client.Client.memories)
    retry_stalled = waits(client.Client.retry_stalled)
    check_schema = waits(client.Client.check_schema)
    set_budget = waits(client.Client.set_budget)
    budgets = lists(client.Client.budgets)
    clear_budget = waits(client.Client.clear_budget)
    spend = waits(client.Client.spend)
    resume_answer = waits(client.Client.resume_answer)

    def agent(
        self,
        session: Session | str,
        *,
        memory: str = "state",
        producer_id: str = "agent",
        wait_seconds: float = agents.WAIT_SECONDS,
        give_up_seconds: float = 60.0,
        **settings: Unpack[agents.Choices],
    ) -> Agent:
        """What an agent's loop needs of Palimpsest; open it with `with`."""
        made: agents.Agent = self._loop.call(
            self._inner.agent,
            session if isinstance(session, str) else session.inner,
            memory=memory,
            producer_id=producer_id,
            wait_seconds=wait_seconds,
            give_up_seconds=give_up_seconds,
            **settings,
        )
        return Agent(self._loop, made)
