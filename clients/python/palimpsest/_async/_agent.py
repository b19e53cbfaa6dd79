"""An agent's loop with periodic context compression (PCC).

async with client.agent("run-42", task="Find the red key.") as agent:
    while not done:
        context = await agent.context()
        ...  # the model decides upon context.text, and the world answers
        await agent.record(observation, thought, action)
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

from palimpsest._async._connection import Connection
from palimpsest._async._memory import create_memory
from palimpsest._async._producer import Producer
from palimpsest._async._runtime import Lock
from palimpsest._async._session import Session
from palimpsest._convert import refuse_unknown
from palimpsest._convert_chunks import shortened
from palimpsest._errors import (
    Aborted,
    DeadlineExceeded,
    InvalidArgument,
    PalimpsestError,
    ProducerClosed,
    Unavailable,
    reworded,
)
from palimpsest._specs import AgentSettings, state_settings_of, state_spec
from palimpsest._states import ContextForm, WorkingContext
from palimpsest._values_answers import Answer, MemoryAskOptions
from palimpsest._values_log import Ack, ChunkLabels
from palimpsest.v1 import memories_pb2

#: How long a context waits for a compression when the caller does not say.
WAIT_SECONDS = 30.0
#: How many loops may take over a session at the same moment before one gives up.
OPENING_TRIES = 5
#: Reasons why a due compression is not there.
_NOT_MADE = ("NOT_APPLIED_IN_TIME", "MEMORY_STALLED", "BUDGET_EXHAUSTED")


class Agent:
    """What an agent's loop needs: the context before each step, and a place for the step.

    Open it with `async with`. A missing session or memory is created; an existing memory is
    used if it has the given settings (AlreadyExists names those that differ). A loop that
    starts again continues after its durable steps, at `step`. Of two loops on one session the
    later one continues, and the next step of the other raises Aborted (PRODUCER_FENCED).
    """

    def __init__(
        self,
        connection: Connection,
        session: Session,
        *,
        memory: str,
        producer_id: str,
        wait_seconds: float,
        give_up_seconds: float,
        **settings: Unpack[AgentSettings],
    ) -> None:
        self._connection = connection
        self.session = session
        self.memory = session.state(memory)
        #: Those that were given; zeros and empty texts ask for nothing, but for `period_tokens`.
        self._given: dict[str, Any] = {
            name: given
            for name, given in settings.items()
            if given or (name == "period_tokens" and given is not None)
        }
        # Names of settings are checked whatever their values.
        refuse_unknown("setting", settings, AgentSettings)
        self._spec = state_spec(state_settings_of(**self._given))
        # Not so for NaN.
        if not wait_seconds >= 0:
            raise ValueError(f"wait_seconds must be a number from 0 on, not {wait_seconds!r}")
        self._producer_id = producer_id
        self._wait_seconds = wait_seconds
        self._give_up_seconds = give_up_seconds
        self._producer: Producer | None = None
        #: Why the producer takes no more steps.
        self._failure: PalimpsestError | None = None
        self._epoch = 0
        self._head = 0
        #: Steps are appended one after the other, from all tasks.
        self._one = Lock()

    @property
    def step(self) -> int:
        """The number of the next step, from 1 on. Messages count as steps.

        Chunks that other producers append count from the next context on.
        """
        return self._head + 1

    async def __aenter__(self) -> "Agent":
        """Opens it. Raises AlreadyExists for a memory of another kind or other settings."""
        await self.session.create(exist_ok=True)
        wanted = memories_pb2.Memory(session=self.session.id, id=self.memory.id, state=self._spec)
        await create_memory(self._connection, wanted, exist_ok=True, only=self._given)
        self._producer, self._failure = await self._open(), None
        try:
            self._head = (await self.session.info()).head
        except BaseException as error:
            await self.__aexit__(type(error))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes it once all recorded steps are durable."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if kind is None and self._failure is not None:
            # It was raised to the caller that recorded the step.
            kind = type(self._failure)
        await producer.__aexit__(kind)

    async def context(
        self, *, forms: Sequence[ContextForm] = ("parts", "text", "messages")
    ) -> WorkingContext:
        """Returns what the model reads before the next step: M and R of algorithm 1.

        Waits up to `wait_seconds` for a compression that is due. Without it the context has
        older vectors and more recent steps; `blocked` says why. Each step is in it once.
        """
        context = await self._waited(forms) if self._wait_seconds > 0 else None
        if context is None:
            context = await self.memory.context(forms=forms)
        self._head = max(self._head, context.head)
        return context

    async def _waited(self, forms: Sequence[ContextForm]) -> WorkingContext | None:
        """Returns the context with all due compressions; None if they are not made in time."""
        try:
            return await self.memory.context(
                fully_applied=True, forms=forms, timeout=self._wait_seconds
            )
        except (DeadlineExceeded, Unavailable):
            # The next read reports what remains of it.
            return None
        except PalimpsestError as error:
            if error.reason not in _NOT_MADE:
                raise
            return None

    async def record(
        self,
        observation: str = "",
        thought: str = "",
        action: str = "",
        *,
        observed_first: bool = False,
        cut_bytes: int | None = None,
        **labels: Unpack[ChunkLabels],
    ) -> Ack:
        """Appends a step; it is durable, and in the next context, when this returns.

        Models read the observation after thought and action, or with `observed_first` before
        them. Any part may be empty, not all. A part of more than `cut_bytes` bytes is cut, with
        a mark of how much is missing; without `cut_bytes` a step that is too large is refused.
        `labels` are `thread`, `source`, `occurred_at` and `metadata`. The step is stored once,
        also when the connection is lost.

        Raises ValueError, InvalidArgument (nothing is stored, and the next step may follow),
        and Aborted (PRODUCER_FENCED) after another loop took over. After other errors, or a
        cancelled call, the step may be in the log: the `step` of a new agent shows it.
        """
        if not (observation or thought or action):
            raise ValueError("a step needs an observation, a thought or an action")
        if cut_bytes is not None:
            observation, thought, action = (
                shortened(part, cut_bytes) for part in (observation, thought, action)
            )
        return await self._append(
            lambda producer: producer.append_step(
                observation=observation,
                thought=thought,
                action=action,
                observed_first=observed_first,
                **labels,
            )
        )

    async def note(self, role: str, text: str, **labels: Unpack[ChunkLabels]) -> Ack:
        """Appends a message, such as the user's; otherwise as `record`."""
        if not text:
            raise ValueError("a message needs a text")
        return await self._append(lambda producer: producer.append_message(role, text, **labels))

    async def ask(self, query: str, **options: Unpack[MemoryAskOptions]) -> Answer:
        """Asks the memory. `options` are those of `palimpsest.Memory.ask`."""
        return await self.memory.ask(query, **options)

    async def _append(self, append: Callable[[Producer], Awaitable[int]]) -> Ack:
        async with self._one:
            try:
                producer = await self._usable()
                await append(producer)
                ack = await producer.flush()
            except PalimpsestError as error:
                self._failure = error
                if error.reason == "PRODUCER_FENCED":
                    raise reworded(
                        error,
                        f"another loop has taken over session {self.session.id!r} as producer"
                        f" {self._producer_id!r}; this one must end",
                    ) from error
                raise
            assert ack is not None, "what was flushed has been acked"
            self._head = max(self._head, ack.position)
            return ack

    async def _usable(self) -> Producer:
        """Returns the producer; after a refused step a new one of the same epoch."""
        if self._producer is None:
            raise ProducerClosed("this agent is not open: use it with `async with`")
        if isinstance(self._failure, InvalidArgument):
            # A refusal ends the stream; later steps need another one.
            await self._producer.__aexit__(type(self._failure), self._failure, None)
            self._producer = await self._opened()
            self._failure = None
        return self._producer

    async def _open(self) -> Producer:
        """Returns a producer that fences off those of earlier loops."""
        self._epoch = max(self._epoch, time.time_ns() // 1000)
        for tries_left in reversed(range(OPENING_TRIES)):
            try:
                return await self._opened()
            except Aborted as error:
                if error.reason != "PRODUCER_FENCED" or not tries_left:
                    raise
                # The clock of the earlier loop was ahead of ours.
                self._epoch = int(error.metadata["epoch"]) + 1
        raise AssertionError("the last try returns or raises")

    async def _opened(self) -> Producer:
        producer = self.session.producer(
            self._producer_id, epoch=self._epoch, give_up_seconds=self._give_up_seconds
        )
        return await producer.__aenter__()
