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
#: Loops that may take a session over at the same moment until one gives up.
OPENING_TRIES = 5
#: What a compression that is not made in time, or cannot be made, is refused with.
_NOT_MADE = ("NOT_APPLIED_IN_TIME", "MEMORY_STALLED", "BUDGET_EXHAUSTED")


class Agent:
    """What an agent's loop needs: the context before each step, and a place for the step.

    Open it with `async with`. Session and memory are made where they are missing; a memory
    that is there is used, unless it has other settings than those that are given
    (AlreadyExists names them). A loop that is started again continues after what is durable:
    `step` says where. Of two loops on one session the one that was opened later continues,
    and the other gets Aborted (PRODUCER_FENCED) from its next step. Leaving it does not
    compress what is recent.
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
        """t: the number of the next step, from 1 on. Messages count as steps.

        What others append in between is seen with the next context.
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
        """Closes it, once everything that was recorded is durable."""
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
        """What the model is to read before the next step: algorithm 1's M and R.

        It waits up to `wait_seconds` for a compression that is due. What is not made by
        then, or cannot be made (`blocked` says why), leaves the older vectors and more
        recent steps: every step is in the context once, in any case.
        """
        context = await self._waited(forms) if self._wait_seconds > 0 else None
        if context is None:
            context = await self.memory.context(forms=forms)
        self._head = max(self._head, context.head)
        return context

    async def _waited(self, forms: Sequence[ContextForm]) -> WorkingContext | None:
        """The context with every compression that is due; None where that cannot be had."""
        try:
            return await self.memory.context(
                fully_applied=True, forms=forms, timeout=self._wait_seconds
            )
        except (DeadlineExceeded, Unavailable):
            # The read that follows finds out what is left of it.
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

        The observation is what came of the action, and is read after it; with
        `observed_first`, where a world speaks before the agent acts, before thought and action.
        Any part may be empty, not all of them. A part of more than `cut_bytes` bytes is cut
        there, with a mark that says how much is missing; without it a step that is too large
        is refused. `labels` are `thread`, `source`, `occurred_at` and `metadata`. A lost connection
        is gone around, and the step is stored once.

        Raises ValueError, InvalidArgument (nothing is stored, and the next step may follow),
        Aborted (PRODUCER_FENCED) when another loop took over. When the service was away for
        too long, or the call is cancelled, the step may be in the log: the `step` of an agent
        that is opened anew says.
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
        """Appends a message, of the user for example; otherwise as `record`."""
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
        """The producer; a new one of the same epoch where a step was refused."""
        if self._producer is None:
            raise ProducerClosed("this agent is not open: use it with `async with`")
        if isinstance(self._failure, InvalidArgument):
            # A refusal ends the stream; what follows must not suffer from it.
            await self._producer.__aexit__(type(self._failure), self._failure, None)
            self._producer = await self._opened()
            self._failure = None
        return self._producer

    async def _open(self) -> Producer:
        """A producer that fences off those of the loops before."""
        self._epoch = max(self._epoch, time.time_ns() // 1000)
        for tries_left in reversed(range(OPENING_TRIES)):
            try:
                return await self._opened()
            except Aborted as error:
                if error.reason != "PRODUCER_FENCED" or not tries_left:
                    raise
                # The clock of the loop before was ahead of ours.
                self._epoch = int(error.metadata["epoch"]) + 1
        raise AssertionError("the last try returns or raises")

    async def _opened(self) -> Producer:
        producer = self.session.producer(
            self._producer_id, epoch=self._epoch, give_up_seconds=self._give_up_seconds
        )
        return await producer.__aenter__()
