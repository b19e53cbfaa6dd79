"""JSON values, which memories are made of, and their one canonical text."""

import hashlib
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
#: Digits of a whole number, and characters of any other.
MAX_NUMBER_CHARACTERS = 64

_TOO_LARGE = 10**MAX_NUMBER_CHARACTERS


def canonical(value: Json) -> str:
    """Returns the one text of a value: no blanks, keys in their order, no escapes but JSON's own.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse(text: str, *, max_nodes: int = MAX_NODES) -> Json:
    """Reads a JSON text of at most `max_nodes` values.

    Raises ValueError, with a sentence that says what is wrong.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_bounded(int),
            parse_float=_bounded(float),
        )
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from error
    return checked(value, max_nodes=max_nodes)


def restore(text: str) -> Json:
    """Reads a canonical text of ours back, which was checked before it was stored."""
    value: Json = json.loads(text)
    return value


def checked(value: Any, *, max_nodes: int = MAX_NODES) -> Json:
    """Returns `value`, if it is JSON within the limits: then `parse` reads its canonical text.

    Tuples become lists. Raises ValueError, with a sentence that says what is wrong.
    """
    return _checked(value, 0, [max_nodes])


def _checked(value: Any, depth: int, left: list[int]) -> Json:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("too many values")
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case str():
            return check_text(value)
        case None | bool():
            return value
        case int():
            if abs(value) >= _TOO_LARGE:
                raise ValueError(f"a number of more than {MAX_NUMBER_CHARACTERS} digits")
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError("a number that JSON does not have")
            return value
        case list() | tuple():
            return [_checked(child, depth + 1, left) for child in value]
        case dict():
            return {_key(key): _checked(child, depth + 1, left) for key, child in value.items()}
    raise ValueError(f"a {type(value).__name__}, which JSON does not have")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("a key that is not a string")
    return check_text(key)


def check_text(text: str) -> str:
    """Returns `text`, if it can be stored. Raises ValueError."""
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
        # The sign is no digit: what `checked` lets pass must be read again.
        if len(digits.removeprefix("-")) > MAX_NUMBER_CHARACTERS:
            raise ValueError(f"a number of more than {MAX_NUMBER_CHARACTERS} digits")
        return kind(digits)

    return read


#: Characters of an etag.
_ETAG_CHARACTERS = 24


def etag_of(*parts: Json) -> str:
    """Returns the same text for the same parts, and another one for others."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_ETAG_CHARACTERS]
