"""A state memory: the working context of an agent, and the vectors behind it."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from palimpsest import rebuilding, specs, state_convert, values
from palimpsest.connection import CALL_SECONDS, Connection
from palimpsest.memory import Memory
from palimpsest.state_values import Freshness, StateSettings, StateVector
from palimpsest.v1 import states_pb2, states_pb2_grpc
from palimpsest.values import ContextForm

if TYPE_CHECKING:
    from palimpsest.session import Session


class State(Memory):
    """A state memory, by its name. What is for other kinds is FailedPrecondition."""

    def __init__(self, client: Connection, session: "Session", name: str) -> None:
        super().__init__(client, session, name)
        self._states = states_pb2_grpc.StateServiceStub(client.channel)

    async def context(
        self,
        *,
        freshness: Freshness = "latest",
        position: int | None = None,
        forms: Sequence[ContextForm] = ("parts", "text", "messages"),
        timeout: float = CALL_SECONDS,
    ) -> values.WorkingContext:
        """The working context: the vectors in use, and the steps since.

        Now, or as it was when the log ended at `position`. `forms` says what it has.
        With "wait" it waits for every compression that is due, and raises DeadlineExceeded
        (NOT_APPLIED_IN_TIME) after `timeout` seconds, FailedPrecondition when the memory
        has stalled, ResourceExhausted when a budget holds it. ResourceExhausted
        (CONTEXT_TOO_LARGE) when it passes a limit. Raises NotFound, OutOfRange for a position
        behind the head.
        """
        request = specs.message_of(
            states_pb2.GetWorkingContextRequest,
            **self._named,
            freshness=specs.number_of("freshness", freshness),
            position=position,
            forms=[specs.number_of("form", form) for form in forms],
        )
        response = await self._client.call(self._states.GetWorkingContext, request, timeout=timeout)
        return state_convert.working_context(response)

    async def vectors(self, *, level: int = 0) -> AsyncIterator[StateVector]:
        """The state vectors, oldest first, of one level or of all (0)."""
        request = specs.message_of(
            states_pb2.ListStateVectorsRequest, **self._named, level=level, page_size=1000
        )
        async for page in self._client.pages(self._states.ListStateVectors, request):
            for entry in page.entries:
                yield state_convert.state_vector(entry.vector, entry.create_time)

    async def rebuild(  # type: ignore[override]  # what may be changed is another kind's
        self,
        new_name: str,
        *,
        settings: StateSettings | None = None,
        model: str | None = None,
        on_progress: Callable[[values.MemoryInfo], None] | None = None,
    ) -> "State":
        """Reads the whole log again into a new memory; returns it when that is done.

        `settings` are the new memory's as a whole; None takes over this one's, and `model`
        changes that alone. `on_progress` as in `Memory.rebuild`. Raises AlreadyExists,
        FailedPrecondition when it stalls.
        """
        made = State(self._client, self.session, new_name)
        state = None if settings is None else specs.state_spec(settings)
        changes = {"state": state, "model": model}
        request = rebuilding.request_of(self.session.name, self.name, new_name, changes)
        await rebuilding.follow(self._client, request, made.look, on_progress)
        return made

    async def _info(self) -> values.MemoryInfo:
        # Its value has all that is recent, which is too much while it catches up.
        listed = await self.session.memories()
        found = next((one for one in listed if one.name == self.name), None)
        return await super()._info() if found is None else found
