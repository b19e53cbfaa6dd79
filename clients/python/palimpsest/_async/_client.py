"""The client: the connection, and what belongs to no session."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Unpack

import grpc

from palimpsest._async._agent import WAIT_SECONDS, Agent
from palimpsest._async._connection import Connection
from palimpsest._async._operation import Operation
from palimpsest._async._resource import Resource
from palimpsest._async._runtime import Channel
from palimpsest._async._session import Session
from palimpsest._convert import message_of, value_of
from palimpsest._memories import MemoryInfo, MemoryStatus, memory
from palimpsest._operations import OperationKind, list_request
from palimpsest._schemas import MAX_JSON_BYTES, MAX_SOURCE_BYTES, bounded
from palimpsest._specs import AgentSettings
from palimpsest._spend import Budget, Grouping, UsageReport
from palimpsest._transport import REACH_SECONDS
from palimpsest._values_answers import Answer, ResumeOptions
from palimpsest._values_common import OperationState
from palimpsest._values_log import SessionInfo
from palimpsest.v1 import memory_service_pb2, operation_service_pb2, session_service_pb2


def connect(
    target: str | None = None,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    timeout: float | None = None,
    reach_seconds: float = REACH_SECONDS,
) -> "Client":
    """Returns a client of the service at `target`. Use it with `async with`.

    HOST:PORT or grpc://HOST:PORT; grpcs://HOST:PORT with TLS; unix:PATH. Without a port it
    is 50051. None: what PALIMPSEST_ADDRESS names, else 127.0.0.1:50051. `credentials` are
    gRPC's, `grpc.ssl_channel_credentials(…)` for example; grpcs:// has the usual ones.

    `timeout` is how many seconds a call may take that has none of its own; None: 30, and 60
    for a question or an append, 120 for `generate_schema`. It does not bound producers and
    watches, which say for themselves when they give up.

    Nothing is sent until the first call, producer or watch, which raises ConnectionFailed when
    the service cannot be reached for `reach_seconds`: give more where it may be starting. Once
    it was reached, one that goes away is waited for as long as each call says. Raises
    ValueError for a target that is none.
    """
    return Client(target, credentials=credentials, timeout=timeout, reach_seconds=reach_seconds)


class Client(Resource):
    """A connection to the service; all sessions share it. See `connect`."""

    def __init__(
        self,
        target: str | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout: float | None = None,
        reach_seconds: float = REACH_SECONDS,
    ) -> None:
        connection = Connection(
            target, credentials=credentials, timeout=timeout, reach_seconds=reach_seconds
        )
        super().__init__(connection)

    @property
    def address(self) -> str:
        """The address of the service, as gRPC has it."""
        return self._connection.address

    @property
    def channel(self) -> Channel:
        """The channel, for stubs of one's own."""
        return self._connection.channel

    async def call(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout: float | None = None,
        retry: bool = True,
    ) -> Any:
        """Makes a unary call of a stub of one's own, and repeats it while the service is away.

        Without `retry` only after refusals that came before anything was done. Raises
        PalimpsestError.
        """
        return await self._connection.call(method, request, timeout=timeout, retry=retry)

    async def close(self) -> None:
        """Closes the connection."""
        await self._connection.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def session(self, id: str) -> "Session":
        """Returns a session by its id; nothing is sent."""
        return Session(self._connection, id)

    async def create_session(
        self,
        id: str,
        *,
        exist_ok: bool = False,
        language: str = "",
        metadata: Mapping[str, str] | None = None,
        request_id: str = "",
    ) -> "Session":
        """Creates a session.

        With `exist_ok` one that is there is used, unless it has another `language` than one
        that is given here; its metadata stays as it is. `language` is what its text is searched
        in: "english", "german", "simple" (words as they are) …; empty means the service's.
        `metadata` are at most 16 keys and values of your own, which no model sees. The same
        under the same `request_id` is done once, and returns its first result for 24 hours.

        Raises AlreadyExists, InvalidArgument, TypeError and ValueError for what cannot be sent,
        Aborted (BEING_DELETED: rows of one of that id are still being removed).
        """
        session = Session(self._connection, id)
        await session.create(
            exist_ok=exist_ok, language=language, metadata=metadata, request_id=request_id
        )
        return session

    async def delete_session(
        self, id: str, *, missing_ok: bool = False, request_id: str = ""
    ) -> None:
        """Deletes a session with all that belongs to it: log, memories, answers, budgets.

        Nothing of it can be read once this returns, and that cannot be undone. What it cost
        stays in the tenant's usage. Raises NotFound unless `missing_ok`. `request_id` as in
        `create_session`.
        """
        await Session(self._connection, id).delete(missing_ok=missing_ok, request_id=request_id)

    async def resume_answer(
        self, session: str, answer_id: str, **options: Unpack[ResumeOptions]
    ) -> Answer:
        """Waits for an answer of a session. See `Session.resume_answer`."""
        return await self.session(session).resume_answer(answer_id, **options)

    def sessions(self) -> AsyncIterator[SessionInfo]:
        """Yields all sessions, by id."""
        request = session_service_pb2.ListSessionsRequest(page_size=1000)
        method, convert = self._connection.sessions.ListSessions, partial(value_of, SessionInfo)
        return self._connection.all_of(method, request, "sessions", convert)

    def memories(self, *, status: MemoryStatus | str | None = None) -> AsyncIterator[MemoryInfo]:
        """Yields the memories of all sessions, or those of one status, without an order."""
        request = message_of(memory_service_pb2.ListMemoriesRequest, status=status, page_size=1000)
        method = self._connection.memories.ListMemories
        return self._connection.all_of(method, request, "memories", memory)

    async def retry_stalled(self, session: str = "", *, request_id: str = "") -> int:
        """Retries all stalled memories, of a session or of all; returns how many.

        Raises NotFound.
        """
        request = memory_service_pb2.RetryMemoryRequest(session=session, request_id=request_id)
        response = await self._connection.call(self._connection.memories.RetryMemory, request)
        return int(response.retried)

    async def operation(self, id: str) -> Operation[Any]:
        """Returns an operation. Raises NotFound: it is kept for 30 days."""
        request = operation_service_pb2.GetOperationRequest(operation=id)
        response = await self._connection.call(self._connection.operations.GetOperation, request)
        return Operation(self._connection, response)

    def operations(
        self,
        *,
        session: str = "",
        memory: str = "",
        kind: OperationKind | None = None,
        state: OperationState | None = None,
    ) -> AsyncIterator[Operation[Any]]:
        """Yields operations, newest first, without their results: all, or those that match.

        `memory` is one of the `session`. Raises NotFound, InvalidArgument.
        """
        return self._connection.all_of(
            self._connection.operations.ListOperations,
            list_request(session, memory, kind, state),
            "operations",
            lambda message: Operation(self._connection, message),
        )

    def agent(
        self,
        session: Session | str,
        *,
        memory: str = "state",
        producer_id: str = "agent",
        wait_seconds: float = WAIT_SECONDS,
        give_up_seconds: float = 60.0,
        **settings: Unpack[AgentSettings],
    ) -> Agent:
        """Returns what an agent's loop needs of Palimpsest; open it with `async with`.

        `settings` are those of `palimpsest.StateSettings`, for the state memory `memory`,
        which is made when it is not there. `producer_id` names the loop within the session.
        A context waits `wait_seconds` for a compression that is due, 0: not at all. It
        fails when the service could not be reached for `give_up_seconds`. Raises ValueError
        or TypeError for settings that cannot be.
        """
        if isinstance(session, str):
            session = self.session(session)
        return Agent(
            self._connection,
            session,
            memory=memory,
            producer_id=producer_id,
            wait_seconds=wait_seconds,
            give_up_seconds=give_up_seconds,
            **settings,
        )

    def budgets(self) -> AsyncIterator[Budget]:
        """Yields all budgets with what is spent of them: the tenant's, then by session."""
        return self._list_budgets("")

    async def usage(
        self,
        *,
        group_by: Sequence[Grouping] = ("session",),
        first_day: date | None = None,
        last_day: date | None = None,
    ) -> UsageReport:
        """Returns what all model calls used, from day to day (UTC, both included).

        `group_by` says what gets a line of its own: each "session", or each "memory", each
        "day"; nothing makes one line. Sessions have the same method for theirs.
        """
        return await self._read_usage(first_day, last_day, group_by=group_by)

    async def check_schema(self, source: str = "", *, json_schema: str = "") -> str:
        """Checks class source, or a JSON Schema; the schema as models will be shown it.

        Raises InvalidArgument (SCHEMA_INVALID with line and column, or with a pointer), and
        ValueError for both or neither, and for more than 64 KiB of class source, or 256 KiB of
        JSON Schema.
        """
        given = {
            "schema_source": bounded(source, MAX_SOURCE_BYTES),
            "json_schema": bounded(json_schema, MAX_JSON_BYTES),
        }
        # The request holds one of them: of two it would keep the last.
        if bool(source) == bool(json_schema):
            raise ValueError("give class source or json_schema, exactly one of them")
        request = memory_service_pb2.CheckSchemaRequest(
            **{name: text for name, text in given.items() if text}
        )
        response = await self._connection.call(self._connection.memories.CheckSchema, request)
        return str(response.schema_source)
