"""MemoryService."""

import asyncio
from uuid import UUID

from google.protobuf.empty_pb2 import Empty

from palimpsest.v1 import memories_pb2, memory_service_pb2, memory_service_pb2_grpc, operations_pb2
from service.domain.prism.schemas.tree import Schema, render
from service.domain.values.errors import InvalidInput, SchemaInvalid
from service.domain.values.memory_specs import MemoryStatus
from service.domain.values.reasons import Reason
from service.llm.gateway.allowed import AllowedModels
from service.rpc.convert import history, operations, specs
from service.rpc.convert import memories as convert
from service.rpc.convert.common import consistency
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.memory_history import MemoryHistory
from service.rpc.pages import Pages
from service.usecases.memories.edit import Editor, MemoryUpdate, Target
from service.usecases.memories.history import History
from service.usecases.memories.memories import Memories
from service.usecases.memories.watch import Watches
from service.usecases.operations.deleting import Deleter
from service.usecases.prism.schemas import SchemaRequest, Schemas

#: Memories of all sessions on one page: their schemas may be long.
MAX_OF_ALL = 100
#: The paths of an update that give a schema.
_SCHEMA_PATHS = ("prism.schema_source", "prism.json_schema")


class MemoryService(MemoryHistory, memory_service_pb2_grpc.MemoryServiceServicer):
    """See memory_service.proto."""

    def __init__(
        self,
        memories: Memories,
        editor: Editor,
        deleter: Deleter,
        pages: Pages,
        models: AllowedModels,
        *,
        schemas: Schemas,
        history: History,
        watches: Watches,
        stopping: asyncio.Event,
    ) -> None:
        self._memories = memories
        self._editor = editor
        self._deleter = deleter
        self._pages = pages
        self._models = models
        self._schemas = schemas
        self._history = history
        self._watches = watches
        self._stopping = stopping

    async def CreateMemory(  # noqa: N802 - named by the proto
        self, request: memory_service_pb2.CreateMemoryRequest, context: Context
    ) -> memories_pb2.Memory:
        """Creates a memory."""
        wanted = request.memory
        with specs.fields_within("memory"):
            spec = specs.memory_spec(wanted)
            self._models.check_spec(spec, f"{wanted.WhichOneof('spec')}.")
            return await reply(
                self._memories.create(current_tenant(), wanted.session, wanted.id, spec),
                convert.memory,
            )

    async def GetMemory(  # noqa: N802
        self, request: memory_service_pb2.GetMemoryRequest, context: Context
    ) -> memories_pb2.Memory:
        """Reads a memory, now or as it was."""
        named = (current_tenant(), request.session, request.memory)
        if request.HasField("revision"):
            reading = await self._memories.read_revision(*named, request.revision)
        elif request.HasField("position"):
            reading = await self._memories.read_position(*named, request.position)
        else:
            reading = await self._memories.read(
                *named, consistency(request.consistency), deadline=deadline_of(context)
            )
        return convert.memory_with_value(reading)

    async def ListMemories(  # noqa: N802
        self, request: memory_service_pb2.ListMemoriesRequest, context: Context
    ) -> memory_service_pb2.ListMemoriesResponse:
        """Lists the memories of a session, or of all."""
        status = convert.memory_status(request.status)
        if not request.session:
            return await self._list_of_all(request, status)
        scope = f"memories/{request.session}/{status}"
        after = self._pages.cursor(scope, request.page_token, first="")
        # Those of one session are few: what is not wanted of them is left out here.
        found = await self._memories.list_after(current_tenant(), request.session, after, None)
        wanted = [one for one in found.items if status in (None, one.shown_status)]
        size = self._pages.size(request.page_size)
        page, token = self._pages.cut(
            [convert.memory(one) for one in wanted[:size]],
            scope,
            lambda one: one.id,
            more=len(wanted) > size,
            most=True,
        )
        return memory_service_pb2.ListMemoriesResponse(memories=page, next_page_token=token)

    async def EditMemory(  # noqa: N802
        self, request: memory_service_pb2.EditMemoryRequest, context: Context
    ) -> memory_service_pb2.EditMemoryResponse:
        """Adds, updates and removes values."""
        edits = [history.edit(one) for one in request.edits]
        return await reply(
            self._editor.revise(current_tenant(), _target(request), edits),
            lambda done: memory_service_pb2.EditMemoryResponse(
                memory=convert.memory(done[0]),
                amendments=[history.amendment(one) for one in done[1]],
            ),
        )

    async def RollbackMemory(  # noqa: N802
        self, request: memory_service_pb2.RollbackMemoryRequest, context: Context
    ) -> memories_pb2.Memory:
        """Restores an earlier revision."""
        return await reply(
            self._editor.rollback(current_tenant(), _target(request), request.revision),
            convert.memory,
        )

    async def FoldMemory(  # noqa: N802
        self, request: memory_service_pb2.FoldMemoryRequest, context: Context
    ) -> memory_service_pb2.FoldMemoryResponse:
        """Writes the amendments into a new base."""
        target = Target(session=request.session, memory=request.memory)
        return await reply(
            self._editor.fold(current_tenant(), target),
            lambda done: memory_service_pb2.FoldMemoryResponse(
                memory=convert.memory(done[0]), folded=done[1]
            ),
        )

    async def CheckSchema(  # noqa: N802
        self, request: memory_service_pb2.CheckSchemaRequest, context: Context
    ) -> memory_service_pb2.CheckSchemaResponse:
        """Checks a schema."""
        try:
            schema = specs.schema_of(request.schema_source, request.json_schema)
        except SchemaInvalid as error:
            # Here the fields are in no spec.
            error.field = error.field.removeprefix("prism.")
            raise
        return memory_service_pb2.CheckSchemaResponse(schema_source=render(schema))

    async def ConsolidateMemory(  # noqa: N802
        self, request: memory_service_pb2.ConsolidateMemoryRequest, context: Context
    ) -> operations_pb2.Operation:
        """Requests a consolidation."""
        target = Target(session=request.session, memory=request.memory)
        requested = self._editor.consolidate(current_tenant(), target)
        return await reply(requested, operations.operation)

    async def RebuildMemory(  # noqa: N802
        self, request: memory_service_pb2.RebuildMemoryRequest, context: Context
    ) -> operations_pb2.Operation:
        """Reads the whole log again into a new memory."""
        names = (request.memory, request.new_memory.id)
        with specs.fields_within("new_memory"):
            changes = operations.spec_changes(request)
            requested = self._editor.rebuild(
                current_tenant(),
                request.session,
                names,
                changes,
                self._models,
                allow_expired_log=request.allow_expired_log,
            )
            return await reply(requested, operations.operation)

    async def GenerateSchema(  # noqa: N802
        self, request: memory_service_pb2.GenerateSchemaRequest, context: Context
    ) -> operations_pb2.Operation:
        """Generates a schema."""
        self._models.check(request.model, "model")
        wanted = SchemaRequest(
            session=request.session,
            domain=request.domain,
            example_query=request.example_query,
            model=request.model,
        )
        requested = self._schemas.generate(current_tenant(), wanted)
        return await reply(requested, operations.operation)

    async def _list_of_all(
        self, request: memory_service_pb2.ListMemoriesRequest, status: MemoryStatus | None
    ) -> memory_service_pb2.ListMemoriesResponse:
        scope = f"memories/{status}"
        size = min(self._pages.size(request.page_size), MAX_OF_ALL)
        found = await self._memories.list_of_all(
            current_tenant(),
            status=status,
            after=_keys(self._pages.cursor(scope, request.page_token, first="")),
            limit=size + 1,
        )
        cursors = {
            (one.session_name, one.name): f"{one.session_key}.{one.memory_id}" for one in found
        }
        page, token = self._pages.cut(
            [convert.memory(one) for one in found[:size]],
            scope,
            lambda one: cursors[one.session, one.id],
            more=len(found) > size,
            most=True,
        )
        return memory_service_pb2.ListMemoriesResponse(memories=page, next_page_token=token)

    async def UpdateMemory(  # noqa: N802
        self, request: memory_service_pb2.UpdateMemoryRequest, context: Context
    ) -> memories_pb2.Memory:
        """Gives a live memory a schema with more fields, or another model."""
        kind = _kind_of(request)
        target = Target(
            session=request.memory.session,
            memory=request.memory.id,
            expected_revision=request.expected_revision
            if request.HasField("expected_revision")
            else None,
            comment=request.comment,
        )
        with specs.fields_within("memory"):
            changes = MemoryUpdate(schema=_schema_of(request), models=self._models_of(request))
            return await reply(
                self._editor.update(current_tenant(), target, kind, changes), convert.memory
            )

    def _models_of(self, request: memory_service_pb2.UpdateMemoryRequest) -> dict[str, str]:
        """Returns the fields of the spec that are updated and name a model."""
        models: dict[str, str] = {}
        for path in request.update_mask.paths:
            kind, _, name = path.partition(".")
            if path not in _SCHEMA_PATHS:
                models[name] = getattr(getattr(request.memory, kind), name)
                self._models.check(models[name], path)
        return models

    async def DeleteMemory(  # noqa: N802
        self, request: memory_service_pb2.DeleteMemoryRequest, context: Context
    ) -> Empty:
        """Deletes a memory."""
        deleted = self._deleter.delete_memory(
            current_tenant(),
            request.session,
            request.memory,
            allow_missing=request.allow_missing,
            reason=request.reason,
        )
        return await reply(deleted, lambda _: Empty())

    async def RetryMemory(  # noqa: N802
        self, request: memory_service_pb2.RetryMemoryRequest, context: Context
    ) -> memory_service_pb2.RetryMemoryResponse:
        """Retries a stalled memory, or all."""
        work = (
            self._memories.retry(current_tenant(), request.session, request.memory)
            if request.memory
            else self._memories.retry_all(current_tenant(), request.session)
        )
        return await reply(
            work, lambda retried: memory_service_pb2.RetryMemoryResponse(retried=retried)
        )

    async def FlushMemory(  # noqa: N802
        self, request: memory_service_pb2.FlushMemoryRequest, context: Context
    ) -> memory_service_pb2.FlushMemoryResponse:
        """Ends the wait for more chunks."""
        return await reply(
            self._memories.flush(current_tenant(), request.session, request.memory),
            lambda done: memory_service_pb2.FlushMemoryResponse(read_token=done[0], head=done[1]),
        )


def _kind_of(request: memory_service_pb2.UpdateMemoryRequest) -> str:
    """Returns the kind of memory that the update is for. Raises InvalidInput for two kinds."""
    kinds = {path.partition(".")[0] for path in request.update_mask.paths}
    if len(kinds) > 1:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            "update_mask: names fields of two kinds of memories",
            field="update_mask",
        )
    return kinds.pop()


def _schema_of(request: memory_service_pb2.UpdateMemoryRequest) -> Schema | None:
    """Returns the schema of an update; None where it is left. Raises InvalidInput."""
    paths = [path for path in _SCHEMA_PATHS if path in request.update_mask.paths]
    if not paths:
        return None
    spec = request.memory.prism
    if f"prism.{spec.WhichOneof('schema')}" not in paths or not (
        spec.schema_source or spec.json_schema
    ):
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"memory.{paths[0]}: is in update_mask and is not set",
            field=f"memory.{paths[0]}",
        )
    return specs.schema_of(spec.schema_source, spec.json_schema)


def _keys(cursor: str) -> tuple[UUID, UUID] | None:
    """Returns where a page of memories of all sessions begins; None at the first."""
    if not cursor:
        return None
    session_key, _, memory_id = cursor.partition(".")
    return UUID(session_key), UUID(memory_id)


def _target(
    request: memory_service_pb2.EditMemoryRequest | memory_service_pb2.RollbackMemoryRequest,
) -> Target:
    expected = request.expected_revision if request.HasField("expected_revision") else None
    return Target(
        session=request.session,
        memory=request.memory,
        expected_revision=expected,
        comment=request.comment,
    )
