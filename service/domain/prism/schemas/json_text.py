"""The text of a JSON Schema: read into objects, and places in it written down."""

import json
from collections.abc import Iterable
from typing import Any, NoReturn
from urllib.parse import unquote

from service.domain.prism.schemas.limits import MAX_JSON_BYTES
from service.domain.values.errors import SchemaInvalid
from service.domain.values.json_values import MAX_NUMBER_CHARACTERS, check_text

#: Keys and indexes from the root of the document, as in a JSON Pointer.
At = tuple[str | int, ...]

#: Levels of lists and objects within one another. Python's own limit depends on the room
#: left on the stack; far below it, what one process can read another can read as well.
_MAX_DEPTH = 200

#: The request's field.
_FIELD = "prism.json_schema"


class JsonObject(dict[str, Any]):
    """An object of the text. JSON leaves open what a key that is there twice means."""

    #: Such a key; None when there is none.
    twice: str | None = None


def read_object(text: str) -> JsonObject:
    """Returns the object that a text is. Raises SchemaInvalid."""
    try:
        # Before anything else reads it; each character has a byte or more.
        if len(text) > MAX_JSON_BYTES or len(check_text(text).encode()) > MAX_JSON_BYTES:
            raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        why = f"this is no JSON: {error.msg}"
        raise SchemaInvalid(why, line=error.lineno, column=error.colno, field=_FIELD) from error
    except ValueError as error:
        raise SchemaInvalid(f"the JSON Schema holds {error}", pointer="", field=_FIELD) from error
    except RecursionError as error:
        too_deep = "this is nested too deeply to be read"
        raise SchemaInvalid(too_deep, pointer="", field=_FIELD) from error
    if not isinstance(document, JsonObject):
        refuse((), "a JSON Schema is an object")
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
    if level:
        refuse((), f"lists and objects are nested deeper than {_MAX_DEPTH} levels")
    return document


def refuse(at: At, why: str) -> NoReturn:
    """Raises SchemaInvalid for a place."""
    steps = (str(token).replace("~", "~0").replace("/", "~1") for token in at)
    raise SchemaInvalid(why, pointer="".join(f"/{step}" for step in steps), field=_FIELD)


def quoted(key: str) -> str:
    """Returns a key as it stands in the text."""
    return json.dumps(key, ensure_ascii=False)


def referred(reference: str, start: str) -> list[str]:
    """Returns the keys that the rest of a reference can mean: as it stands, and unescaped.

    RFC 6901 asks for the second; not every program that writes schemas knows.
    """
    key = reference.removeprefix(start)
    return [key, unquote(key).replace("~1", "/").replace("~0", "~")]


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    read = JsonObject(pairs)
    if len(read) < len(pairs):
        left = dict(read)
        # The first that was taken away already.
        read.twice = next(key for key, _ in pairs if left.pop(key, left) is left)
    return read


def _children(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _whole(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARACTERS + 1:
        raise ValueError(f"a number of more than {MAX_NUMBER_CHARACTERS} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which JSON does not have")
