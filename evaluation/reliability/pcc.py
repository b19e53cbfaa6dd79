"""PCC: the game's history in a state memory of the service, as any agent would keep it."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import palimpsest
from evaluation.reliability.playing import Failed, Spent
from evaluation.reliability.prompts import Step

#: The names of a game's memory, and of the producer of its log.
MEMORY = "state"
PRODUCER = "agent"


class StateStrategy:
    """A session with a state memory: the context is its working context at each step."""

    def __init__(
        self,
        state: palimpsest.State,
        producer: palimpsest.Producer,
        *,
        timeout_seconds: float,
    ) -> None:
        self._state = state
        self._producer = producer
        self._timeout_seconds = timeout_seconds
        self._steps = 0

    async def context(self, wanted: str) -> Sequence[str]:
        """Returns the state vectors in use and the steps since; waits for due compressions."""
        try:
            found = await self._state.context(
                fully_applied=True, forms=("parts",), timeout=self._timeout_seconds
            )
        except palimpsest.PalimpsestError as error:
            raise Failed(str(error)) from error
        if found.head != self._steps:
            raise Failed(f"the working context ends at step {found.head}, not at {self._steps}")
        vectors = [vector.text for vector in found.vectors]
        return [*vectors, *(_text(one) for one in found.recent)]

    async def record(self, step: Step) -> None:
        """Appends the step, durably."""
        try:
            await self._producer.append_step(
                observation=step.observation,
                thought=step.thought,
                action=step.action,
                observed_first=True,
            )
            await self._producer.flush()
        except palimpsest.PalimpsestError as error:
            raise Failed(str(error)) from error
        self._steps += 1

    async def spent(self) -> Spent:
        """Returns what the compressions cost, by the ledger."""
        try:
            total = (await self._state.session.usage(MEMORY)).total
        except palimpsest.PalimpsestError as error:
            raise Failed(str(error)) from error
        return Spent(
            calls=total.calls,
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
        )


def _text(chunk: palimpsest.Chunk) -> str:
    return Step(observation=chunk.observation, thought=chunk.thought, action=chunk.action).text


@contextlib.asynccontextmanager
async def keeping(
    client: palimpsest.Client,
    session_name: str,
    *,
    task: str,
    period: int,
    state_tokens: int,
    timeout_seconds: float,
) -> AsyncIterator[StateStrategy]:
    """Yields a context strategy with a memory of its own, which compresses every `period` steps.

    Raises Failed.
    """
    try:
        session = await client.create_session(session_name, exist_ok=True, default_memory=False)
        state = await session.create_state(
            MEMORY, task=task, period=period, state_tokens=state_tokens
        )
        async with session.producer(PRODUCER) as producer:
            yield StateStrategy(state, producer, timeout_seconds=timeout_seconds)
    except palimpsest.PalimpsestError as error:
        raise Failed(str(error)) from error
