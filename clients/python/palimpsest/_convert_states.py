"""State vectors and working contexts, from the proto's messages."""

from collections.abc import Sequence
from typing import Any

from palimpsest._convert import (
    if_set,
    known_name,
    moment,
    number_of,
    numbers_of,
    positions,
    read_point,
    value_of,
)
from palimpsest._convert_chunks import chunk
from palimpsest._convert_memories import blocked
from palimpsest._values_common import ChatMessage
from palimpsest._values_states import ContextForm, StateVector, VectorOrigin, WorkingContext
from palimpsest.v1 import state_service_pb2

_Request = state_service_pb2.GetWorkingContextRequest
_Vector = state_service_pb2.StateVector

_FORMS: dict[ContextForm, Any] = numbers_of(_Request.Form, "FORM_")
_ORIGINS: dict[VectorOrigin, Any] = numbers_of(_Vector.Origin, "ORIGIN_")


def form_numbers(forms: Sequence[ContextForm]) -> list[Any]:
    """Returns what the proto calls forms of a context. Raises ValueError."""
    return [number_of("form", _FORMS, form) for form in forms]


def state_vector(message: state_service_pb2.StateVector) -> StateVector:
    """Returns a state vector."""
    return value_of(
        StateVector,
        message,
        origin=known_name(_ORIGINS, message.origin),
        positions=positions(message),
        new_positions=positions(message, "new_positions"),
        created_at=moment(message.created_at),
    )


def working_context(message: state_service_pb2.WorkingContext) -> WorkingContext:
    """Returns a working context."""
    return value_of(
        WorkingContext,
        message,
        read_point=read_point(message.read_point),
        vectors=tuple(state_vector(one) for one in message.vectors),
        recent=tuple(chunk(one) for one in message.recent),
        messages=tuple(value_of(ChatMessage, one) for one in message.messages),
        blocked=if_set(message, "blocked", blocked),
    )
