"""The client: sessions, memories and questions."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

import grpc
from grpc import aio

from palimpsest import convert, values
from palimpsest.errors import PalimpsestError, from_rpc
from palimpsest.producer import Producer
from palimpsest.v1 import (
    answers_pb2,
    answers_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    reading_pb2,
    schemas_pb2,
    schemas_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
    usage_pb2,
    usage_pb2_grpc,
)

#: Where `palimpsest up` listens.
DEFAULT_ADDRESS = "127.0.0.1:50051"
#: How long a call may take when the caller does not say, how long a question, and how
#: long a schema, which may take a model more than one reply.
CALL_SECONDS = 30.0
ASK_SECONDS = 60.0
SCHEMA_SECONDS = 120.0
#: Wait before the second try of a read; doubles with each further one.
BACKOFF_SECONDS = 0.1
#: Given to a reply of the service's own deadline to arrive before ours.
SLACK_SECONDS = 0.5

_OPTIONS = (
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", 4 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

Event = values.Waiting | values.Reading


def connect(address: str = DEFAULT_ADDRESS) -> "Client":
    """A client of the service at `address` (HOST:PORT). Use it as a context manager.

    Nothing is sent until the first call.
    """
    return Client(address)


class Client:
    """A connection to the service; all sessions share it."""

    def __init__(self, address: str = DEFAULT_ADDRESS) -> None:
        self.address = address
        self._channel = aio.insecure_channel(address, options=_OPTIONS)
        self._sessions = sessions_pb2_grpc.SessionServiceStub(self._channel)
        self._schemas = schemas_pb2_grpc.SchemaServiceStub(self._channel)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    def session(self, name: str) -> "Session":
        """A session by its name; nothing is sent."""
        return Session(self, name)

    async def create_session(self, name: str, *, exist_ok: bool = False) -> "Session":
        """Creates a session. Raises AlreadyExists, unless `exist_ok`."""
        request = sessions_pb2.CreateSessionRequest(name=name)
        try:
            await self.call(self._sessions.CreateSession, request, retry=False)
        except PalimpsestError as error:
            if not (exist_ok and error.reason == "SESSION_EXISTS"):
                raise
        return Session(self, name)

    async def sessions(self) -> AsyncIterator[values.SessionInfo]:
        """All sessions, by name."""
        token = ""
        while True:
            request = sessions_pb2.ListSessionsRequest(page_size=1000, page_token=token)
            page = await self.call(self._sessions.ListSessions, request)
            for message in page.sessions:
                yield convert.session(message)
            token = page.next_page_token
            if not token:
                return

    async def check_schema(self, source: str = "", *, json_schema: str = "") -> str:
        """Checks class source, or a JSON Schema; the schema as models will be shown it.

        Raises InvalidArgument (SCHEMA_INVALID with line and column, or with a pointer).
        """
        request = schemas_pb2.CheckSchemaRequest(schema_source=source, json_schema=json_schema)
        response = await self.call(self._schemas.CheckSchema, request)
        return str(response.schema_source)

    async def call(
        self,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout: float = CALL_SECONDS,
        retry: bool = True,
    ) -> Any:
        """One unary call; what may be repeated is, while the service is unavailable."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        wait = BACKOFF_SECONDS
        while True:
            try:
                remaining = max(until - loop.time(), 0.001)
                return await method(request, timeout=remaining + SLACK_SECONDS)
            except aio.AioRpcError as error:
                known = from_rpc(error, self.address)
                again = retry and error.code() is grpc.StatusCode.UNAVAILABLE
                pause = max(wait * random.uniform(0.5, 1.0), known.retry_seconds or 0.0)
                if not again or loop.time() + pause > until:
                    raise known from error
            await asyncio.sleep(pause)
            wait *= 2

    @property
    def channel(self) -> aio.Channel:
        """The channel that all stubs share."""
        return self._channel


class Session:
    """A session, by its name."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client
        channel = client.channel
        self._sessions = sessions_pb2_grpc.SessionServiceStub(channel)
        self._log = log_pb2_grpc.LogServiceStub(channel)
        self._memories = memories_pb2_grpc.MemoryServiceStub(channel)
        self._answers = answers_pb2_grpc.AnswerServiceStub(channel)
        self._usage = usage_pb2_grpc.UsageServiceStub(channel)
        self._schemas = schemas_pb2_grpc.SchemaServiceStub(channel)

    async def info(self) -> values.SessionInfo:
        """Reads the session. Raises NotFound."""
        request = sessions_pb2.GetSessionRequest(name=self.name)
        response = await self._client.call(self._sessions.GetSession, request)
        return convert.session(response.session)

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int = 0,
        expected_head: int | None = None,
        give_up_seconds: float = 60.0,
    ) -> Producer:
        """A producer; open it with `async with`.

        `producer_id` is its lasting name within the session. A higher `epoch` fences
        its older streams off. It fails when the service could not be reached, or took
        nothing, for `give_up_seconds`.
        """
        return Producer(
            self._client.channel,
            self._client.address,
            self.name,
            producer_id,
            epoch=epoch,
            expected_head=expected_head,
            give_up_seconds=give_up_seconds,
        )

    async def chunks(self, *, from_position: int = 1) -> AsyncIterator[values.Chunk]:
        """The log from a position on. Raises NotFound."""
        position = from_position
        while position:
            request = log_pb2.ListChunksRequest(
                session=self.name, from_position=position, page_size=1000
            )
            page = await self._client.call(self._log.ListChunks, request)
            for message in page.chunks:
                yield convert.chunk(message)
            position = page.next_position

    async def create_memory(
        self,
        name: str,
        *,
        schema_source: str,
        task: str = "",
        question: str = "",
        chunk_tokens: int = 0,
        model: str = "",
        skip_failures: bool = False,
        fold_tokens: int = 0,
    ) -> "Memory":
        """Creates a PRISM memory; it catches up from position 1 in the background.

        `schema_source` is Python class source, parsed and never run. Zeros and empty
        texts mean the service's defaults. Raises InvalidArgument (SCHEMA_INVALID with
        line and column), AlreadyExists, NotFound.
        """
        spec = memories_pb2.PrismSpec
        request = memories_pb2.CreateMemoryRequest(
            session=self.name,
            name=name,
            prism=spec(
                schema_source=schema_source,
                task=task,
                question=question,
                chunk_tokens=chunk_tokens,
                model=model,
                on_failure=spec.ON_FAILURE_SKIP if skip_failures else spec.ON_FAILURE_STALL,
                fold_tokens=fold_tokens,
            ),
        )
        await self._client.call(self._memories.CreateMemory, request, retry=False)
        return Memory(self._client, self, name)

    def memory(self, name: str) -> "Memory":
        """A memory by its name; nothing is sent."""
        return Memory(self._client, self, name)

    async def memories(self) -> Sequence[values.MemoryInfo]:
        """The session's memories, by name. Raises NotFound."""
        request = memories_pb2.ListMemoriesRequest(session=self.name)
        response = await self._client.call(self._memories.ListMemories, request)
        return [convert.memory(message) for message in response.memories]

    async def answer(self, answer_id: str) -> values.Answer:
        """Reads a stored answer. Raises NotFound."""
        request = answers_pb2.GetAnswerRequest(session=self.name, answer_id=answer_id)
        response = await self._client.call(self._answers.GetAnswer, request)
        return convert.answer(response.answer)

    async def generate_schema(
        self, domain: str, example_query: str, *, model: str = "", timeout: float = SCHEMA_SECONDS
    ) -> values.SchemaDraft:
        """Has a model write a schema for texts of `domain` and questions like the example.

        Raises NotFound, FailedPrecondition (SCHEMA_NOT_GENERATED: the model wrote no
        valid one), DeadlineExceeded. A schema that comes too late is stored all the
        same: the error's metadata names the draft for `schema_draft`.
        """
        request = schemas_pb2.GenerateSchemaRequest(
            session=self.name, domain=domain, example_query=example_query, model=model
        )
        # It costs model calls: not repeated.
        response = await self._client.call(
            self._schemas.GenerateSchema, request, timeout=timeout, retry=False
        )
        return convert.schema_draft(response.draft)

    async def schema_draft(self, draft_id: str) -> values.SchemaDraft:
        """Reads a schema that was asked for. Raises NotFound."""
        request = schemas_pb2.GetSchemaDraftRequest(session=self.name, draft_id=draft_id)
        response = await self._client.call(self._schemas.GetSchemaDraft, request)
        return convert.schema_draft(response.draft)

    async def usage(self, memory: str = "") -> values.UsageReport:
        """What the model calls of the session, or of a memory, came to."""
        request = usage_pb2.GetUsageRequest(session=self.name, memory=memory)
        return convert.usage_report(await self._client.call(self._usage.GetUsage, request))


class Memory:
    """A memory, by its name."""

    def __init__(self, client: Client, session: Session, name: str) -> None:
        self.name = name
        self.session = session
        self._client = client
        self._memories = memories_pb2_grpc.MemoryServiceStub(client.channel)
        self._answers = answers_pb2_grpc.AnswerServiceStub(client.channel)

    async def get(
        self,
        *,
        revision: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        timeout: float = CALL_SECONDS,
    ) -> values.MemoryState:
        """Reads the memory: now, at a revision, or once it is fresh enough.

        `after` is a token of an ack or a write that must be applied; `fully_applied`
        asks for everything in the log now. Raises DeadlineExceeded, whose metadata
        says how far the memory is, FailedPrecondition when it stalled, OutOfRange for
        a revision that is not there.
        """
        request = memories_pb2.GetMemoryRequest(
            session=self.session.name,
            memory=self.name,
            revision=revision,
            consistency=_consistency(after, fully_applied),
        )
        response = await self._client.call(self._memories.GetMemory, request, timeout=timeout)
        return convert.state(response)

    async def amendments(self) -> AsyncIterator[values.Amendment]:
        """Every change that made the memory, oldest first."""
        token = ""
        while True:
            request = memories_pb2.ListAmendmentsRequest(
                session=self.session.name, memory=self.name, page_size=1000, page_token=token
            )
            page = await self._client.call(self._memories.ListAmendments, request)
            for message in page.amendments:
                yield convert.amendment(message)
            token = page.next_page_token
            if not token:
                return

    async def rejections(self) -> AsyncIterator[values.Rejection]:
        """Everything the model proposed and the schema refused, oldest first."""
        token = ""
        while True:
            request = memories_pb2.ListRejectionsRequest(
                session=self.session.name, memory=self.name, page_size=1000, page_token=token
            )
            page = await self._client.call(self._memories.ListRejections, request)
            for message in page.rejections:
                yield convert.rejection(message)
            token = page.next_page_token
            if not token:
                return

    async def retry(self) -> values.MemoryInfo:
        """Lets a stalled memory try again from where it is stuck."""
        request = memories_pb2.RetryMemoryRequest(session=self.session.name, memory=self.name)
        response = await self._client.call(self._memories.RetryMemory, request)
        return convert.memory(response.memory)

    async def ask(
        self,
        query: str,
        *,
        after: str = "",
        fully_applied: bool = False,
        timeout: float = ASK_SECONDS,
        on_event: Callable[[Event], None] | None = None,
    ) -> values.Answer:
        """Asks the memory; the answer with its citations.

        Freshness and errors as in `get`. `on_event` hears how far the memory is while
        the call waits, and where it reads. An answer that comes too late is stored all
        the same: the error's metadata names it for `Session.answer`.
        """
        request = answers_pb2.AskRequest(
            session=self.session.name,
            memory=self.name,
            query=query,
            consistency=_consistency(after, fully_applied),
        )
        try:
            async for response in self._answers.Ask(request, timeout=timeout + SLACK_SECONDS):
                kind = response.WhichOneof("event")
                if kind == "answer":
                    return convert.answer(response.answer)
                if on_event is not None:
                    on_event(_event(response))
        except aio.AioRpcError as error:
            raise from_rpc(error, self._client.address) from error
        raise PalimpsestError("the service ended the call without an answer")


def _event(response: answers_pb2.AskResponse) -> Event:
    if response.WhichOneof("event") == "waiting":
        return values.Waiting(
            applied_position=response.waiting.applied_position,
            wanted_position=response.waiting.wanted_position,
        )
    return values.Reading(
        answer_id=response.reading.answer_id,
        revision=response.reading.revision,
        applied_position=response.reading.applied_position,
    )


def _consistency(after: str, fully_applied: bool) -> reading_pb2.ReadConsistency | None:
    if fully_applied:
        return reading_pb2.ReadConsistency(fully_applied=True)
    return reading_pb2.ReadConsistency(at_least=after) if after else None
