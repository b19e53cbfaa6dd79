"""Shaping: an answer is brought into the form that its question asks for."""

from typing import Any

from service.domain.errors import InvalidInput
from service.domain.reasons import Reason
from service.usecases.response_forms import read_form


def check_response_schema(text: str) -> dict[str, Any]:
    """The JSON Schema that a question brings.

    Raises InvalidInput for one that is none, is too large or too deep, or refers to
    something outside of itself.
    """
    try:
        return read_form(text)
    except ValueError as error:
        message = f"response_schema: {error}"
        raise InvalidInput(Reason.FIELD_INVALID, message, field="response_schema") from error
