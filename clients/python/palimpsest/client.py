"""The client: the connection, and what belongs to no session."""

from collections.abc import AsyncIterator
from datetime import date
from types import TracebackType
from typing import Unpack

from palimpsest import convert, costs, values
from palimpsest.agents import WAIT_SECONDS, Agent, Choices
from palimpsest.answer_values import ResumeOptions
from palimpsest.budgets import Budget, Budgets, BudgetSet, Period
from palimpsest.connection import REACH_SECONDS, Connection
from palimpsest.costs import Level, SpendReport
from palimpsest.schemas import MAX_JSON_BYTES, MAX_SOURCE_BYTES, bounded
from palimpsest.session import Session
from palimpsest.v1 import (
    memories_pb2,
    memories_pb2_grpc,
    schemas_pb2,
    schemas_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
)


def connect(address: str | None = None, *, reach_seconds: float = REACH_SECONDS) -> "Client":
    """A client of the service at `address` (HOST:PORT). Use it as a context manager.

    None: the address that PALIMPSEST_ADDRESS names, else 127.0.0.1:50051. Nothing is sent
    until the first call, producer or watch, which raises ConnectionFailed when the service
    cannot be reached for `reach_seconds`: give more where it may be starting. Once it was
    reached, one that goes away is waited for as long as each call says.
    """
    return Client(address, reach_seconds=reach_seconds)


class Client(Connection):
    """A connection to the service; all sessions share it."""

    def __init__(self, address: str | None = None, *, reach_seconds: float = REACH_SECONDS) -> None:
        super().__init__(address, reach_seconds=reach_seconds)
        self._sessions = sessions_pb2_grpc.SessionServiceStub(self._channel)
        self._memories = memories_pb2_grpc.MemoryServiceStub(self._channel)
        self._schemas = schemas_pb2_grpc.SchemaServiceStub(self._channel)
        self._budgets = Budgets(self)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def session(self, name: str) -> "Session":
        """A session by its name; nothing is sent."""
        return Session(self, name)

    async def create_session(
        self, name: str, *, exist_ok: bool = False, language: str = ""
    ) -> "Session":
        """Creates a session. Raises AlreadyExists, unless `exist_ok`.

        `language` is what its text is searched in: "english", "german", "simple" (words as
        they are) …; empty means the service's. One that exists keeps its own.
        """
        session = Session(self, name)
        await session.create(exist_ok=exist_ok, language=language)
        return session

    async def resume_answer(
        self, session: str, answer_id: str, **options: Unpack[ResumeOptions]
    ) -> values.Answer:
        """Waits on for an answer of a session. See `palimpsest.session.Session.resume_answer`."""
        return await self.session(session).resume_answer(answer_id, **options)

    async def sessions(self) -> AsyncIterator[values.SessionInfo]:
        """All sessions, by name."""
        request = sessions_pb2.ListSessionsRequest(page_size=1000)
        async for page in self.pages(self._sessions.ListSessions, request):
            for message in page.sessions:
                yield convert.session(message)

    async def memories(
        self, *, stalled: bool = False, waiting: bool = False
    ) -> AsyncIterator[values.MemoryInfo]:
        """Memories of all sessions: all, or those that stalled, or that wait for their model."""
        request = memories_pb2.ListMemoriesRequest(waiting=waiting, page_size=1000)
        if stalled:
            request.status = memories_pb2.Memory.STATUS_STALLED
        async for page in self.pages(self._memories.ListMemories, request):
            for message in page.memories:
                yield convert.memory(message)

    async def retry_stalled(self, session: str = "") -> int:
        """Lets all stalled memories try again, of a session or of all; how many.

        Raises NotFound.
        """
        request = memories_pb2.RetryMemoryRequest(session=session)
        response = await self.call(self._memories.RetryMemory, request)
        return int(response.retried)

    def agent(
        self,
        session: Session | str,
        *,
        memory: str = "state",
        producer_id: str = "agent",
        wait_seconds: float = WAIT_SECONDS,
        give_up_seconds: float = 60.0,
        **settings: Unpack[Choices],
    ) -> Agent:
        """What an agent's loop needs of Palimpsest; open it with `async with`.

        `settings` are those of `palimpsest.StateSettings`, for the state memory `memory`,
        which is made when it is not there. `producer_id` names the loop within the session.
        A context waits `wait_seconds` for a compression that is due, 0: not at all. It
        fails when the service could not be reached for `give_up_seconds`. Raises ValueError
        or TypeError for settings that cannot be.
        """
        return Agent(
            self,
            session,
            memory=memory,
            producer_id=producer_id,
            wait_seconds=wait_seconds,
            give_up_seconds=give_up_seconds,
            **settings,
        )

    async def set_budget(
        self,
        period: Period,
        *,
        limit_tokens: int | None = None,
        limit_micro_usd: int | None = None,
    ) -> BudgetSet:
        """Bounds what all model calls of the tenant may come to, a day (UTC) or in total.

        One limit or both: tokens of prompts and replies, and millionths of a US dollar.
        In place of the budget of that period before; held memories try again. Sessions
        and memories have the same method for theirs, and NotFound.
        """
        return await self._budgets.set(
            period, limit_tokens=limit_tokens, limit_micro_usd=limit_micro_usd
        )

    def budgets(self) -> AsyncIterator[Budget]:
        """All budgets with what is spent of them: the tenant's, then by session."""
        return self._budgets.list()

    async def clear_budget(self, period: Period) -> int:
        """Takes the tenant's budget away; how many held memories try again. Raises NotFound."""
        return await self._budgets.clear(period)

    async def spend(
        self,
        *,
        level: Level = "session",
        by_day: bool = False,
        from_day: date | None = None,
        to_day: date | None = None,
    ) -> SpendReport:
        """What all model calls came to, from day to day (UTC, both included).

        A line for each session, or for each memory, or for none, and for each day if
        wanted. Sessions have the same method for theirs.
        """
        return await costs.read_spend(
            self, level=level, by_day=by_day, from_day=from_day, to_day=to_day
        )

    async def check_schema(self, source: str = "", *, json_schema: str = "") -> str:
        """Checks class source, or a JSON Schema; the schema as models will be shown it.

        Raises InvalidArgument (SCHEMA_INVALID with line and column, or with a pointer), and
        ValueError for more than 64 KiB of class source, or 256 KiB of JSON Schema.
        """
        request = schemas_pb2.CheckSchemaRequest(
            schema_source=bounded(source, MAX_SOURCE_BYTES),
            json_schema=bounded(json_schema, MAX_JSON_BYTES),
        )
        response = await self.call(self._schemas.CheckSchema, request)
        return str(response.schema_source)
