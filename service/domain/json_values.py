"""JSON values: what a memory is made of, and its one canonical text."""

import json
import math
from collections.abc import Callable
from typing import Any

#: A JSON value. Objects keep the order in which their keys were added.
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

#: Levels of lists and objects within one another.
MAX_DEPTH = 32
#: Values within one value, itself included.
MAX_NODES = 10_000
#: Characters of a number.
MAX_NUMBER_CHARACTERS = 64


def canonical(value: Json) -> str:
    """The one text of a value: no blanks, keys in their order, no escapes but JSON's own.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse(text: str) -> Json:
    """Reads a JSON text. Raises ValueError, with a sentence that says what is wrong."""
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_bounded(int),
            parse_float=_bounded(float),
        )
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from error
    return checked(value)


def checked(value: Any) -> Json:
    """`value`, if it is a JSON value within the limits.

    Tuples become lists. Raises ValueError, with a sentence that says what is wrong.
    """
    counted = [0]
    return _checked(value, 0, counted)


def _checked(value: Any, depth: int, counted: list[int]) -> Json:
    counted[0] += 1
    if counted[0] > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES} values")
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case str():
            return check_text(value)
        case None | bool():
            return value
        case int():
            # The bit length is at hand, the digits would have to be made.
            if value.bit_length() > MAX_NUMBER_CHARACTERS * 10 // 3:
                raise ValueError(f"a number of more than {MAX_NUMBER_CHARACTERS} digits")
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError("a number that JSON does not have")
            return value
        case list() | tuple():
            return [_checked(child, depth + 1, counted) for child in value]
        case dict():
            return {_key(key): _checked(child, depth + 1, counted) for key, child in value.items()}
    raise ValueError(f"a {type(value).__name__}, which JSON does not have")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("a key that is not a string")
    return check_text(key)


def check_text(text: str) -> str:
    """`text`, if it can be stored. Raises ValueError."""
    if "\0" in text:
        raise ValueError("a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    return text


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name}, which JSON does not have")


def _bounded(kind: Callable[[str], Json]) -> Callable[[str], Json]:
    def read(digits: str) -> Json:
        if len(digits) > MAX_NUMBER_CHARACTERS:
            raise ValueError(f"a number of more than {MAX_NUMBER_CHARACTERS} digits")
        return kind(digits)

    return read
