"""MemoryService."""

from uuid import UUID

from palimpsest.v1alpha1 import memories_pb2, memories_pb2_grpc
from service.llm.gateway.allowed import AllowedModels
from service.rpc import specs
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.memories.memories import Memories
from service.usecases.operations.deleting import Deleter

#: Memories of all sessions on one page.
MAX_OF_ALL = 100


class AlphaMemoryService(memories_pb2_grpc.MemoryServiceServicer):
    """See memories.proto."""

    def __init__(
        self,
        memories: Memories,
        deleter: Deleter,
        pages: Pages,
        models: AllowedModels,
    ) -> None:
        self._memories = memories
        self._deleter = deleter
        self._models = models
        self._pages = pages

    async def CreateMemory(  # noqa: N802 - named by the proto
        self, request: memories_pb2.CreateMemoryRequest, context: Context
    ) -> memories_pb2.CreateMemoryResponse:
        """Creates a memory."""
        spec = specs.memory_spec(request)
        self._models.check_spec(spec, f"{request.WhichOneof('spec')}.")
        return await reply(
            self._memories.create(current_tenant(), request.session, request.name, spec),
            lambda made: memories_pb2.CreateMemoryResponse(memory=convert.memory(made)),
        )

    async def DeleteMemory(  # noqa: N802
        self, request: memories_pb2.DeleteMemoryRequest, context: Context
    ) -> memories_pb2.DeleteMemoryResponse:
        """Deletes a memory."""
        deleted = self._deleter.delete_memory(
            current_tenant(), request.session, request.memory, allow_missing=request.allow_missing
        )
        return await reply(deleted, lambda _: memories_pb2.DeleteMemoryResponse())

    async def GetMemory(  # noqa: N802
        self, request: memories_pb2.GetMemoryRequest, context: Context
    ) -> memories_pb2.GetMemoryResponse:
        """Reads a memory, now or at an earlier revision."""
        tenant_id = current_tenant()
        if request.HasField("revision"):
            reading = await self._memories.read_revision(
                tenant_id, request.session, request.memory, request.revision
            )
        elif request.HasField("position"):
            reading = await self._memories.read_position(
                tenant_id, request.session, request.memory, request.position
            )
        else:
            reading = await self._memories.read(
                tenant_id,
                request.session,
                request.memory,
                convert.consistency(request.consistency),
                deadline=deadline_of(context),
            )
        return memories_pb2.GetMemoryResponse(
            memory=convert.memory(reading.memory),
            value_json=reading.value_json,
            revision=reading.revision,
            applied_position=reading.applied_position,
            token=reading.token,
        )

    async def ListMemories(  # noqa: N802
        self, request: memories_pb2.ListMemoriesRequest, context: Context
    ) -> memories_pb2.ListMemoriesResponse:
        """Lists the memories of a session, or of all."""
        status = convert.memory_status(request.status)
        if not request.session:
            return await self._list_of_all(request, status)
        scope = f"memories/{request.session}/{status}/{request.waiting}"
        after = self._pages.cursor(scope, request.page_token, first="")
        # Those of one session are few: what is not wanted of them is left out here.
        found = await self._memories.list_after(current_tenant(), request.session, after, None)
        wanted = [
            convert.memory(one)
            for one in found.items
            if (status is None or one.status == status)
            and (one.waiting_cause is not None or not request.waiting)
        ]
        size = request.page_size or len(wanted)
        page, token = self._pages.cut(
            wanted[:size], scope, lambda one: one.name, more=len(wanted) > size, most=True
        )
        return memories_pb2.ListMemoriesResponse(memories=page, next_page_token=token)

    async def _list_of_all(
        self, request: memories_pb2.ListMemoriesRequest, status: str | None
    ) -> memories_pb2.ListMemoriesResponse:
        scope = f"memories/{status}/{request.waiting}"
        # Schemas may be long: what is read for a page is bounded by the rows of it.
        size = min(self._pages.size(request.page_size), MAX_OF_ALL)
        found = await self._memories.list_of_all(
            current_tenant(),
            status=status,
            waiting=request.waiting,
            after=self._memory_after(scope, request.page_token),
            limit=size + 1,
        )
        places = {
            (one.session_name, one.name): f"{one.session_key}.{one.memory_id}" for one in found
        }
        page, token = self._pages.cut(
            [convert.memory(one) for one in found[:size]],
            scope,
            lambda one: places[one.session, one.name],
            more=len(found) > size,
        )
        return memories_pb2.ListMemoriesResponse(memories=page, next_page_token=token)

    async def RetryMemory(  # noqa: N802
        self, request: memories_pb2.RetryMemoryRequest, context: Context
    ) -> memories_pb2.RetryMemoryResponse:
        """Lets a stalled memory try again, or all."""
        if not request.memory:
            return await reply(
                self._memories.retry_all(current_tenant(), request.session),
                lambda retried: memories_pb2.RetryMemoryResponse(retried=retried),
            )
        return await reply(
            self._memories.retry(current_tenant(), request.session, request.memory),
            lambda stored: memories_pb2.RetryMemoryResponse(memory=convert.memory(stored)),
        )

    async def Flush(  # noqa: N802
        self, request: memories_pb2.FlushRequest, context: Context
    ) -> memories_pb2.FlushResponse:
        """Ends the wait for more chunks."""
        return await reply(
            self._memories.flush(current_tenant(), request.session, request.memory),
            lambda done: memories_pb2.FlushResponse(token=done[0], head=done[1]),
        )

    def _memory_after(self, scope: str, token: str) -> tuple[UUID, UUID] | None:
        cursor = self._pages.cursor(scope, token, first="")
        if not cursor:
            return None
        key, _, memory_id = cursor.partition(".")
        return UUID(key), UUID(memory_id)
