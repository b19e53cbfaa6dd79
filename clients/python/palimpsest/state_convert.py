"""From the proto's messages to the client's values: state memories."""

from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest import convert, state_values, values
from palimpsest.v1 import states_pb2

_MADE: dict[int, state_values.VectorMade] = {
    states_pb2.StateVector.MADE_TASK: "task",
    states_pb2.StateVector.MADE_MODEL: "model",
    states_pb2.StateVector.MADE_CUT: "cut",
    states_pb2.StateVector.MADE_SKIPPED: "skipped",
}


def state_vector(
    message: states_pb2.StateVector, created: Timestamp | None = None
) -> state_values.StateVector:
    """A state vector, and when it was committed."""
    return state_values.StateVector(
        revision=message.revision,
        level=message.level,
        text=message.text,
        tokens=message.tokens,
        made=_MADE.get(message.made, "unknown"),
        after_position=message.after_position,
        from_position=message.from_position,
        to_position=message.to_position,
        children=tuple(message.children),
        replies=message.replies,
        appended=tuple(message.appended),
        created_at=None if created is None else convert.moment(created),
    )


def working_context(message: states_pb2.GetWorkingContextResponse) -> values.WorkingContext:
    """A working context."""
    return values.WorkingContext(
        revision=message.revision,
        applied_position=message.applied_position,
        head=message.head,
        vectors=tuple(state_vector(one) for one in message.vectors),
        recent=tuple(
            values.RecentStep(chunk=convert.chunk(one.chunk), tokens=one.tokens)
            for one in message.recent
        ),
        text=message.text,
        messages=tuple(
            state_values.ChatMessage(role=one.role, content=one.content) for one in message.messages
        ),
        memory_tokens=message.memory_tokens,
        recent_tokens=message.recent_tokens,
        compression_due=message.compression_due,
        trouble=message.trouble if message.HasField("trouble") else None,
        token=message.token,
    )
