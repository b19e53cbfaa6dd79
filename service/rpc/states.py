"""StateService."""

from palimpsest.v1alpha1 import states_pb2, states_pb2_grpc
from service.domain.state.vectors import StateVector, VectorSource
from service.domain.state.working_context import as_messages, as_text
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.settings.config import Limits
from service.usecases.state.working_contexts import (
    ContextReading,
    WorkingContexts,
    context_too_large,
)

_Request = states_pb2.GetWorkingContextRequest
_Response = states_pb2.GetWorkingContextResponse

#: What a reply has when the client does not say.
DEFAULT_FORMS = (_Request.FORM_PARTS, _Request.FORM_TEXT)

_MADE = {
    VectorSource.TASK: states_pb2.StateVector.MADE_TASK,
    VectorSource.MODEL: states_pb2.StateVector.MADE_MODEL,
    VectorSource.CUT: states_pb2.StateVector.MADE_CUT,
    VectorSource.SKIPPED: states_pb2.StateVector.MADE_SKIPPED,
}


class StateService(states_pb2_grpc.StateServiceServicer):
    """See states.proto."""

    def __init__(self, contexts: WorkingContexts, pages: Pages, limits: Limits) -> None:
        self._contexts = contexts
        self._pages = pages
        self._limits = limits

    async def GetWorkingContext(  # noqa: N802 - named by the proto
        self, request: states_pb2.GetWorkingContextRequest, context: Context
    ) -> states_pb2.GetWorkingContextResponse:
        """Reads the working context."""
        reading = await self._contexts.read(
            current_tenant(),
            request.session,
            request.memory,
            wait=request.freshness == _Request.FRESHNESS_WAIT,
            position=request.position if request.HasField("position") else None,
            deadline=deadline_of(context),
        )
        response = _response(reading, set(request.forms or DEFAULT_FORMS))
        size, limit = response.ByteSize(), self._limits.max_message_bytes
        if size > limit:
            raise context_too_large(request.memory, f"the reply has {size} bytes", limit, "bytes")
        return response

    async def ListStateVectors(  # noqa: N802
        self, request: states_pb2.ListStateVectorsRequest, context: Context
    ) -> states_pb2.ListStateVectorsResponse:
        """Lists the state vectors of a memory."""
        scope = f"vectors/{request.session}/{request.memory}/{request.level}"
        size = self._pages.size(request.page_size)
        found = await self._contexts.list_vectors(
            current_tenant(),
            request.session,
            request.memory,
            level=request.level,
            after_revision=int(self._pages.cursor(scope, request.page_token, first="-1")),
            limit=size + 1,
            max_bytes=self._pages.max_bytes,
        )
        entry = states_pb2.ListStateVectorsResponse.Entry
        entries = [
            entry(vector=_vector(vector), create_time=convert.timestamp(created))
            for vector, created in found[:size]
        ]
        page, token = self._pages.cut(
            entries, scope, lambda one: str(one.vector.revision), more=len(found) > size
        )
        return states_pb2.ListStateVectorsResponse(entries=page, next_page_token=token)


def _response(
    reading: ContextReading, forms: set[states_pb2.GetWorkingContextRequest.Form.ValueType]
) -> states_pb2.GetWorkingContextResponse:
    context = reading.context
    response = _Response(
        revision=context.state.revision,
        applied_position=context.state.applied_position,
        head=context.head,
        memory_tokens=context.memory_tokens,
        recent_tokens=context.recent_tokens,
        compression_due=reading.due,
        trouble=reading.trouble,
        token=reading.token,
    )
    if _Request.FORM_PARTS in forms:
        response.vectors.extend([_vector(vector) for vector in context.state.stack])
        for step in context.recent:
            message = response.recent.add(tokens=step.tokens)
            convert.write_logged_chunk(step.logged, message.chunk)
    if _Request.FORM_TEXT in forms:
        response.text = as_text(context)
    if _Request.FORM_MESSAGES in forms:
        for said in as_messages(context):
            response.messages.add(role=said.role, content=said.content)
    return response


def _vector(vector: StateVector) -> states_pb2.StateVector:
    return states_pb2.StateVector(
        revision=vector.revision,
        level=vector.level,
        text=vector.text,
        tokens=vector.tokens,
        made=_MADE[vector.made],
        after_position=vector.after_position,
        from_position=vector.from_position,
        to_position=vector.to_position,
        children=vector.children,
        replies=vector.replies,
        appended=vector.appended,
    )
