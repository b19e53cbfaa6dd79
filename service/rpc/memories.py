"""MemoryService."""

from uuid import UUID

from palimpsest.v1 import memories_pb2, memories_pb2_grpc
from service.llm.allowed import AllowedModels
from service.rpc import convert, past, specs
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.usecases.history import History
from service.usecases.memories import Memories
from storage.amendment_log import AmendmentFilter

#: What a page ends at, in bytes: it must fit a message.
PAGE_BYTES = 2 * 1024 * 1024


class MemoryService(memories_pb2_grpc.MemoryServiceServicer):
    """See memories.proto."""

    def __init__(
        self, memories: Memories, history: History, pages: Pages, models: AllowedModels
    ) -> None:
        self._memories = memories
        self._models = models
        self._history = history
        self._pages = pages

    async def CreateMemory(  # noqa: N802 - named by the proto
        self, request: memories_pb2.CreateMemoryRequest, context: Context
    ) -> memories_pb2.CreateMemoryResponse:
        """Creates a memory."""
        spec = specs.memory_spec(request)
        self._models.check_spec(spec, f"{request.WhichOneof('spec')}.")
        made = await self._memories.create(current_tenant(), request.session, request.name, spec)
        return memories_pb2.CreateMemoryResponse(memory=convert.memory(made))

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
        if request.session:
            stored = await self._memories.list_all(current_tenant(), request.session)
            wanted = (
                one
                for one in stored
                if (status is None or one.status == status)
                and (one.waiting_cause is not None or not request.waiting)
            )
            return memories_pb2.ListMemoriesResponse(
                memories=[convert.memory(one) for one in wanted]
            )
        scope = f"memories:{status}:{request.waiting}"
        size = self._pages.size(request.page_size)
        found = await self._memories.list_of_all(
            current_tenant(),
            status=status,
            waiting=request.waiting,
            after=self._memory_after(scope, request.page_token),
            limit=size + 1,
        )
        page = fitting([convert.memory(one) for one in found[:size]], PAGE_BYTES)
        response = memories_pb2.ListMemoriesResponse(memories=page)
        if len(found) > len(page):
            last = found[len(page) - 1]
            place = f"{last.session_key}.{last.memory_id}"
            response.next_page_token = self._pages.next(scope, place)
        return response

    async def ListAmendments(  # noqa: N802
        self, request: memories_pb2.ListAmendmentsRequest, context: Context
    ) -> memories_pb2.ListAmendmentsResponse:
        """Lists the amendments that made a memory."""
        named = (current_tenant(), request.session, request.memory)
        wanted = AmendmentFilter(
            prefix=await self._history.prefix(*named, request.path_prefix)
            if request.path_prefix
            else None,
            from_position=request.from_position,
            to_position=request.to_position,
        )
        scope = f"amendments:{request.session}:{request.memory}:{wanted!r}"
        size = self._pages.size(request.page_size)
        after = self._place(scope, request.page_token)
        found = await self._history.amendments(*named, after, size + 1, wanted)
        page = fitting([past.amendment(one) for one in found[:size]], PAGE_BYTES)
        response = memories_pb2.ListAmendmentsResponse(amendments=page)
        if len(found) > len(page):
            place = f"{page[-1].revision}.{page[-1].ordinal}"
            response.next_page_token = self._pages.next(scope, place)
        return response

    async def ListRejections(  # noqa: N802
        self, request: memories_pb2.ListRejectionsRequest, context: Context
    ) -> memories_pb2.ListRejectionsResponse:
        """Lists what was proposed and refused."""
        scope = f"rejections:{request.session}:{request.memory}"
        size = self._pages.size(request.page_size)
        after = self._place(scope, request.page_token)
        found = await self._history.rejections(
            current_tenant(), request.session, request.memory, after, size + 1
        )
        page = fitting([past.rejection(one) for one in found[:size]], PAGE_BYTES)
        response = memories_pb2.ListRejectionsResponse(rejections=page)
        if len(found) > len(page):
            place = f"{page[-1].revision}.{page[-1].ordinal}"
            response.next_page_token = self._pages.next(scope, place)
        return response

    async def RetryMemory(  # noqa: N802
        self, request: memories_pb2.RetryMemoryRequest, context: Context
    ) -> memories_pb2.RetryMemoryResponse:
        """Lets a stalled memory try again, or all."""
        if not request.memory:
            retried = await self._memories.retry_all(current_tenant(), request.session)
            return memories_pb2.RetryMemoryResponse(retried=retried)
        stored = await self._memories.retry(current_tenant(), request.session, request.memory)
        return memories_pb2.RetryMemoryResponse(memory=convert.memory(stored))

    async def Flush(  # noqa: N802
        self, request: memories_pb2.FlushRequest, context: Context
    ) -> memories_pb2.FlushResponse:
        """Ends the wait for more chunks."""
        token, head = await self._memories.flush(current_tenant(), request.session, request.memory)
        return memories_pb2.FlushResponse(token=token, head=head)

    def _memory_after(self, scope: str, token: str) -> tuple[UUID, UUID] | None:
        place = self._pages.place(scope, token, first="")
        if not place:
            return None
        key, _, memory_id = place.partition(".")
        return UUID(key), UUID(memory_id)

    def _place(self, scope: str, token: str) -> tuple[int, int]:
        place = self._pages.place(scope, token, first="0.0")
        revision, _, ordinal = place.partition(".")
        return int(revision), int(ordinal)
