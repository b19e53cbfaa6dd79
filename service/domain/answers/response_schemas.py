"""Response schemas: JSON Schemas of the form that an answer is to have.

They come from clients and are kept with the question, so only what can be checked at any
time is taken: nothing outside of the schema is referred to, nothing refers to itself
without end, and no part is of a kind whose check can take forever.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from service.domain.values.json_values import check_text, parse

#: Bytes of a schema, as the proto says.
MAX_SCHEMA_BYTES = 16 * 1024
#: Characters of a regular expression.
MAX_PATTERN_CHARACTERS = 500
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
#: Those that are checked against the same value as the schema that they are part of.
_SAME_VALUE = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
#: Keywords that change what a reference means from where it is met, or whose check runs a
#: regular expression of the client's over each name, and why they are not taken.
_REFUSED = {
    "$anchor": "refer to a part by its place, as in #/$defs/name",
    "$dynamicAnchor": "refer to a part by its place, as in #/$defs/name",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "patternProperties": "name the properties, or use additionalProperties",
}


def read_schema(text: str) -> dict[str, Any]:
    """The schema that a text is, if it is one that is taken, but for what a validator says.

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
    _check_endless(schema)
    return schema


def parts(part: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A schema and all schemas within it, each with its place."""
    yield at, part
    for _, place, child in _children(part):
        if isinstance(child, dict):
            yield from parts(child, f"{at}/{place}")


def referred(schema: Mapping[str, Any], reference: object) -> Any:
    """What a `$ref` within `schema` refers to. Raises ValueError with a sentence."""
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
    if at and "$id" in part:
        raise ValueError(f"{where}: $id is taken at the top of the schema only")
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


def _children(part: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Keyword, place and value of each schema directly within one."""
    for keyword in _ONE:
        if isinstance(part.get(keyword), dict):
            yield keyword, keyword, part[keyword]
    for keyword in _LISTED:
        if isinstance(part.get(keyword), list):
            for number, one in enumerate(part[keyword]):
                yield keyword, f"{keyword}/{number}", one
    for keyword in _NAMED:
        if isinstance(part.get(keyword), dict):
            for name, one in part[keyword].items():
                yield keyword, f"{keyword}/{name}", one


def _check_endless(schema: Mapping[str, Any]) -> None:
    """Raises ValueError where a value would be checked against the same part for ever."""
    #: By identity: whether nothing behind a part leads back to it.
    ends: dict[int, bool] = {}

    def visit(part: Any) -> None:
        if not isinstance(part, dict) or ends.get(id(part)):
            return
        if id(part) in ends:
            raise ValueError("a $ref leads back to itself before any part of a value is reached")
        ends[id(part)] = False
        if "$ref" in part:
            visit(referred(schema, part["$ref"]))
        for keyword, _, child in _children(part):
            if keyword in _SAME_VALUE:
                visit(child)
        ends[id(part)] = True

    for _, part in parts(schema):
        visit(part)
