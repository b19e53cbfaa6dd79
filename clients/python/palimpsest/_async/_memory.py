"""A memory: reading it, looking back, changing it by hand, and asking it."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from palimpsest import _convert_memories as convert
from palimpsest._async._answers import ASK_CONCURRENCY, Answers, AnswerStream, OnEvent
from palimpsest._async._connection import Connection
from palimpsest._async._history import Provenance, Watch
from palimpsest._async._resource import Resource
from palimpsest._async._runtime import RpcError, sleep
from palimpsest._errors import (
    AlreadyExists,
    FailedPrecondition,
    PalimpsestError,
    ResourceExhausted,
    from_rpc,
)
from palimpsest._schemas import Schema, schema_fields
from palimpsest._transport import may_pass
from palimpsest._values_answers import (
    Answer,
    MemoryAskOptions,
    MemoryQuestionOptions,
    NavigationStatistics,
    Question,
    Reader,
    TrainingExample,
    TrajectoryEvent,
)
from palimpsest._values_memories import (
    Amendment,
    Diff,
    Edit,
    Edited,
    Encoding,
    Flushed,
    Folded,
    MemoryInfo,
    MemoryState,
    Operations,
    Rejection,
    Revision,
    Steps,
)
from palimpsest.v1alpha1 import (
    edits_pb2,
    edits_pb2_grpc,
    history_pb2,
    history_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    schemas_pb2,
    schemas_pb2_grpc,
)

if TYPE_CHECKING:
    from palimpsest._async._session import Session

#: How often a rebuild is read whose call was lost.
POLL_SECONDS = 0.5


async def create_memory(
    connection: Connection,
    request: memories_pb2.CreateMemoryRequest,
    *,
    exist_ok: bool,
    only: Collection[str] | None = None,
) -> None:
    """Creates the memory, or with `exist_ok` accepts one that has the same settings.

    What the request leaves to the service is not compared, and of the rest `only` these
    settings. Raises AlreadyExists.
    """
    stub = memories_pb2_grpc.MemoryServiceStub(connection.channel)
    try:
        await connection.call(stub.CreateMemory, request, retry=exist_ok)
    except AlreadyExists as error:
        if not exist_ok or error.reason != "MEMORY_EXISTS":
            raise
        listing = memories_pb2.ListMemoriesRequest(session=request.session)
        listed = connection.all_of(stub.ListMemories, listing, "memories", lambda one: one)
        existing = [one async for one in listed if one.name == request.name]
        if not existing:
            # It was deleted in this moment: the caller can try again.
            raise
        schema = await _stored_schema(connection, request)
        others = convert.settings_that_differ(request, existing[0], schema, only)
        if others:
            raise AlreadyExists(
                f"memory {request.name!r} is there already, and {'; '.join(others)}. Use it"
                " as it is (session.memory, session.tree or session.state), choose another name, or"
                " build one with these settings from the whole log (rebuild)",
                reason=error.reason,
                metadata=error.metadata,
            ) from error


async def _stored_schema(connection: Connection, request: memories_pb2.CreateMemoryRequest) -> str:
    """Returns the schema of a PRISM memory as the service keeps it; empty for other kinds."""
    if request.WhichOneof("spec") != "prism":
        return ""
    checked = schemas_pb2.CheckSchemaRequest(
        schema_source=request.prism.schema_source, json_schema=request.prism.json_schema
    )
    stub = schemas_pb2_grpc.SchemaServiceStub(connection.channel)
    return str((await connection.call(stub.CheckSchema, checked)).schema_source)


Rebuilt = TypeVar("Rebuilt", bound="Memory")


class Memory(Resource):
    """A memory, by its name."""

    def __init__(self, connection: Connection, session: "Session", name: str) -> None:
        super().__init__(connection, session.id, name)
        self.name = name
        self.session = session
        self._memories = memories_pb2_grpc.MemoryServiceStub(connection.channel)
        self._history = history_pb2_grpc.HistoryServiceStub(connection.channel)
        self._edits = edits_pb2_grpc.EditServiceStub(connection.channel)
        self._answers = Answers(connection, session.id, name)
        #: In every request about this memory.
        self._named: dict[str, Any] = {"session": session.id, "memory": name}

    async def get(
        self,
        *,
        revision: int | None = None,
        position: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
    ) -> MemoryState:
        """Reads the memory: now, as it was, or once it is fresh enough.

        `revision` reads it as of then; `position` the newest state that holds no chunk
        after it. `after` is a token of an ack or a write that must be applied;
        `fully_applied` asks for everything in the log now. Raises DeadlineExceeded,
        whose metadata says how far the memory is, FailedPrecondition when it stalled,
        OutOfRange for a revision or a position that it has not reached.
        """
        request = memories_pb2.GetMemoryRequest(
            **self._named,
            revision=revision,
            position=position,
            consistency=convert.consistency(after, fully_applied),
        )
        response = await self._connection.call(self._memories.GetMemory, request, timeout=timeout)
        return convert.memory_state(response)

    def amendments(
        self, *, path: str = "", from_position: int = 0, to_position: int = 0
    ) -> AsyncIterator[Amendment]:
        """Yields the changes that made the memory, oldest first.

        `path` asks for those at it or below it; `from_position` and `to_position`, both
        included, for those of steps over these positions (0 leaves an end open).
        """
        request = memories_pb2.ListAmendmentsRequest(
            **self._named,
            page_size=1000,
            path_prefix=path,
            from_position=from_position,
            to_position=to_position,
        )
        method = self._memories.ListAmendments
        return self._connection.all_of(method, request, "amendments", convert.amendment)

    def rejections(self) -> AsyncIterator[Rejection]:
        """Yields everything the model proposed and the schema refused, oldest first."""
        request = memories_pb2.ListRejectionsRequest(**self._named, page_size=1000)
        method = self._memories.ListRejections
        return self._connection.all_of(method, request, "rejections", convert.rejection)

    def revisions(self) -> AsyncIterator[Revision]:
        """Yields every revision and what caused it, oldest first."""
        request = history_pb2.ListRevisionsRequest(**self._named, page_size=1000)
        method = self._history.ListRevisions
        return self._connection.all_of(method, request, "revisions", convert.revision)

    async def provenance(self, path: str, *, revision: int | None = None) -> Provenance:
        """Returns what the path holds; iterate over it for the amendments that made it.

        Raises InvalidArgument (PATH_INVALID), OutOfRange for a revision that is not there.
        """
        request = history_pb2.GetProvenanceRequest(**self._named, path=path, revision=revision)
        return await Provenance._read(self._connection, request)

    async def diff(
        self,
        *,
        revision: int | None = None,
        other: "Memory | str" = "",
        other_revision: int | None = None,
    ) -> Diff:
        """Compares `revision` with `other_revision`, of another memory if one is given.

        The first is the old side. Without a number it is the newest revision; another
        memory must be of the same session. Raises NotFound, OutOfRange.
        """
        request = history_pb2.DiffMemoriesRequest(
            **self._named,
            revision=revision,
            other_memory=other if isinstance(other, str) else other.name,
            other_revision=other_revision,
            page_size=1000,
        )
        pages = self._connection.pages(self._history.DiffMemories, request)
        return convert.diff([page async for page in pages])

    def watch(
        self,
        *,
        after_revision: int | None = None,
        resume_token: str = "",
        give_up_seconds: float = 60.0,
    ) -> Watch:
        """Returns a watch of the revisions after `after_revision` (0: all), as they are committed.

        Without it: those after the newest. `resume_token` continues after an event of
        an earlier watch. The watch survives lost connections; it fails when the
        service was away for `give_up_seconds`, sooner when it was never reached (see
        `connect`).
        """
        return Watch(
            self._connection,
            self.session.id,
            self.name,
            after_revision=after_revision,
            resume_token=resume_token,
            give_up_seconds=give_up_seconds,
        )

    async def edit(
        self, edits: Iterable[Edit], *, expected_revision: int | None = None, comment: str = ""
    ) -> Edited:
        """Makes all edits, in order, as one revision; or none.

        With `expected_revision` the memory's newest must be this one. Raises
        InvalidArgument (EDIT_INVALID) naming the edit, Aborted (REVISION_CONFLICT)
        naming the current revision, ValueError for a value that is no JSON.
        """
        request = edits_pb2.ReviseMemoryRequest(
            **self._named,
            edits=[convert.edit_message(one) for one in edits],
            expected_revision=expected_revision,
            comment=comment,
        )
        response = await self._connection.call(self._edits.ReviseMemory, request, retry=False)
        return convert.edited(response)

    async def rollback(
        self, revision: int, *, expected_revision: int | None = None, comment: str = ""
    ) -> MemoryInfo:
        """Restores the state of an earlier revision, as a new revision.

        The log is not read again. Raises OutOfRange, Aborted (REVISION_CONFLICT).
        """
        request = edits_pb2.RollbackMemoryRequest(
            **self._named, revision=revision, expected_revision=expected_revision, comment=comment
        )
        response = await self._connection.call(self._edits.RollbackMemory, request, retry=False)
        return convert.memory(response.memory)

    async def fold(self) -> Folded:
        """Writes the amendments into a new base; the value stays."""
        request = edits_pb2.FoldMemoryRequest(**self._named)
        response = await self._connection.call(self._edits.FoldMemory, request)
        return convert.folded(response)

    async def consolidate(self) -> MemoryInfo:
        """Asks for a pass that merges and shortens, once what is in the log now is read.

        It returns before that: `consolidate_position` is None again when it was made.
        """
        request = edits_pb2.ConsolidateMemoryRequest(**self._named)
        response = await self._connection.call(self._edits.ConsolidateMemory, request)
        return convert.memory(response.memory)

    async def update_schema(
        self,
        schema: Schema,
        *,
        expected_revision: int | None = None,
        comment: str = "",
    ) -> MemoryInfo:
        """Gives the memory a schema with more fields; see `Session.create_memory`.

        Raises InvalidArgument: SCHEMA_INVALID, or SCHEMA_INCOMPATIBLE with the place of
        a field that is missing or has another type. Aborted (REVISION_CONFLICT).
        """
        request = edits_pb2.UpdateSchemaRequest(
            **self._named,
            **schema_fields(schema),
            expected_revision=expected_revision,
            comment=comment,
        )
        response = await self._connection.call(self._edits.UpdateSchema, request, retry=False)
        return convert.memory(response.memory)

    async def update_model(self, model: str = "") -> MemoryInfo:
        """Gives the memory another model, as provider/name; empty: the service's default.

        A memory that waits for the model it had tries again with the new one. Raises
        InvalidArgument (MODEL_NOT_ALLOWED).
        """
        request = edits_pb2.UpdateModelRequest(**self._named, model=model)
        response = await self._connection.call(self._edits.UpdateModel, request)
        return convert.memory(response.memory)

    async def rebuild(
        self,
        new_name: str,
        *,
        schema: Schema | None = None,
        task: str | None = None,
        question: str | None = None,
        final_task: str | None = None,
        model: str | None = None,
        encoding: Encoding | None = None,
        chunk_tokens: int | None = None,
        operations: Operations | None = None,
        steps: Steps | None = None,
        on_progress: Callable[[MemoryInfo], None] | None = None,
    ) -> "Memory":
        """Reads the whole log again into a new memory; returns it when that is done.

        What is None is as in this memory, which is left as it is. `on_progress` receives
        how far the new one is; it continues by itself when this call is cancelled. Raises
        AlreadyExists, FailedPrecondition when the new one stalls.
        """
        changes = {
            "schema": schema,
            "task": task,
            "question": question,
            "final_task": final_task,
            "model": model,
            "encoding": encoding,
            "chunk_tokens": chunk_tokens,
            "operations": operations,
            "steps": steps,
        }
        return await self._rebuild(
            Memory(self._connection, self.session, new_name), changes, on_progress
        )

    async def _rebuild(
        self,
        new: Rebuilt,
        changes: Mapping[str, Any],
        on_progress: Callable[[MemoryInfo], None] | None,
    ) -> Rebuilt:
        """Starts the rebuild and returns when it is done.

        The new memory continues without its call: when that is lost, the memory is read
        until it is done, and an error raised when it stalled.
        """
        request = convert.rebuild_request(self.session.id, self.name, new.name, changes)
        goal: int | None = None
        try:
            responses = self._connection.responses(self._edits.RebuildMemory, request)
            async for response in responses:
                info = convert.memory(response.memory)
                goal = info.head if goal is None else goal
                if on_progress is not None:
                    on_progress(info)
                if response.done:
                    return new
        except RpcError as error:
            known = from_rpc(error, self._connection.address)
            if goal is None or not may_pass(known, error.code()):
                raise known from error
        while True:
            info = await new.look()
            if on_progress is not None:
                on_progress(info)
            if _has_all(info, goal or 0):
                return new
            await sleep(POLL_SECONDS)

    async def look(self) -> MemoryInfo:
        """Returns how far it is.

        Raises FailedPrecondition when it stalled, ResourceExhausted when a budget holds it.
        """
        info = await self._info()
        if info.held_reason is not None:
            raise ResourceExhausted(
                f"memory {self.name!r} is held: {info.held_reason}",
                reason="BUDGET_EXHAUSTED",
                metadata={"memory": self.name, "cause": info.held_reason},
            )
        if info.stall is not None:
            position, cause = info.stall.position, info.stall.cause
            raise FailedPrecondition(
                f"memory {self.name!r} stalled at position {position}: {cause}",
                reason="MEMORY_STALLED",
                metadata={"memory": self.name, "position": str(position), "cause": cause},
            )
        return info

    async def _info(self) -> MemoryInfo:
        return (await self.get()).info

    async def flush(self) -> Flushed:
        """Ends the wait for more chunks (`linger`): what is in the log is read now.

        It returns before that; read with the token to see it applied.
        """
        request = memories_pb2.FlushRequest(**self._named)
        return convert.flushed(await self._connection.call(self._memories.Flush, request))

    async def retry(self) -> MemoryInfo:
        """Lets a stalled memory try again from where it is stuck."""
        request = memories_pb2.RetryMemoryRequest(**self._named)
        response = await self._connection.call(self._memories.RetryMemory, request)
        return convert.memory(response.memory)

    async def ask(
        self,
        query: str,
        *,
        after: str = "",
        fully_applied: bool = False,
        options: Sequence[str] = (),
        hybrid_leaves: int = 0,
        beam: int = 0,
        max_calls: int = 0,
        navigate: bool = False,
        reader: Reader | None = None,
        response_schema: Schema | None = None,
        stream: bool = False,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> Answer:
        """Asks the memory; returns the answer with its citations.

        Freshness and errors as in `get`. `on_event` receives how far the memory is while the call
        waits, where it reads, and each event of the reader as it happens; with `stream` also
        the text as it is written (`stream_ask` iterates over it). `reader` is the one of the
        memory's kind when it is None. `response_schema` asks for `Answer.value`. An answer that
        comes too late is not lost: the error's metadata names it for `Session.resume_answer`. Of a
        multiple-choice question the answer is one of `options`, or there is none.

        For trees, and state memories: `hybrid_leaves` begins with so many leaves that retrieval
        names; `beam` nodes are explored at once, with at most `max_calls` model calls. Zeros are
        the service's defaults. A state memory answers from its working context, and is navigated
        when one of these is given, or `navigate`.
        """
        question = Question(
            query=query,
            memory=self.name,
            reader=reader,
            response_schema=response_schema,
            after=after,
            fully_applied=fully_applied,
            options=options,
            hybrid_leaves=hybrid_leaves,
            beam=beam,
            max_calls=max_calls,
            navigate=navigate,
            stream=stream,
        )
        return await self._answers.ask(question, timeout=timeout, on_event=on_event)

    def stream_ask(self, query: str, **options: Unpack[MemoryAskOptions]) -> AnswerStream:
        """As `ask`: iterate over what it returns for the text as it is written.

        Its `answer` is there after the last piece. `options` are those of `ask`.
        """
        given: dict[str, Any] = {**options, "memory": self.name}
        return self.session.stream_ask(query, **given)

    async def ask_all(
        self,
        queries: Iterable[str],
        *,
        concurrency: int = ASK_CONCURRENCY,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[MemoryQuestionOptions],
    ) -> Sequence[Answer | PalimpsestError]:
        """Asks many questions, `concurrency` at once; returns answers in the same order.

        `options` are those of `ask`. Where a question is refused the error is in the
        answer's place, and the others continue. Questions to one tree share the beginnings
        of their prompts.
        """
        question = Question(query="", memory=self.name, **options)
        return await self._answers.ask_each(
            [replace(question, query=query) for query in queries],
            concurrency=concurrency,
            timeout=timeout,
            on_event=on_event,
        )

    def trajectory(self, answer_id: str) -> AsyncIterator[TrajectoryEvent]:
        """Yields what the navigation of an answer did, in order. Raises NotFound."""
        return self._answers.trajectory(answer_id)

    async def navigation_statistics(self) -> NavigationStatistics:
        """Returns the counts of all navigations of the tree.

        Raises FailedPrecondition (no tree).
        """
        return await self._answers.statistics()

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> AsyncIterator[TrainingExample]:
        """Yields the moves of navigations that found an answer, oldest first, to train with.

        Of these answers only, if any are given; of those rated good, or bad, if that is
        said. Raises FailedPrecondition (no tree).
        """
        return self._answers.export(answer_ids, good)


def _has_all(info: MemoryInfo, goal: int) -> bool:
    """Returns whether all up to `goal` is in it. A state memory leaves what is recent."""
    if info.kind == "state":
        return info.resting or info.applied_position > goal
    return info.applied_position >= goal
