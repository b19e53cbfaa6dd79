"""A memory: reading it, looking back, changing it by hand, and asking it."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from palimpsest import asking, convert, rebuilding, specs, values
from palimpsest.answer_values import Event, MemoryOptions, Question, Reader
from palimpsest.answers import ASK_SECONDS, Answers, AnswerStream
from palimpsest.asking import ASK_CONCURRENCY, Asking
from palimpsest.budgets import Budgets, BudgetSet, Period
from palimpsest.connection import CALL_SECONDS, Connection
from palimpsest.edits import Edit
from palimpsest.errors import FailedPrecondition, PalimpsestError, ResourceExhausted
from palimpsest.navigation_values import NavigationStatistics, TrainingExample, TrajectoryEvent
from palimpsest.provenance import Provenance
from palimpsest.questions import consistency
from palimpsest.schemas import Schema
from palimpsest.v1 import (
    edits_pb2,
    edits_pb2_grpc,
    history_pb2,
    history_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
)
from palimpsest.watch import Watch

if TYPE_CHECKING:
    from palimpsest.session import Session


class Memory:
    """A memory, by its name."""

    def __init__(self, client: Connection, session: "Session", name: str) -> None:
        self.name = name
        self.session = session
        self._client = client
        self._memories = memories_pb2_grpc.MemoryServiceStub(client.channel)
        self._history = history_pb2_grpc.HistoryServiceStub(client.channel)
        self._edits = edits_pb2_grpc.EditServiceStub(client.channel)
        self._asking = Asking(client, session.name, name)
        self._answers = Answers(client, session.name)
        self._budgets = Budgets(client, session.name, name)
        #: What every request says about whom it means.
        self._named: dict[str, Any] = {"session": session.name, "memory": name}

    async def get(
        self,
        *,
        revision: int | None = None,
        position: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        timeout: float = CALL_SECONDS,
    ) -> values.MemoryState:
        """Reads the memory: now, as it was, or once it is fresh enough.

        `revision` reads it as of then; `position` the newest state that holds no chunk
        behind it. `after` is a token of an ack or a write that must be applied;
        `fully_applied` asks for everything in the log now. Raises DeadlineExceeded,
        whose metadata says how far the memory is, FailedPrecondition when it stalled,
        OutOfRange for a revision or a position that it has not reached.
        """
        request = memories_pb2.GetMemoryRequest(
            **self._named,
            revision=revision,
            position=position,
            consistency=consistency(after, fully_applied),
        )
        response = await self._client.call(self._memories.GetMemory, request, timeout=timeout)
        return convert.state(response)

    async def amendments(
        self, *, path: str = "", from_position: int = 0, to_position: int = 0
    ) -> AsyncIterator[values.Amendment]:
        """The changes that made the memory, oldest first.

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
        async for page in self._client.pages(self._memories.ListAmendments, request):
            for message in page.amendments:
                yield convert.amendment(message)

    async def rejections(self) -> AsyncIterator[values.Rejection]:
        """Everything the model proposed and the schema refused, oldest first."""
        request = memories_pb2.ListRejectionsRequest(**self._named, page_size=1000)
        async for page in self._client.pages(self._memories.ListRejections, request):
            for message in page.rejections:
                yield convert.rejection(message)

    async def revisions(self) -> AsyncIterator[values.Revision]:
        """Every revision and what caused it, oldest first."""
        request = history_pb2.ListRevisionsRequest(**self._named, page_size=1000)
        async for page in self._client.pages(self._history.ListRevisions, request):
            for message in page.revisions:
                yield convert.revision(message)

    async def provenance(self, path: str, *, revision: int | None = None) -> Provenance:
        """What the path holds; iterate over it for the amendments that made it.

        Raises InvalidArgument (PATH_INVALID), OutOfRange for a revision that is not there.
        """
        request = history_pb2.GetProvenanceRequest(**self._named, path=path, revision=revision)
        return await Provenance.read(self._client, request)

    async def diff(
        self,
        *,
        revision: int | None = None,
        other: "Memory | str" = "",
        other_revision: int | None = None,
    ) -> values.Diff:
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
        found: list[values.Difference] = []
        compared = (0, 0)
        async for page in self._client.pages(self._history.DiffMemories, request):
            compared = page.revision, page.other_revision
            found += [convert.difference(one) for one in page.differences]
        return values.Diff(
            revision=compared[0], other_revision=compared[1], differences=tuple(found)
        )

    def watch(
        self,
        *,
        after_revision: int | None = None,
        resume_token: str = "",
        give_up_seconds: float = 60.0,
    ) -> Watch:
        """The revisions behind `after_revision` (0: all), as they are committed.

        Without it: those behind the newest. `resume_token` goes on behind an event of
        an earlier watch. The watch goes around lost connections; it fails when the
        service was away for `give_up_seconds`, sooner when it was never reached (see
        `connect`).
        """
        return Watch(
            self._client,
            self.session.name,
            self.name,
            after_revision=after_revision,
            resume_token=resume_token,
            give_up_seconds=give_up_seconds,
        )

    async def revise(
        self, edits: Iterable[Edit], *, expected_revision: int | None = None, comment: str = ""
    ) -> values.Revised:
        """Makes all edits, in order, as one revision; or none.

        With `expected_revision` the memory's newest must be this one. Raises
        InvalidArgument (EDIT_INVALID) naming the edit, Aborted (REVISION_CONFLICT)
        naming the current revision, ValueError for a value that is no JSON.
        """
        request = edits_pb2.ReviseMemoryRequest(
            **self._named,
            edits=[edit.message() for edit in edits],
            expected_revision=expected_revision,
            comment=comment,
        )
        response = await self._client.call(self._edits.ReviseMemory, request, retry=False)
        return values.Revised(
            info=convert.memory(response.memory),
            amendments=tuple(convert.amendment(one) for one in response.amendments),
        )

    async def rollback(
        self, revision: int, *, expected_revision: int | None = None, comment: str = ""
    ) -> values.MemoryInfo:
        """Restores the state of an earlier revision, as a new revision.

        The log is not read again. Raises OutOfRange, Aborted (REVISION_CONFLICT).
        """
        request = edits_pb2.RollbackMemoryRequest(
            **self._named, revision=revision, expected_revision=expected_revision, comment=comment
        )
        response = await self._client.call(self._edits.RollbackMemory, request, retry=False)
        return convert.memory(response.memory)

    async def fold(self) -> values.Folded:
        """Writes the amendments into a new base; the value stays."""
        request = edits_pb2.FoldMemoryRequest(**self._named)
        response = await self._client.call(self._edits.FoldMemory, request)
        return values.Folded(info=convert.memory(response.memory), folded=response.folded)

    async def consolidate(self) -> values.MemoryInfo:
        """Asks for a pass that merges and shortens, once what is in the log now is read.

        It returns before that: `consolidate_position` is None again when it was made.
        """
        request = edits_pb2.ConsolidateMemoryRequest(**self._named)
        response = await self._client.call(self._edits.ConsolidateMemory, request)
        return convert.memory(response.memory)

    async def update_schema(
        self,
        schema: Schema,
        *,
        expected_revision: int | None = None,
        comment: str = "",
    ) -> values.MemoryInfo:
        """Gives the memory a schema with more fields; see `Session.create_memory`.

        Raises InvalidArgument: SCHEMA_INVALID, or SCHEMA_INCOMPATIBLE with the place of
        a field that is missing or has another type. Aborted (REVISION_CONFLICT).
        """
        request = edits_pb2.UpdateSchemaRequest(
            **self._named,
            **specs.schema_fields(schema),
            expected_revision=expected_revision,
            comment=comment,
        )
        response = await self._client.call(self._edits.UpdateSchema, request, retry=False)
        return convert.memory(response.memory)

    async def update_model(self, model: str = "") -> values.MemoryInfo:
        """Gives the memory another model, as provider/name; empty: the service's default.

        A memory that waits for the model it had tries again with the new one. Raises
        InvalidArgument (MODEL_NOT_ALLOWED).
        """
        request = edits_pb2.UpdateModelRequest(**self._named, model=model)
        response = await self._client.call(self._edits.UpdateModel, request)
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
        encoding: values.Encoding | None = None,
        chunk_tokens: int | None = None,
        operations: values.Operations | None = None,
        steps: values.Steps | None = None,
        on_progress: Callable[[values.MemoryInfo], None] | None = None,
    ) -> "Memory":
        """Reads the whole log again into a new memory; returns it when that is done.

        What is None is as in this memory, which is left as it is. `on_progress` hears
        how far the new one is; it goes on by itself when this call is cancelled. Raises
        AlreadyExists, FailedPrecondition when the new one stalls.
        """
        made = Memory(self._client, self.session, new_name)
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
        request = rebuilding.request_of(self.session.name, self.name, new_name, changes)
        await rebuilding.follow(self._client, request, made.look, on_progress)
        return made

    async def look(self) -> values.MemoryInfo:
        """How far it is. Raises FailedPrecondition when it stalled, ResourceExhausted when
        a budget holds it."""
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

    async def _info(self) -> values.MemoryInfo:
        return (await self.get()).info

    async def flush(self) -> values.Flushed:
        """Ends the wait for more chunks (`linger`): what is in the log is read now.

        It returns before that; read with the token to see it applied.
        """
        request = memories_pb2.FlushRequest(**self._named)
        return convert.flushed(await self._client.call(self._memories.Flush, request))

    async def retry(self) -> values.MemoryInfo:
        """Lets a stalled memory try again from where it is stuck."""
        request = memories_pb2.RetryMemoryRequest(**self._named)
        response = await self._client.call(self._memories.RetryMemory, request)
        return convert.memory(response.memory)

    async def set_budget(
        self,
        period: Period,
        *,
        limit_tokens: int | None = None,
        limit_micro_usd: int | None = None,
    ) -> BudgetSet:
        """Bounds this memory. See `palimpsest.client.Client.set_budget`."""
        return await self._budgets.set(
            period, limit_tokens=limit_tokens, limit_micro_usd=limit_micro_usd
        )

    async def clear_budget(self, period: Period) -> int:
        """Takes its budget away; 1 when it was held and tries again. Raises NotFound."""
        return await self._budgets.clear(period)

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
        timeout: float = ASK_SECONDS,
        on_event: Callable[[Event], None] | None = None,
    ) -> values.Answer:
        """Asks the memory; the answer with its citations.

        Freshness and errors as in `get`. `on_event` hears how far the memory is while the call
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

    def stream_ask(self, query: str, **options: Unpack[MemoryOptions]) -> AnswerStream:
        """As `ask`: iterate over what it returns for the text as it is written.

        Its `answer` is there after the last piece. `options` are those of `ask`.
        """
        said: dict[str, Any] = {**options, "memory": self.name}
        return self.session.stream_ask(query, **said)

    async def ask_all(
        self,
        queries: Iterable[str],
        *,
        concurrency: int = ASK_CONCURRENCY,
        **options: Unpack[MemoryOptions],
    ) -> Sequence[values.Answer | PalimpsestError]:
        """Asks many questions, `concurrency` at once; their answers in the same order.

        `options` are those of `ask`. Where a question is refused the error stands in the
        answer's place, and the others go on. Questions to one tree share the beginnings
        of their prompts.
        """
        return await asking.ask_all(lambda query: self.ask(query, **options), queries, concurrency)

    def trajectory(self, answer_id: str) -> AsyncIterator[TrajectoryEvent]:
        """What the navigation of an answer did, in order. Raises NotFound."""
        return asking.trajectory(self._client, self.session.name, answer_id)

    async def navigation_statistics(self) -> NavigationStatistics:
        """What all navigations of the tree came to. Raises FailedPrecondition (no tree)."""
        return await self._asking.statistics()

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> AsyncIterator[TrainingExample]:
        """The moves of navigations that found an answer, oldest first, to train with.

        Of these answers only, if any are given; of those rated good, or bad, if that is
        said. Raises FailedPrecondition (no tree).
        """
        return self._asking.export(answer_ids, good)
