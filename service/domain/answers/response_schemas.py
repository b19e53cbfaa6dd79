"""Response schemas: JSON Schemas of the form that an answer is to have.

They come from clients and are kept with the question, so only what can be checked at any
time is taken: nothing outside of the schema is referred to, and no part is of a kind whose
check can take forever.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from service.domain.values.json_values import check_text, parse

#: Bytes of a schema, as the proto says.
MAX_SCHEMA_BYTES = 16 * 1024
#: Characters of a regular expression.
MAX_PATTERN_CHARACTERS = 500
#: Parts of a regular expression with its counts written out.
MAX_PATTERN_PARTS = 10_000
#: The dialects that `$schema` may name, without the fragment.
DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
)

#: Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if",
    "items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTED = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "properties")
#: Keywords that change what a reference means from where it is met, or whose check runs a
#: regular expression of the client's over each name, and why they are not taken.
_REFUSED = {
    "$anchor": "refer to a part by its place, as in #/$defs/name",
    "$dynamicAnchor": "refer to a part by its place, as in #/$defs/name",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "patternProperties": "name the properties, or use additionalProperties",
}

#: What stands for itself, whatever follows: an escape, or a set of characters.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]|.", re.DOTALL)
_COUNT = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")


def read_schema(text: str) -> dict[str, Any]:
    """Returns the schema that a text is, if it is one that is taken, but for what a validator says.

    Raises ValueError with a sentence.
    """
    check_text(text)
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema has more than {MAX_SCHEMA_BYTES} bytes")
    try:
        schema = parse(text)
    except ValueError as error:
        raise ValueError(f"the schema cannot be read as JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError("the schema is no JSON object")
    dialect = schema.get("$schema", DIALECTS[0])
    if not isinstance(dialect, str) or dialect.rstrip("#") not in DIALECTS:
        raise ValueError(f"$schema is none of the dialects that are known: {', '.join(DIALECTS)}")
    known = {id(part) for _, part in parts(schema)}
    for at, part in parts(schema):
        _check_part(schema, known, at, part)
    return schema


def parts(part: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields a schema and all schemas within it, each with its place."""
    yield at, part
    for place, child in _children(part):
        if isinstance(child, dict):
            yield from parts(child, f"{at}/{place}")


def referred(schema: Mapping[str, Any], reference: object) -> Any:
    """Returns what a `$ref` within `schema` refers to. Raises ValueError with a sentence."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise ValueError(f"$ref {reference!r} does not refer to a part, as in #/$defs/name")
    found: Any = schema
    for token in reference[1:].split("/")[1:]:
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key in map(str, range(len(found))):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise ValueError(f"$ref {reference!r} refers to nothing in the schema")
    return found


def _check_part(
    schema: Mapping[str, Any], known: Collection[int], at: str, part: Mapping[str, Any]
) -> None:
    where = at or "the schema"
    for keyword, instead in _REFUSED.items():
        if keyword in part:
            raise ValueError(f"{where}: {keyword} is not taken; {instead}")
    for keyword in ("$id", "$schema"):
        if at and keyword in part:
            raise ValueError(f"{where}: {keyword} is taken at the top of the schema only")
    if "$ref" in part:
        try:
            found = referred(schema, part["$ref"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        # What is no part would be taken unchecked.
        if not isinstance(found, bool) and id(found) not in known:
            raise ValueError(f"{where}: $ref {part['$ref']!r} refers to no schema")
    pattern = part.get("pattern")
    if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"{where}: its pattern has more than {MAX_PATTERN_CHARACTERS} characters")


def _children(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields place and value of each schema directly within one."""
    for keyword in _ONE:
        if isinstance(part.get(keyword), dict):
            yield keyword, part[keyword]
    for keyword in _LISTED:
        if isinstance(part.get(keyword), list):
            for number, one in enumerate(part[keyword]):
                yield f"{keyword}/{number}", one
    for keyword in _NAMED:
        if isinstance(part.get(keyword), dict):
            for name, one in part[keyword].items():
                yield f"{keyword}/{name}", one


def check_pattern(pattern: str) -> None:
    """Raises ValueError, with a sentence, for a pattern that is too large once compiled.

    What compiles patterns writes `(a{99}){99}` out as 9,801 parts, so that a line can ask for more
    memory than a machine has.
    """
    #: Parts of each group that is open, the innermost last, and of its last element.
    open_parts, last = [0], [0]
    at = 0
    while part := _PART.match(pattern, at):
        count = _COUNT.match(pattern, at)
        at = (count or part).end()
        if count:
            times = max((int(one[:9]) for one in count.groups() if one), default=0)
            last[-1] *= max(times, 1)
        elif part[0] == "(":
            open_parts.append(0)
            last.append(0)
        elif part[0] == ")" and len(open_parts) > 1:
            inner = open_parts.pop() + last.pop()
            open_parts[-1] += last[-1]
            last[-1] = max(inner, 1)
        else:
            open_parts[-1] += last[-1]
            last[-1] = 1
        if sum(open_parts) + sum(last) > MAX_PATTERN_PARTS:
            raise ValueError(
                f"the pattern {pattern!r} has more than {MAX_PATTERN_PARTS:,} parts with its"
                " counts written out"
            )
