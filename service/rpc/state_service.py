"""StateService of version 1."""

from palimpsest.v1 import state_service_pb2, state_service_pb2_grpc
from service.rpc.convert import common as convert
from service.rpc.convert import states
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.settings.config import Limits
from service.usecases.state.working_contexts import WorkingContexts, context_too_large


class StateService(state_service_pb2_grpc.StateServiceServicer):
    """See state_service.proto."""

    def __init__(self, contexts: WorkingContexts, pages: Pages, limits: Limits) -> None:
        self._contexts = contexts
        self._pages = pages
        self._limits = limits

    async def GetWorkingContext(  # noqa: N802 - named by the proto
        self, request: state_service_pb2.GetWorkingContextRequest, context: Context
    ) -> state_service_pb2.WorkingContext:
        """Reads the working context."""
        reading = await self._contexts.read(
            current_tenant(),
            request.session,
            request.memory,
            consistency=convert.consistency(request.consistency),
            position=request.position if request.HasField("position") else None,
            deadline=deadline_of(context),
        )
        message = states.working_context(reading, request.forms)
        size, limit = message.ByteSize(), self._limits.max_message_bytes
        if size > limit:
            raise context_too_large(request.memory, f"the reply has {size} bytes", limit, "bytes")
        return message

    async def ListStateVectors(  # noqa: N802
        self, request: state_service_pb2.ListStateVectorsRequest, context: Context
    ) -> state_service_pb2.ListStateVectorsResponse:
        """Lists the state vectors of a memory."""
        scope = f"vectors/{request.session}/{request.memory}/{request.level}"
        size = self._pages.size(request.page_size)
        stored, found = await self._contexts.list_vectors(
            current_tenant(),
            request.session,
            request.memory,
            level=request.level,
            after_revision=int(self._pages.cursor(scope, request.page_token, first="-1")),
            limit=size + 1,
            max_bytes=self._pages.max_bytes,
            consistency=convert.consistency(request.consistency),
            deadline=deadline_of(context),
        )
        page, token = self._pages.cut(
            [states.vector(*one) for one in found[:size]],
            scope,
            lambda one: str(one.revision),
            more=len(found) > size,
        )
        applied = stored.applied_position
        return state_service_pb2.ListStateVectorsResponse(
            vectors=page,
            next_page_token=token,
            read_point=convert.read_point(
                stored.revision, applied, self._contexts.read_token(stored, applied)
            ),
        )
