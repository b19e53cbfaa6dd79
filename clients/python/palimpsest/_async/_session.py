"""A session: its memories, its questions and its costs, besides its log."""

import os
import time
from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from typing import Unpack
from uuid import uuid4

from palimpsest import _specs, _spend
from palimpsest._async._answers import SessionAnswers
from palimpsest._async._kinds import State, Tree
from palimpsest._async._memory import Memory, create_memory
from palimpsest._async._operation import Operation
from palimpsest._async._transfers import OnProgress, export_blocks, export_file
from palimpsest._convert import message_of, value_of
from palimpsest._memories import Flushed, MemoryInfo, MemoryStatus, memory
from palimpsest._operations import GeneratedSchema
from palimpsest._schemas import Schema
from palimpsest._specs import (
    AgentSettings,
    AllowedOps,
    Coercion,
    Encoding,
    ReplyFormat,
    Steps,
    TreeOptions,
    TreeSettings,
)
from palimpsest._spend import Budget, CostReport, Grouping, StoredSize, UsageReport
from palimpsest._transfers import ExportPoint
from palimpsest._transport import SCHEMA_SECONDS
from palimpsest.v1 import billing_service_pb2, memories_pb2, memory_service_pb2


class Session(SessionAnswers):
    """A session, by its id."""

    async def create_memory(
        self,
        id: str,
        schema: Schema | None = None,
        *,
        schema_source: str = "",
        task: str = "",
        question: str = "",
        final_task: str = "",
        encoding: Encoding | None = None,
        allowed_ops: AllowedOps | None = None,
        coercion: Coercion | None = None,
        reply_format: ReplyFormat = "auto",
        steps: Steps | None = None,
        chunk_tokens: int = 0,
        fold_tokens: int = 0,
        memory_tokens: int = 0,
        linger: float | timedelta | None = None,
        model: str = "",
        skip_failures: bool = False,
        exist_ok: bool = False,
        request_id: str = "",
    ) -> Memory:
        """Creates a PRISM memory; it catches up from position 1 in the background.

        `schema` is class source, which is parsed and never run, a JSON Schema as a dict, a
        dataclass, a TypedDict or a pydantic model; `schema_source` takes class source alone.
        `final_task` describes the form, length or language of answers. A memory of more than
        `memory_tokens` (0: 6,000) is consolidated; with `steps` "focused" it may grow, and steps
        see only that much of it. While a step has fewer than `chunk_tokens`, it waits `linger`
        for more chunks, in seconds or as a timedelta; None: for messages only, by default 10
        seconds. Reads that wait, questions and `flush` end the wait. None, other zeros and empty
        texts mean the service's defaults. With `exist_ok` an existing memory is used if it has
        the given settings; otherwise AlreadyExists names those that differ. For 24 hours the
        same `request_id` does nothing again. Raises ValueError, TypeError, InvalidArgument
        (SCHEMA_INVALID with line and column), AlreadyExists, NotFound.
        """
        if (schema is None) == (not schema_source):
            raise ValueError("give schema or schema_source, exactly one of them")
        spec = _specs.prism_spec(
            schema_source if schema is None else schema,
            encoding=encoding,
            allowed_ops=allowed_ops,
            coercion=coercion,
            reply_format=reply_format,
            steps=steps,
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
        wanted = memories_pb2.Memory(session=self.id, id=id, prism=spec)
        await create_memory(self._connection, wanted, exist_ok=exist_ok, request_id=request_id)
        return Memory(self._connection, self, id)

    def memory(self, id: str) -> Memory:
        """Returns a memory by its id; nothing is sent."""
        return Memory(self._connection, self, id)

    async def create_tree(
        self,
        id: str,
        *,
        exist_ok: bool = False,
        request_id: str = "",
        **settings: Unpack[TreeOptions],
    ) -> Tree:
        """Creates a summary tree; it grows over the log from position 1 on.

        `settings` are the fields of `palimpsest.TreeSettings`, such as `segment_tokens`,
        `max_children` and `model`. `exist_ok` and errors as for `create_memory`.
        """
        spec = _specs.tree_spec(TreeSettings(**settings))
        wanted = memories_pb2.Memory(session=self.id, id=id, tree=spec)
        await create_memory(self._connection, wanted, exist_ok=exist_ok, request_id=request_id)
        return Tree(self._connection, self, id)

    def tree(self, id: str) -> Tree:
        """Returns a tree by its id; nothing is sent."""
        return Tree(self._connection, self, id)

    async def create_state(
        self,
        id: str,
        *,
        exist_ok: bool = False,
        request_id: str = "",
        **settings: Unpack[AgentSettings],
    ) -> State:
        """Creates a state memory; it compresses the log from position 1 on.

        `settings` are the fields of `palimpsest.StateSettings`, such as `task`, `period`,
        `pinned` and `model`. `exist_ok` and errors as for `create_memory`.
        """
        spec = _specs.state_spec(_specs.state_settings_of(**settings))
        wanted = memories_pb2.Memory(session=self.id, id=id, state=spec)
        await create_memory(self._connection, wanted, exist_ok=exist_ok, request_id=request_id)
        return State(self._connection, self, id)

    def state(self, id: str) -> State:
        """Returns a state memory by its id; nothing is sent."""
        return State(self._connection, self, id)

    async def memories(self, *, status: MemoryStatus | str | None = None) -> Sequence[MemoryInfo]:
        """Returns the session's memories by id, of one status if given. Raises NotFound."""
        request = message_of(memory_service_pb2.ListMemoriesRequest, session=self.id, status=status)
        method = self._connection.memories.ListMemories
        listed = self._connection.all_of(method, request, "memories", memory)
        return [one async for one in listed]

    async def flush(self, *, request_id: str = "") -> Flushed:
        """Ends the wait for more chunks (`linger`) of all memories. Raises NotFound."""
        request = memory_service_pb2.FlushMemoryRequest(session=self.id, request_id=request_id)
        response = await self._connection.call(self._connection.memories.FlushMemory, request)
        return value_of(Flushed, response)

    async def generate_schema(
        self,
        domain: str,
        example_query: str,
        *,
        model: str = "",
        timeout: float | None = None,
        request_id: str = "",
    ) -> GeneratedSchema:
        """Generates a schema for texts of `domain` and questions like the example.

        Waits for at most `timeout` seconds (120); `request_schema` does not wait. Raises
        NotFound, FailedPrecondition (SCHEMA_NOT_GENERATED: the model wrote no valid one), and
        DeadlineExceeded. A late schema is still stored: the error's metadata names the
        operation, for `Client.operation`.
        """
        until = time.monotonic() + self._connection.seconds(timeout, SCHEMA_SECONDS)
        operation = await self.request_schema(
            domain, example_query, model=model, request_id=request_id
        )
        return await operation.wait(timeout=max(until - time.monotonic(), 0.0))

    async def request_schema(
        self, domain: str, example_query: str, *, model: str = "", request_id: str = ""
    ) -> Operation[GeneratedSchema]:
        """As `generate_schema`, but returns the operation at once. Raises NotFound."""
        request = memory_service_pb2.GenerateSchemaRequest(
            session=self.id,
            domain=domain,
            example_query=example_query,
            model=model,
            # In any case, so that it may be tried again at no further cost.
            request_id=request_id or uuid4().hex,
        )
        response = await self._connection.call(self._connection.memories.GenerateSchema, request)
        return Operation(self._connection, response)

    async def export(
        self, path: str | os.PathLike[str], *, progress: OnProgress | None = None
    ) -> None:
        """Writes all of the session to a file, for `Client.import_session`.

        A file with a part of an export is continued; a complete one stays as it is. `progress`
        is called after each block. Raises NotFound, Aborted (EXPORT_CHANGED), and ValueError for
        a file with other content.
        """
        await export_file(self._connection, self.id, path, progress)

    async def export_blocks(self, *, after: ExportPoint | None = None) -> AsyncIterator[bytes]:
        """Yields an export as bytes of whole lines, in blocks that end with a check.

        Lost connections are made again. Raises NotFound, Aborted (EXPORT_CHANGED).
        """
        async for block, _ in export_blocks(self._connection, self.id, after):
            yield block

    def budgets(self) -> AsyncIterator[Budget]:
        """Yields the budgets of the session, then those of its memories. Raises NotFound."""
        return self._list_budgets(self.id)

    async def usage(
        self,
        memory: str = "",
        *,
        group_by: Sequence[Grouping] = ("purpose",),
        first_day: date | None = None,
        last_day: date | None = None,
    ) -> UsageReport:
        """Returns the usage of the model calls of the session, or of a memory.

        `group_by` makes a line for each "memory", each "day", or each "purpose" and model;
        purposes combine with memories only. Days are in UTC, both included. Raises NotFound.
        """
        return await self._read_usage(
            first_day, last_day, session=self.id, memory=memory, group_by=group_by
        )

    async def storage(self) -> tuple[StoredSize, ...]:
        """Returns how much is stored of the session by kind, without indexes.

        Of tables with more than 10,000 of its rows the rest is estimated. Raises NotFound.
        """
        return await self._read_storage(self.id)

    async def cost_report(
        self,
        memory: str = "",
        *,
        first_day: date | None = None,
        last_day: date | None = None,
        system_tokens: int = 0,
    ) -> CostReport:
        """Explains the cost of the session, or of a memory.

        The report compares predicted and reported caches. For one memory and all days it also
        compares encodings (PRISM), or a loop with and without the memory (state); then each
        context counts `system_tokens` of the agent's system prompt. `usage` has the costs by
        purpose and model. Raises NotFound.
        """
        request = billing_service_pb2.GetCostReportRequest(
            session=self.id,
            memory=memory,
            first_day=_spend.day(first_day),
            last_day=_spend.day(last_day),
            system_tokens=system_tokens,
        )
        method = self._connection.billing.GetCostReport
        return value_of(CostReport, await self._connection.call(method, request))
