# Generated from palimpsest/_async by `make sync`; do not edit.
"""A memory: reading it, looking back, changing it by hand, and asking it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Unpack
from uuid import uuid4

from palimpsest._convert import consistency, value_of
from palimpsest._errors import AlreadyExists, PalimpsestError
from palimpsest._memories import (
    Flushed,
    MemoryInfo,
    MemoryKind,
    MemoryState,
    blocked_error,
    existing_differs,
    memory,
    memory_state,
    settings_that_differ,
    update_request,
)
from palimpsest._operations import rebuild_request
from palimpsest._schemas import Schema, schema_fields
from palimpsest._specs import AllowedOps, Encoding, Steps
from palimpsest._sync._connection import Connection
from palimpsest._sync._history import MemoryHistory
from palimpsest._sync._listening import AnswerStream, OnEvent
from palimpsest._sync._operation import Operation
from palimpsest._sync._runtime import gather
from palimpsest._values_answers import (
    Answer,
    MemoryAskOptions,
    MemoryQuestionOptions,
    NavigationStatistics,
    Question,
    TrainingExample,
    TrajectoryEvent,
)
from palimpsest.v1 import answer_service_pb2, memories_pb2, memory_service_pb2

#: Questions that run at once when the caller does not say.
ASK_CONCURRENCY = 8


def create_memory(
    connection: Connection,
    wanted: memories_pb2.Memory,
    *,
    exist_ok: bool,
    request_id: str = "",
    only: Collection[str] | None = None,
) -> None:
    """Creates the memory, or with `exist_ok` accepts an existing one with the same settings.

    Compares the settings that are given, or `only` some of them. Raises AlreadyExists.
    """
    stub = connection.memories
    request = memory_service_pb2.CreateMemoryRequest(memory=wanted, request_id=request_id)
    try:
        connection.call(stub.CreateMemory, request, retry=exist_ok or bool(request_id))
    except AlreadyExists as error:
        if not exist_ok or error.reason != "MEMORY_EXISTS":
            raise
        listing = memory_service_pb2.ListMemoriesRequest(session=wanted.session)
        listed = connection.all_of(stub.ListMemories, listing, "memories", lambda one: one)
        existing = [one for one in listed if one.id == wanted.id]
        if not existing:
            # It has been deleted meanwhile: the caller can try again.
            raise
        schema = _stored_schema(connection, wanted)
        others = settings_that_differ(wanted, existing[0], schema, only)
        if others:
            raise existing_differs(wanted.id, others, error) from error


def _stored_schema(connection: Connection, wanted: memories_pb2.Memory) -> str:
    """Returns the schema of a PRISM memory as the service keeps it; empty for other kinds."""
    if wanted.WhichOneof("spec") != "prism":
        return ""
    fields = ("schema_source", "json_schema")
    given = {name: getattr(wanted.prism, name) for name in fields if getattr(wanted.prism, name)}
    checked = memory_service_pb2.CheckSchemaRequest(**given)
    return str((connection.call(connection.memories.CheckSchema, checked)).schema_source)


class Memory(MemoryHistory):
    """A memory, by its id."""

    #: What a memory of this class is.
    _kind: ClassVar[MemoryKind] = "prism"

    def get(
        self,
        *,
        revision: int | None = None,
        position: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
    ) -> MemoryState:
        """Reads the memory: now, as it was, or once it is fresh enough.

        `revision` reads that revision; `position` the newest revision without a later chunk.
        With `after`, the read token of an ack, a flush or an earlier read, the read waits until
        the memory has applied it; with `fully_applied`, all that is in the log now. Raises
        DeadlineExceeded, whose metadata says how much is applied, FailedPrecondition when the
        memory stalled, OutOfRange for a revision or position that it has not reached.
        """
        request = memory_service_pb2.GetMemoryRequest(
            **self._named,
            revision=revision,
            position=position,
            consistency=consistency(after, fully_applied),
        )
        method = self._connection.memories.GetMemory
        return memory_state(self._connection.call(method, request, timeout=timeout))

    def consolidate(self, *, request_id: str = "") -> Operation[MemoryInfo]:
        """Requests a consolidation: the model merges and shortens, once the log is read.

        Returns the operation at once, or that of an earlier request that has not ended.
        """
        request = memory_service_pb2.ConsolidateMemoryRequest(**self._named, request_id=request_id)
        response = self._connection.call(self._connection.memories.ConsolidateMemory, request)
        return Operation(self._connection, response)

    def update(
        self,
        *,
        schema: Schema | None = None,
        model: str | None = None,
        expected_revision: int | None = None,
        comment: str = "",
        request_id: str = "",
    ) -> MemoryInfo:
        """Gives the memory a schema with more fields, another model, or both.

        `schema` is as in `Session.create_memory`, `model` as provider/name; empty: the service's
        default; None: unchanged. A new schema makes a revision, which keeps the `comment`. A
        memory that waits for its old model tries again with the new one. Raises InvalidArgument
        (SCHEMA_INVALID, SCHEMA_INCOMPATIBLE with the field that is missing or has another type,
        MODEL_NOT_ALLOWED), Aborted (REVISION_CONFLICT).
        """
        changes = {"model": model, **({} if schema is None else schema_fields(schema))}
        return self._update(
            changes, expected_revision=expected_revision, comment=comment, request_id=request_id
        )

    def _update(self, changes: Mapping[str, Any], **others: Any) -> MemoryInfo:
        """Updates fields of the spec; None leaves one as it is."""
        request = update_request(self.session.id, self.id, self._kind, changes, **others)
        # Repeated only where it does the same again.
        retry = bool(request.request_id) or not request.HasField("expected_revision")
        method = self._connection.memories.UpdateMemory
        return memory(self._connection.call(method, request, retry=retry))

    def delete(self, *, missing_ok: bool = False, reason: str = "", request_id: str = "") -> None:
        """Deletes the memory with its history; the log and the answers stay.

        `reason` is kept in the record of the erasure. Raises NotFound unless `missing_ok`.
        """
        request = memory_service_pb2.DeleteMemoryRequest(
            **self._named, allow_missing=missing_ok, reason=reason, request_id=request_id
        )
        # A repeated one would find nothing to delete.
        retry = missing_ok or bool(request_id)
        self._connection.call(self._connection.memories.DeleteMemory, request, retry=retry)

    def rebuild(
        self,
        new_id: str,
        *,
        schema: Schema | None = None,
        task: str | None = None,
        question: str | None = None,
        final_task: str | None = None,
        model: str | None = None,
        encoding: Encoding | None = None,
        chunk_tokens: int | None = None,
        allowed_ops: AllowedOps | None = None,
        steps: Steps | None = None,
        allow_expired_log: bool = False,
        request_id: str = "",
    ) -> Operation[MemoryInfo]:
        """Reads the whole log again into a new memory; returns the operation at once.

        Settings that are None are those of this memory, which stays. `Operation.wait` waits until
        all that is in the log now is read; cancelling deletes the new memory. A log whose
        beginning has expired is refused (FailedPrecondition, LOG_EXPIRED), unless
        `allow_expired_log` says that what remains of it is enough. Raises AlreadyExists,
        NotFound, InvalidArgument.
        """
        return self._rebuild(
            new_id,
            {
                "schema": schema,
                "task": task,
                "question": question,
                "final_task": final_task,
                "model": model,
                "encoding": encoding,
                "chunk_tokens": chunk_tokens,
                "allowed_ops": allowed_ops,
                "steps": steps,
            },
            request_id,
            allow_expired_log=allow_expired_log,
        )

    def _rebuild(
        self, new_id: str, changes: Mapping[str, Any], request_id: str, *, allow_expired_log: bool
    ) -> Operation[MemoryInfo]:
        # Always with an id, so that it may be tried again.
        request = rebuild_request(
            self._named,
            new_id,
            self._kind,
            changes,
            request_id or uuid4().hex,
            allow_expired_log=allow_expired_log,
        )
        response = self._connection.call(self._connection.memories.RebuildMemory, request)
        return Operation(self._connection, response)

    def look(self) -> MemoryInfo:
        """Returns the memory's progress.

        Raises FailedPrecondition when it stalled, ResourceExhausted when a budget holds it.
        """
        info = self._info()
        error = blocked_error(info)
        if error is not None:
            raise error
        return info

    def _info(self) -> MemoryInfo:
        return (self.get()).info

    def flush(self, *, request_id: str = "") -> Flushed:
        """Ends the wait for more chunks (`linger`), and returns before they are read.

        Read with the returned token to see them applied.
        """
        request = memory_service_pb2.FlushMemoryRequest(**self._named, request_id=request_id)
        response = self._connection.call(self._connection.memories.FlushMemory, request)
        return value_of(Flushed, response)

    def retry(self, *, request_id: str = "") -> bool:
        """Retries a stalled memory where it stopped; returns whether it was stalled.

        Raises NotFound.
        """
        request = memory_service_pb2.RetryMemoryRequest(**self._named, request_id=request_id)
        response = self._connection.call(self._connection.memories.RetryMemory, request)
        return bool(response.retried)

    def ask(
        self,
        query: str,
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[MemoryQuestionOptions],
    ) -> Answer:
        """Asks the memory; returns the answer with its citations.

        `options` are the fields of `palimpsest.MemoryQuestionOptions`, such as `after`,
        `fully_applied`, `reader`, `response_schema`, `stream`, `threads` and `metadata`.
        Freshness and errors as in `get`. `on_event` receives the memory's progress while the call
        waits, what is read, and each event of the reader; with `stream` also the text as it is
        written (`stream_ask` iterates over it). `reader` None is that of the memory's kind. With
        `response_schema` there is `Answer.value`. With `options` (multiple choice) the answer is
        one of them, or there is none. Labels and times limit what is cited. A late answer is not
        lost: the error's metadata names it for `Session.resume_answer`.

        Trees and state memories: navigation begins with `hybrid_leaves` leaves by retrieval, and
        explores `beam` nodes at once with at most `max_calls` model calls; zeros mean the
        service's defaults. A state memory answers from its working context, unless one of these
        or `navigate` is given.
        """
        question = Question(query=query, memory=self.id, **options)
        return self.session.ask(question, timeout=timeout, on_event=on_event)

    def stream_ask(self, query: str, **options: Unpack[MemoryAskOptions]) -> AnswerStream:
        """Asks as `ask` does; iterate over the text as it is written, then read `answer`."""
        return self.session.stream_ask(query, memory=self.id, **options)

    def ask_all(
        self,
        queries: Iterable[str],
        *,
        concurrency: int = ASK_CONCURRENCY,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[MemoryQuestionOptions],
    ) -> Sequence[Answer | PalimpsestError]:
        """Asks many questions, `concurrency` at once; returns answers in the same order.

        `options` are those of `ask`. A question that is refused has its error in place of the
        answer, and the others continue.
        """
        if concurrency < 1:
            raise ValueError("concurrency must be 1 or more")
        question = Question(query="", memory=self.id, **options)

        def one(query: str) -> Answer | PalimpsestError:
            asked = replace(question, query=query)
            try:
                return self.session.ask(asked, timeout=timeout, on_event=on_event)
            except PalimpsestError as error:
                # It is of this question; the others continue.
                return error

        return gather([partial(one, query) for query in queries], limit=concurrency)

    def trajectory(self, answer_id: str) -> Iterator[TrajectoryEvent]:
        """Yields the events of the navigation of an answer, in order. Raises NotFound."""
        return self.session.trajectory(answer_id)

    def navigation_statistics(self) -> NavigationStatistics:
        """Returns the counts of all navigations of the tree. Raises FailedPrecondition."""
        request = answer_service_pb2.GetNavigationStatisticsRequest(**self._named)
        method = self._connection.answers.GetNavigationStatistics
        return value_of(NavigationStatistics, self._connection.call(method, request))

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> Iterator[TrainingExample]:
        """Yields the moves of navigations that found an answer, oldest first, for training.

        `answer_ids` and `good` limit them to some answers. Raises FailedPrecondition (no tree).
        """
        return self.session._export(self.id, answer_ids, good)
