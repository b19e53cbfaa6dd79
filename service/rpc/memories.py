"""The lists of amendments and rejections of v1alpha1."""

from palimpsest.v1alpha1 import memories_pb2, memories_pb2_grpc
from service.rpc import past
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.memories.history import History
from storage.prism.amendment_log import AmendmentFilter


class AmendmentService(memories_pb2_grpc.MemoryServiceServicer):
    """See memories.proto."""

    def __init__(self, history: History, pages: Pages) -> None:
        self._history = history
        self._pages = pages

    async def ListAmendments(  # noqa: N802 - named by the proto
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
        scope = f"amendments/{request.session}/{request.memory}/{wanted!r}"
        found = await self._history.amendments(
            *named,
            self._cursor(scope, request.page_token),
            self._pages.size(request.page_size),
            wanted,
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [past.amendment(one) for one in found.items], scope, _place_of, more=found.more
        )
        return memories_pb2.ListAmendmentsResponse(amendments=page, next_page_token=token)

    async def ListRejections(  # noqa: N802
        self, request: memories_pb2.ListRejectionsRequest, context: Context
    ) -> memories_pb2.ListRejectionsResponse:
        """Lists what was proposed and refused."""
        scope = f"rejections/{request.session}/{request.memory}"
        found = await self._history.rejections(
            current_tenant(),
            request.session,
            request.memory,
            self._cursor(scope, request.page_token),
            self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [past.rejection(one) for one in found.items], scope, _place_of, more=found.more
        )
        return memories_pb2.ListRejectionsResponse(rejections=page, next_page_token=token)

    def _cursor(self, scope: str, token: str) -> tuple[int, int]:
        cursor = self._pages.cursor(scope, token, first="0.0")
        revision, _, ordinal = cursor.partition(".")
        return int(revision), int(ordinal)


def _place_of(entry: memories_pb2.Amendment | memories_pb2.Rejection) -> str:
    return f"{entry.revision}.{entry.ordinal}"
