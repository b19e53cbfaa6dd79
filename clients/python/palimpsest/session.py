"""A session: its log, its memories, its costs; `session_questions` has what it can be asked."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

from palimpsest import appending, convert, costs, specs, values
from palimpsest.budgets import Budget, Budgets, BudgetSet, Period
from palimpsest.chunks import Appendable, chunks_of
from palimpsest.connection import CALL_SECONDS, Connection
from palimpsest.costs import Cost, Level, SpendReport
from palimpsest.creating import create_memory
from palimpsest.errors import AlreadyExists, OutOfRange
from palimpsest.memory import Memory
from palimpsest.producer import Producer
from palimpsest.schemas import Schema
from palimpsest.search import Search
from palimpsest.search_values import ChunkKind, SearchIndex, SearchMode, SearchResult
from palimpsest.session_questions import SessionQuestions
from palimpsest.state_values import Period as StatePeriod
from palimpsest.state_values import StateSettings
from palimpsest.states import State
from palimpsest.tree_values import ReplyFormat, TreeSettings, WorkingMemory
from palimpsest.trees import Tree
from palimpsest.v1 import (
    log_pb2,
    log_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    schemas_pb2,
    schemas_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
    usage_pb2,
    usage_pb2_grpc,
)

#: Chunks of a page; the service gives no more.
PAGE_CHUNKS = 1000
#: How long a schema may take, which may cost a model more than one reply.
SCHEMA_SECONDS = 120.0


class Session(SessionQuestions):
    """A session, by its name."""

    def __init__(self, client: Connection, name: str) -> None:
        super().__init__(client, name)
        channel = client.channel
        self._sessions = sessions_pb2_grpc.SessionServiceStub(channel)
        self._log = log_pb2_grpc.LogServiceStub(channel)
        self._memories = memories_pb2_grpc.MemoryServiceStub(channel)
        self._usage = usage_pb2_grpc.UsageServiceStub(channel)
        self._schemas = schemas_pb2_grpc.SchemaServiceStub(channel)
        self._budgets = Budgets(client, name)
        self._search = Search(client, name)

    async def create(self, *, exist_ok: bool = False, language: str = "") -> None:
        """Creates it. Raises AlreadyExists, unless `exist_ok`."""
        request = sessions_pb2.CreateSessionRequest(name=self.name, language=language)
        try:
            await self._client.call(self._sessions.CreateSession, request, retry=exist_ok)
        except AlreadyExists:
            if not exist_ok:
                raise

    async def info(self) -> values.SessionInfo:
        """Reads the session. Raises NotFound."""
        request = sessions_pb2.GetSessionRequest(name=self.name)
        response = await self._client.call(self._sessions.GetSession, request)
        return convert.session(response.session)

    async def append(
        self,
        items: Appendable | Iterable[Appendable],
        *,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        expected_head: int | None = None,
        timeout: float = appending.APPEND_SECONDS,
    ) -> values.Appended:
        """Appends a text, a message or a step, or several of them; durable when it returns.

        From any number of processes and tasks at once. A message is {"role": …, "content": …},
        a step of an agent has "observation", "thought" or "action", and "observed_first" where
        that is so; either may have "metadata", besides the `metadata` of all. All are stored,
        or none: 256 at most, of 1 MiB together.

        It is tried for `timeout` seconds and stored once. `request_id`, 1 to 128 characters,
        keeps that true over a restart of the program: the same content under the same id is
        stored once for ever. `expected_head` is the position behind which it must come.

        Raises TypeError, ValueError or InvalidArgument for what cannot be appended, NotFound,
        AlreadyExists (REQUEST_CONTENT_CHANGED), Aborted (HEAD_MISMATCH); and ResourceExhausted,
        DeadlineExceeded or Unavailable, whose metadata has the `request_id` to try on with.
        """
        return await appending.append(
            self._client,
            self._log,
            self.name,
            chunks_of(items, metadata),
            request_id=request_id,
            expected_head=expected_head,
            timeout=timeout,
        )

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int = 0,
        expected_head: int | None = None,
        give_up_seconds: float = 60.0,
    ) -> Producer:
        """A producer, for long streams of chunks from one process; open it with `async with`.

        `producer_id` is its lasting name within the session, and of no other process that
        lives at the same time; `append` needs none. A higher `epoch` fences its older
        streams off. It fails when the service went away, or took nothing, for
        `give_up_seconds`; sooner when it was never reached (see `connect`).
        """
        return Producer(
            self._client.channel,
            self._client.reach,
            self.name,
            producer_id,
            epoch=epoch,
            expected_head=expected_head,
            give_up_seconds=give_up_seconds,
        )

    async def chunks(
        self, *, from_position: int = 1, to_position: int | None = None
    ) -> AsyncIterator[values.Chunk]:
        """The log from a position on, up to `to_position` if one is given. Raises NotFound.

        No more is read than that: a chunk costs a page of one.
        """
        position = from_position
        while position and (to_position is None or position <= to_position):
            left = PAGE_CHUNKS if to_position is None else to_position - position + 1
            page = await self._page(position, min(left, PAGE_CHUNKS))
            for message in page.chunks:
                yield convert.chunk(message)
            position = page.next_position

    async def chunk(self, position: int) -> values.Chunk:
        """A chunk with its metadata, where a citation points for example.

        Raises NotFound, OutOfRange for a position that the log does not have.
        """
        page = await self._page(position, 1)
        if position < 1 or not page.chunks:
            raise OutOfRange(
                f"session {self.name!r} has no chunk at position {position}: its log ends at"
                f" {page.head}",
                metadata={"position": str(position), "head": str(page.head)},
            )
        return convert.chunk(page.chunks[0])

    async def _page(self, position: int, size: int) -> log_pb2.ListChunksResponse:
        request = specs.message_of(
            log_pb2.ListChunksRequest, session=self.name, from_position=position, page_size=size
        )
        page: log_pb2.ListChunksResponse = await self._client.call(self._log.ListChunks, request)
        return page

    async def search(
        self,
        query: str,
        *,
        limit: int = 0,
        mode: SearchMode = "auto",
        from_position: int = 0,
        to_position: int = 0,
        since: datetime | None = None,
        until: datetime | None = None,
        kinds: Collection[ChunkKind] = (),
        metadata: Mapping[str, str] | None = None,
        rerank: bool = False,
        timeout: float = CALL_SECONDS,
    ) -> SearchResult:
        """Finds the chunks that fit a query best: words, not an expression.

        At most `limit` (1 to 100; 0: 10), and fewer where they are long. Only chunks from
        `from_position` to `to_position`, committed from `since` to before `until`, of one
        of `kinds`, whose metadata has all of `metadata`; what is not given excludes none.
        `rerank` lets a model order the best. Raises NotFound, InvalidArgument, ValueError
        for what cannot be sent, FailedPrecondition (VECTORS_UNAVAILABLE, RERANK_FAILED),
        Unavailable (EMBEDDING_FAILED).
        """
        return await self._search.search(
            query,
            limit=limit,
            mode=mode,
            from_position=from_position,
            to_position=to_position,
            since=since,
            until=until,
            kinds=kinds,
            metadata=metadata,
            rerank=rerank,
            timeout=timeout,
        )

    async def search_index(self) -> SearchIndex:
        """How far words and vectors of the session are. Raises NotFound."""
        return await self._search.index()

    async def create_memory(
        self,
        name: str,
        schema: Schema | None = None,
        *,
        schema_source: str = "",
        task: str = "",
        question: str = "",
        final_task: str = "",
        encoding: values.Encoding | None = None,
        operations: values.Operations | None = None,
        coercion: values.Coercion | None = None,
        reply_format: ReplyFormat = "auto",
        steps: values.Steps | None = None,
        chunk_tokens: int = 0,
        fold_tokens: int = 0,
        memory_tokens: int = 0,
        linger: float | timedelta | None = None,
        model: str = "",
        skip_failures: bool = False,
        exist_ok: bool = False,
    ) -> Memory:
        """Creates a PRISM memory; it catches up from position 1 in the background.

        `schema` is class source, which is parsed and never run, a JSON Schema as a
        dict, or a dataclass, a TypedDict or a pydantic model; `schema_source` is the
        same for class source. `final_task` says how answers are to be, their form, length
        or language. `steps` "focused" lets the memory grow past `memory_tokens` while steps
        are shown no more of it than that. `linger` is how long a step waits for more chunks while
        it has fewer than `chunk_tokens`, in seconds or as a timedelta; 0: it does not. None:
        it waits for more messages, 10 seconds as a rule, and for nothing else. A read that
        waits for what was appended, a question and `flush` end the wait. `memory_tokens` is
        how large the memory may get before it is consolidated: 0 means 6,000. None, other
        zeros and empty texts mean the service's defaults. With `exist_ok` one that is there is
        used, if all that is given here is as it has it; otherwise AlreadyExists says what
        is not. Raises ValueError or TypeError for what cannot be sent, InvalidArgument
        (SCHEMA_INVALID with its place), AlreadyExists, NotFound.
        """
        if (schema is None) == (not schema_source):
            raise ValueError("give schema or schema_source, exactly one of them")
        spec = specs.prism_spec(
            schema_source if schema is None else schema,
            choices={
                "encoding": encoding,
                "operations": operations,
                "coercion": coercion,
                "reply_format": reply_format,
                "steps": steps,
            },
            linger=linger,
            skip_failures=skip_failures,
            task=task,
            question=question,
            final_task=final_task,
            chunk_tokens=chunk_tokens,
            fold_tokens=fold_tokens,
            memory_tokens=memory_tokens,
            model=model,
        )
        request = memories_pb2.CreateMemoryRequest(session=self.name, name=name, prism=spec)
        await create_memory(self._client, request, exist_ok=exist_ok)
        return Memory(self._client, self, name)

    def memory(self, name: str) -> Memory:
        """A memory by its name; nothing is sent."""
        return Memory(self._client, self, name)

    async def create_tree(
        self,
        name: str,
        *,
        segment_tokens: int = 0,
        max_children: int = 0,
        summary_tokens: int = 0,
        reasoning: bool = True,
        working_memory: WorkingMemory = "cut",
        working_memory_tokens: int = 0,
        model: str = "",
        navigation_model: str = "",
        reply_format: ReplyFormat = "auto",
        skip_failures: bool = False,
        exist_ok: bool = False,
    ) -> Tree:
        """Creates a summary tree; it grows over the log from position 1 on.

        `palimpsest.tree_values.TreeSettings` says what each is; zeros and empty texts mean
        the service's defaults. `exist_ok` is as for `create_memory`. Raises ValueError for
        what cannot be sent, InvalidArgument, AlreadyExists, NotFound.
        """
        settings = TreeSettings(
            segment_tokens=segment_tokens,
            max_children=max_children,
            summary_tokens=summary_tokens,
            reasoning=reasoning,
            working_memory=working_memory,
            working_memory_tokens=working_memory_tokens,
            model=model,
            navigation_model=navigation_model,
            reply_format=reply_format,
            skip_failures=skip_failures,
        )
        spec = specs.tree_spec(settings)
        request = memories_pb2.CreateMemoryRequest(session=self.name, name=name, tree=spec)
        await create_memory(self._client, request, exist_ok=exist_ok)
        return Tree(self._client, self, name)

    def tree(self, name: str) -> Tree:
        """A tree by its name; nothing is sent."""
        return Tree(self._client, self, name)

    async def create_state(
        self,
        name: str,
        *,
        task: str = "",
        period: int = 0,
        period_kind: StatePeriod = "fixed",
        period_tokens: int | None = None,
        idle_seconds: float = 0.0,
        state_tokens: int = 0,
        pinned: Sequence[str] = (),
        episode_vectors: int = 0,
        model: str = "",
        reply_format: ReplyFormat = "auto",
        skip_failures: bool = False,
        exist_ok: bool = False,
    ) -> State:
        """Creates a state memory; it compresses the log from position 1 on.

        `palimpsest.state_values.StateSettings` says what each is; zeros and empty texts mean
        the service's defaults, and of `period_tokens` None does. `exist_ok` is as for
        `create_memory`. Raises ValueError for what cannot be sent, InvalidArgument,
        AlreadyExists, NotFound.
        """
        if isinstance(pinned, str):
            # Each of its letters would be pinned.
            raise ValueError("pinned must be a sequence of strings, not one string")
        settings = StateSettings(
            task=task,
            period=period,
            period_kind=period_kind,
            period_tokens=period_tokens,
            idle_seconds=idle_seconds,
            state_tokens=state_tokens,
            pinned=tuple(pinned),
            episode_vectors=episode_vectors,
            model=model,
            reply_format=reply_format,
            skip_failures=skip_failures,
        )
        spec = specs.state_spec(settings)
        request = memories_pb2.CreateMemoryRequest(session=self.name, name=name, state=spec)
        await create_memory(self._client, request, exist_ok=exist_ok)
        return State(self._client, self, name)

    def state(self, name: str) -> State:
        """A state memory by its name; nothing is sent."""
        return State(self._client, self, name)

    async def memories(self) -> Sequence[values.MemoryInfo]:
        """The session's memories, by name. Raises NotFound."""
        request = memories_pb2.ListMemoriesRequest(session=self.name)
        pages = self._client.pages(self._memories.ListMemories, request)
        return [convert.memory(message) async for page in pages for message in page.memories]

    async def flush(self) -> values.Flushed:
        """Ends the wait for more chunks (`linger`) of all memories. Raises NotFound."""
        request = memories_pb2.FlushRequest(session=self.name)
        return convert.flushed(await self._client.call(self._memories.Flush, request))

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

    async def set_budget(
        self,
        period: Period,
        *,
        limit_tokens: int | None = None,
        limit_micro_usd: int | None = None,
    ) -> BudgetSet:
        """Bounds the session with all its memories. See `palimpsest.client.Client.set_budget`."""
        return await self._budgets.set(
            period, limit_tokens=limit_tokens, limit_micro_usd=limit_micro_usd
        )

    def budgets(self) -> AsyncIterator[Budget]:
        """The budgets of the session, then those of its memories. Raises NotFound."""
        return self._budgets.list()

    async def clear_budget(self, period: Period) -> int:
        """Takes the session's budget away. See `palimpsest.client.Client.clear_budget`."""
        return await self._budgets.clear(period)

    async def spend(
        self,
        memory: str = "",
        *,
        level: Level = "memory",
        by_day: bool = False,
        from_day: date | None = None,
        to_day: date | None = None,
    ) -> SpendReport:
        """What the session's model calls, or a memory's, came to.

        See `palimpsest.client.Client.spend`. Raises NotFound.
        """
        return await costs.read_spend(
            self._client,
            session=self.name,
            memory=memory,
            level=level,
            by_day=by_day,
            from_day=from_day,
            to_day=to_day,
        )

    async def cost(
        self,
        memory: str = "",
        *,
        from_day: date | None = None,
        to_day: date | None = None,
        system_tokens: int = 0,
    ) -> Cost:
        """What the session, or a memory, came to by purpose and model, and why caches differed.

        For a memory, without days, also: what a PRISM memory's newest steps would have come
        to under other ways of folding; what the session's steps come to with a state memory
        and without it; `system_tokens` of the agent's system prompt are in each context there.
        Raises NotFound.
        """
        return await costs.read_cost(
            self._client,
            self.name,
            memory,
            from_day=from_day,
            to_day=to_day,
            system_tokens=system_tokens,
        )
