"""MemoryService."""

from palimpsest.v1 import memories_pb2, memories_pb2_grpc
from service.rpc import convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.memories import Memories
from storage.amendment_log import LoggedAmendment

#: Values that a page of amendments ends at, in bytes: it must fit a message.
PAGE_BYTES = 2 * 1024 * 1024


class MemoryService(memories_pb2_grpc.MemoryServiceServicer):
    """See memories.proto."""

    def __init__(self, memories: Memories, pages: Pages) -> None:
        self._memories = memories
        self._pages = pages

    async def CreateMemory(  # noqa: N802 - named by the proto
        self, request: memories_pb2.CreateMemoryRequest, context: Context
    ) -> memories_pb2.CreateMemoryResponse:
        """Creates a memory."""
        spec = convert.prism_spec(request.prism)
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
        """Lists the memories of a session."""
        found = await self._memories.list_all(current_tenant(), request.session)
        return memories_pb2.ListMemoriesResponse(memories=[convert.memory(one) for one in found])

    async def ListAmendments(  # noqa: N802
        self, request: memories_pb2.ListAmendmentsRequest, context: Context
    ) -> memories_pb2.ListAmendmentsResponse:
        """Lists the amendments that made a memory."""
        scope = f"amendments:{request.session}:{request.memory}"
        size = self._pages.size(request.page_size)
        found = await self._memories.list_amendments(
            current_tenant(),
            request.session,
            request.memory,
            self._place(scope, request.page_token),
            size + 1,
        )
        page: list[LoggedAmendment] = []
        total = 0
        for one in found[:size]:
            total += len(one.value.encode())
            if page and total > PAGE_BYTES:
                break
            page.append(one)
        response = memories_pb2.ListAmendmentsResponse(
            amendments=[convert.amendment(one) for one in page]
        )
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
        found = await self._memories.list_rejections(
            current_tenant(),
            request.session,
            request.memory,
            self._place(scope, request.page_token),
            size + 1,
        )
        page = found[:size]
        response = memories_pb2.ListRejectionsResponse(
            rejections=[convert.rejection(one) for one in page]
        )
        if len(found) > size:
            place = f"{page[-1].revision}.{page[-1].ordinal}"
            response.next_page_token = self._pages.next(scope, place)
        return response

    async def RetryMemory(  # noqa: N802
        self, request: memories_pb2.RetryMemoryRequest, context: Context
    ) -> memories_pb2.RetryMemoryResponse:
        """Lets a stalled memory try again."""
        stored = await self._memories.retry(current_tenant(), request.session, request.memory)
        return memories_pb2.RetryMemoryResponse(memory=convert.memory(stored))

    def _place(self, scope: str, token: str) -> tuple[int, int]:
        place = self._pages.place(scope, token, first="0.0")
        revision, _, ordinal = place.partition(".")
        return int(revision), int(ordinal)
