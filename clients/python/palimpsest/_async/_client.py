"""The client: the connection, and what belongs to no session."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Unpack

import grpc

from palimpsest._async._access import Access
from palimpsest._async._agent import WAIT_SECONDS, Agent
from palimpsest._async._connection import Connection
from palimpsest._async._operation import Operation
from palimpsest._async._resource import Resource
from palimpsest._async._runtime import Channel
from palimpsest._async._session import Session
from palimpsest._async._transfers import OnProgress, Upload, is_imported
from palimpsest._convert import message_of, value_of
from palimpsest._credentials import AccessOptions, Token
from palimpsest._errors import AlreadyExists
from palimpsest._memories import MemoryInfo, MemoryStatus, memory
from palimpsest._operations import OperationKind, list_request
from palimpsest._schemas import MAX_JSON_BYTES, MAX_SOURCE_BYTES, bounded
from palimpsest._specs import AgentSettings
from palimpsest._spend import Budget, Grouping, StoredSize, UsageReport
from palimpsest._transfers import header_of, open_input, read_header
from palimpsest._transport import REACH_SECONDS
from palimpsest._values_answers import Answer, ResumeOptions
from palimpsest._values_common import OperationState
from palimpsest._values_log import Retention, SessionInfo
from palimpsest.v1 import memory_service_pb2, operation_service_pb2, session_service_pb2


def connect(
    target: str | None = None,
    *,
    token: Token | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    certificate_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    plain_token: bool = False,
    timeout: float | None = None,
    reach_seconds: float = REACH_SECONDS,
) -> "Client":
    """Returns a client of the service at `target`. Use it with `async with`.

    `target` is HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT (TLS) or unix:PATH; the default
    port is 50051, the default target PALIMPSEST_ADDRESS, else 127.0.0.1.

    `token` is an API key or a JSON Web Token: its text, the Path of a file with it, which is read
    again when it changes, or a function that returns it and is called before each call. Default:
    PALIMPSEST_TOKEN, or the file PALIMPSEST_TOKEN_FILE. It is sent to other machines by TLS only,
    unless `plain_token` allows it (PALIMPSEST_PLAIN_TOKEN).

    For grpcs://, `ca_file` has the roots that are trusted, in PEM (PALIMPSEST_CA_FILE; default:
    gRPC's), and `certificate_file` with `key_file` the client's own certificate
    (PALIMPSEST_CERTIFICATE_FILE, PALIMPSEST_KEY_FILE). `credentials`, gRPC's, take their place.

    `timeout` limits calls without a timeout of their own, in seconds; None: 30, 60 for questions
    and appends, 120 for `generate_schema`. Producers and watches have limits of their own.

    Nothing is sent before the first call, producer or watch. It raises ConnectionFailed when the
    service cannot be reached for `reach_seconds`: give more while the service may be starting.
    Later, calls wait for a lost service until their timeout. Raises ValueError.
    """
    return Client(
        target,
        timeout=timeout,
        reach_seconds=reach_seconds,
        token=token,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
        credentials=credentials,
        plain_token=plain_token,
    )


class Client(Resource):
    """A connection to the service; all sessions share it. See `connect`."""

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout: float | None = None,
        reach_seconds: float = REACH_SECONDS,
        channel: Channel | None = None,
        **options: Unpack[AccessOptions],
    ) -> None:
        """`channel`: one that is there already; no token is sent over it. See `connect`."""
        super().__init__(
            Connection(
                target, timeout=timeout, reach_seconds=reach_seconds, channel=channel, **options
            )
        )

    @property
    def address(self) -> str:
        """The address of the service, in gRPC's form."""
        return self._connection.address

    @property
    def channel(self) -> Channel:
        """The gRPC channel, for your own stubs; `call` sends the token with them."""
        return self._connection.channel

    @property
    def access(self) -> Access:
        """Administration: tenants, keys and the audit log."""
        return Access(self._connection)

    async def call(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout: float | None = None,
        retry: bool = True,
    ) -> Any:
        """Makes a unary call of your own stub, and repeats it while the service is unavailable.

        Without `retry`, repeats it only after refusals that precede any work. Raises
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

    async def import_session(
        self,
        path: str | os.PathLike[str],
        session: str = "",
        *,
        restore_deleted: bool = False,
        progress: OnProgress | None = None,
    ) -> "Session":
        """Imports the file of an export, under its own id or another.

        The session is visible once all of it was verified. After an interruption, call it again:
        it continues. `progress` is called after each block. `restore_deleted` also imports a
        session that was deleted in this tenant after the export. Raises AlreadyExists
        (SESSION_EXISTS), InvalidArgument (IMPORT_INVALID, with the line), FailedPrecondition
        (IMPORT_UNFINISHED), and ValueError for a file that is no export.
        """
        with open_input(path) as file:
            header = header_of(read_header(file))
            name = session or str(header["session"])
            try:
                await Upload(self._connection, file, name, progress, restore_deleted).run()
            except AlreadyExists:
                # The reply of a stream before may have been lost.
                if not await is_imported(self._connection, name, header.get("export_id")):
                    raise
        return self.session(name)

    async def create_session(
        self,
        id: str,
        *,
        exist_ok: bool = False,
        language: str = "",
        metadata: Mapping[str, str] | None = None,
        default_memory: bool | None = None,
        retention: Retention | None = None,
        request_id: str = "",
    ) -> "Session":
        """Creates a session.

        With `exist_ok` an existing session is used, unless its language differs from a given
        `language`; its metadata stays unchanged. `language` is the language of the text search:
        "english", "german", "simple" (words as they are) …; empty: the service's default.
        `metadata` has at most 16 keys and values of your own, which no model sees.
        `default_memory`: whether the first append makes a memory "default" if there is none by
        then; None: as the service's setting says. `retention`: how long data is kept, where that
        differs from the tenant's policy. For 24 hours the same `request_id` returns the first
        result and does nothing.

        Raises AlreadyExists, InvalidArgument, TypeError, ValueError, and Aborted (BEING_DELETED)
        while the rows of a deleted session with this id are being removed.
        """
        session = Session(self._connection, id)
        await session.create(
            exist_ok=exist_ok,
            language=language,
            metadata=metadata,
            default_memory=default_memory,
            retention=retention,
            request_id=request_id,
        )
        return session

    async def delete_session(
        self,
        id: str,
        *,
        missing_ok: bool = False,
        include_imports: bool = False,
        reason: str = "",
        request_id: str = "",
    ) -> None:
        """Deletes a session with its log, memories, answers and budgets.

        It cannot be read once this returns, nor restored. Its cost stays in the tenant's usage,
        and `reason` in the record of the erasure (`client.access.erasures`). With
        `include_imports` the tenant's sessions that were imported from exports of it are deleted
        first. Raises NotFound unless `missing_ok`. `request_id` as in `create_session`.
        """
        session = Session(self._connection, id)
        await session.delete(
            missing_ok=missing_ok,
            include_imports=include_imports,
            reason=reason,
            request_id=request_id,
        )

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
        """Yields the memories of all sessions, of one status if given, in no order."""
        request = message_of(memory_service_pb2.ListMemoriesRequest, status=status, page_size=1000)
        method = self._connection.memories.ListMemories
        return self._connection.all_of(method, request, "memories", memory)

    async def retry_stalled(self, session: str = "", *, request_id: str = "") -> int:
        """Retries the stalled memories of a session, or all; returns how many. Raises NotFound."""
        request = memory_service_pb2.RetryMemoryRequest(session=session, request_id=request_id)
        response = await self._connection.call(self._connection.memories.RetryMemory, request)
        return int(response.retried)

    async def operation(self, id: str) -> Operation[Any]:
        """Returns an operation; it is kept for 30 days. Raises NotFound."""
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
        """Yields the operations that match, newest first, without their results.

        `memory` needs its `session`. Raises NotFound, InvalidArgument.
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
        """Returns the loop of an agent with context compression; open it with `async with`.

        `settings` are those of `palimpsest.StateSettings`, for the state memory `memory`,
        which is created if it is missing. `producer_id` names the loop within the session. A
        context waits up to `wait_seconds` for a compression that is due. The loop fails when
        the service is unreachable for `give_up_seconds`. Raises ValueError, TypeError.
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
        """Yields all budgets and how much of each is spent: the tenant's, then by session."""
        return self._list_budgets("")

    async def storage(self) -> tuple[StoredSize, ...]:
        """Returns how much is stored of the tenant by kind, with indexes: an estimate."""
        return await self._read_storage("")

    async def usage(
        self,
        *,
        group_by: Sequence[Grouping] = ("session",),
        first_day: date | None = None,
        last_day: date | None = None,
    ) -> UsageReport:
        """Returns the usage of all model calls, from day to day (UTC, both included).

        `group_by` makes a line for each "session" or "memory", and for each "day"; without it
        there is one line.
        """
        return await self._read_usage(first_day, last_day, group_by=group_by)

    async def check_schema(self, source: str = "", *, json_schema: str = "") -> str:
        """Checks class source or a JSON Schema; returns the schema as models see it.

        Raises InvalidArgument (SCHEMA_INVALID with line and column, or with a pointer), and
        ValueError for both or neither, or more than 64 KiB of source or 256 KiB of JSON Schema.
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
