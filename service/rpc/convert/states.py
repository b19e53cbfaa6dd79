"""Working contexts and the vectors in them, as the proto has them."""

from collections.abc import Collection
from datetime import datetime

from palimpsest.v1 import common_pb2, state_service_pb2
from service.domain.state.vectors import StateVector
from service.domain.state.working_context import as_messages, as_text
from service.rpc.convert import common, memories
from service.rpc.convert.chunks import write_chunk
from service.usecases.state.working_contexts import ContextReading

Form = state_service_pb2.GetWorkingContextRequest.Form

#: What a reply has when the client does not say.
DEFAULT_FORMS = (Form.FORM_PARTS, Form.FORM_TEXT)


def working_context(
    reading: ContextReading, forms: Collection[int]
) -> state_service_pb2.WorkingContext:
    """Returns a working context, in these forms, or in those that are usual."""
    context = reading.context
    message = state_service_pb2.WorkingContext(
        read_point=common.read_point(
            context.state.revision, context.state.applied_position, reading.token
        ),
        head=context.head,
        memory_tokens=context.memory_tokens,
        recent_tokens=context.recent_tokens,
        compression_due=reading.due,
    )
    if reading.due:
        stored = memories.memory(reading.memory)
        if stored.HasField("blocked"):
            message.blocked.CopyFrom(stored.blocked)
    wanted = set(forms or DEFAULT_FORMS)
    if Form.FORM_PARTS in wanted:
        message.vectors.extend(
            [vector(one, reading.created_at[one.revision]) for one in context.state.stack]
        )
        for step in context.recent:
            write_chunk(step.logged, message.recent.add())
    if Form.FORM_TEXT in wanted:
        message.text = as_text(context)
    if Form.FORM_MESSAGES in wanted:
        message.messages.extend(
            [common.message_of(common_pb2.ChatMessage, said) for said in as_messages(context)]
        )
    return message


def vector(found: StateVector, created_at: datetime) -> state_service_pb2.StateVector:
    """Returns a state vector, and when it was committed."""
    return common.message_of(
        state_service_pb2.StateVector,
        found,
        origin=found.made,
        positions=common.positions(found.after_position + 1, found.to_position),
        new_positions=common.positions(found.from_position + 1, found.to_position),
        added_pins=found.appended,
        created_at=common.timestamp(created_at),
    )
