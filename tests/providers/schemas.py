"""What providers' subsets of JSON Schema leave out."""

from collections.abc import Iterator
from typing import Any

from tests.providers.exchange import Invalid, Json

Path = tuple[str, ...]

#: Limits of OpenAI's strict mode.
STRICT_PROPERTIES = 5_000
STRICT_DEPTH = 10
STRICT_ENUM_VALUES = 1_000
#: Limits of Anthropic's grammars, over all schemas of a request.
CLAUDE_UNIONS = 16
CLAUDE_OPTIONAL = 24
#: Gemini gives no number: this one is ours, a few times what flows need.
GEMINI_STATES = 2_000

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_ONES = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def nodes(schema: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yields every schema in a schema, with the way to it, the outer first."""
    yield path, schema
    for name in _MAPS:
        for key, inner in (schema.get(name) or {}).items():
            if isinstance(inner, dict):
                yield from nodes(inner, (*path, name, key))
    for name in _LISTS:
        for number, inner in enumerate(schema.get(name) or ()):
            if isinstance(inner, dict):
                yield from nodes(inner, (*path, name, str(number)))
    for name in _ONES:
        inner = schema.get(name)
        if isinstance(inner, dict):
            yield from nodes(inner, (*path, name))


def types_of(schema: Json) -> tuple[str, ...]:
    """Returns the types that a schema names."""
    said = schema.get("type", ())
    return (said,) if isinstance(said, str) else tuple(said)


def is_object(schema: Json) -> bool:
    return "object" in types_of(schema) or "properties" in schema


def is_recursive(schema: Json) -> bool:
    """Returns whether a definition comes back to itself."""

    def targets(inner: Json) -> set[str]:
        return {str(node["$ref"]) for _, node in nodes(inner) if "$ref" in node}

    defined = {
        f"#/{key}/{name}": inner
        for key in ("$defs", "definitions")
        for name, inner in (schema.get(key) or {}).items()
    }
    reached = {name: targets(inner) for name, inner in defined.items()}
    for _ in defined:
        for found in reached.values():
            found |= set().union(*(reached.get(name, set()) for name in found))
    return "#" in targets(schema) or any(name in found for name, found in reached.items())


def dangling(schema: Json) -> str | None:
    """Returns a reference to nothing in the schema; None when there is none."""
    for _, node in nodes(schema):
        ref = node.get("$ref")
        if isinstance(ref, str) and not _resolves(schema, ref):
            return ref
    return None


def _resolves(schema: Json, ref: str) -> bool:
    at: Any = schema
    for name in ref.removeprefix("#").strip("/").split("/"):
        if not name:
            continue
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
    return ref.startswith("#")


def check_strict(schema: Json, name: str) -> None:
    """Refuses what OpenAI's strict mode does not take."""

    def refuse(rule: str, path: Path, said: str) -> Invalid:
        at = f"({', '.join(map(repr, path))}{',' if len(path) == 1 else ''})"
        message = f"Invalid schema for response_format '{name}': In context={at}, {said}"
        return Invalid(rule, message, param="response_format")

    if types_of(schema) != ("object",):
        kind = schema.get("type")
        said = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        raise refuse("root", (), said)
    properties = values = 0
    for path, node in nodes(schema):
        for keyword in ("allOf", "not", "if", "then", "else", "dependentRequired"):
            if keyword in node:
                raise refuse("keyword", path, f"'{keyword}' is not permitted.")
        values += len(node.get("enum", ()))
        if not is_object(node):
            continue
        if node.get("additionalProperties") is not False:
            said = "'additionalProperties' is required to be supplied and to be false."
            raise refuse("additional", path, said)
        names = list(node.get("properties", {}))
        properties += len(names)
        missing = [one for one in names if one not in node.get("required", ())]
        if missing:
            said = (
                "'required' is required to be supplied and to be an array including every key in"
                f" properties. Missing '{missing[0]}'."
            )
            raise refuse("required", path, said)
        if _depth(path) > STRICT_DEPTH:
            raise refuse("depth", path, f"nesting is deeper than {STRICT_DEPTH} levels.")
    if properties > STRICT_PROPERTIES:
        raise refuse("size", (), f"there are more than {STRICT_PROPERTIES} properties.")
    if values > STRICT_ENUM_VALUES:
        raise refuse("size", (), f"there are more than {STRICT_ENUM_VALUES} values in enums.")


def _depth(path: Path) -> int:
    """Levels of objects and arrays around a schema."""
    return 1 + sum(name in ("properties", "items", "prefixItems") for name in path)


#: Bounds that Claude's grammars do not keep, by type.
_CLAUDE_BOUNDS = {
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength"),
    "array": ("maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    "object": ("minProperties", "maxProperties", "patternProperties", "propertyNames"),
}


def check_claude(schema: Json, field: str) -> None:
    """Refuses what Anthropic's structured outputs do not take; `field` is its place."""

    def refuse(rule: str, said: str) -> Invalid:
        return Invalid(rule, f"{field}: {said}")

    if (ref := dangling(schema)) is not None:
        raise refuse("reference", f"Invalid $ref: {ref}")
    if is_recursive(schema):
        raise refuse("recursion", "Circular reference detected in schema definitions")
    unions = optional = 0
    for _, node in nodes(schema):
        for kind in types_of(node):
            for keyword in _CLAUDE_BOUNDS.get(kind, ()):
                if keyword in node:
                    said = f"For '{kind}' type, property '{keyword}' is not supported"
                    raise refuse("bounds", said)
        if "array" in types_of(node) and node.get("minItems", 0) not in (0, 1):
            said = "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
            raise refuse("bounds", said)
        for keyword in ("oneOf", "not", "if", "then", "else"):
            if keyword in node:
                raise refuse("keyword", f"Schema keyword '{keyword}' is not supported")
        unions += "anyOf" in node or len(types_of(node)) > 1
        if is_object(node):
            if node.get("additionalProperties") is not False:
                said = "For 'object' type, 'additionalProperties' must be explicitly set to false"
                raise refuse("additional", said)
            required = node.get("required", ())
            optional += sum(name not in required for name in node.get("properties", {}))
    if unions > CLAUDE_UNIONS:
        said = (
            f"Schemas contains too many parameters with union types ({unions} parameters with type"
            f" arrays or anyOf). Reduce them (limit: {CLAUDE_UNIONS})."
        )
        raise refuse("unions", said)
    if optional > CLAUDE_OPTIONAL:
        said = (
            f"Schemas contains too many optional parameters ({optional}), which would make grammar"
            f" compilation inefficient. Reduce their number (limit: {CLAUDE_OPTIONAL})."
        )
        raise refuse("optional", said)


def check_gemini(schema: Json) -> None:
    """Refuses a schema that is too large; keywords that Gemini does not know it passes over."""
    states = 0
    for _, node in nodes(schema):
        bound = max(int(node.get(name, 0)) for name in ("maxItems", "maxLength", "minItems"))
        states += 1 + len(node.get("enum", ())) + bound
    if states > GEMINI_STATES:
        message = (
            "The specified schema produces a constraint that has too many states for serving. "
            "Typical causes of this error are schemas with lots of text (for example, very long "
            "property or enum names), schemas with long array length limits, or schemas using "
            "complex value matchers."
        )
        raise Invalid("states", message)


#: What vLLM looks for before it hands a schema to xgrammar.
_XGRAMMAR = {
    "integer": ("multipleOf",),
    "number": ("multipleOf",),
    "array": ("uniqueItems", "contains", "minContains", "maxContains"),
    "object": ("patternProperties", "propertyNames"),
}


def check_xgrammar(schema: Json) -> None:
    """Refuses what vLLM's default backend does not take when no other one is let in."""
    for _, node in nodes(schema):
        for kind in types_of(node):
            if any(keyword in node for keyword in _XGRAMMAR.get(kind, ())):
                message = "The provided JSON schema contains features not supported by xgrammar."
                raise Invalid("xgrammar", message)
