"""Schemas of a memory from classes that say more than a memory can hold.

A memory checks types, and none of the rules that pydantic and JSON Schema have besides: ranges,
lengths, patterns, formats. Here each such rule becomes guidance to the model, and each type that
a memory does not have becomes the nearest that it has.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

#: Longest value of a rule that the guidance shows, in characters.
SHOWN_CHARACTERS = 200

#: Rules that become guidance, and its words.
_RULES: dict[str, str] = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matches {}",
    "format": "in the form {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of the media type {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} keys",
    "maxProperties": "at most {} keys",
    "propertyNames": "its keys: {}",
}
_FORMATS = {
    "date-time": "a date and time as in 2026-11-22T17:40:00Z",
    "date": "a date as in 2026-11-22",
    "time": "a time as in 17:40:00",
    "duration": "a duration as in PT1H30M",
}
_SCALARS = ("string", "integer", "number", "boolean")
#: They describe a part; without any of them it may be anything.
_SHAPES = ("type", "properties", "additionalProperties", "items", "prefixItems", "enum", "const")
_TEXT = {"type": "string"}


def loosened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema with guidance in place of rules that no memory can hold.

    A part without a nearest type, such as one of several records, stays, and is refused.
    """
    node = dict(schema)
    said: list[str] = []
    _loosen_type(node, said)
    if isinstance(node.get("enum"), list) and any(isinstance(v, float) for v in node["enum"]):
        said.append(f"one of {_shown(node.pop('enum'))}")
        node["type"] = "number"
    if node.pop("uniqueItems", False):
        said.append("each once")
    for rule, words in _RULES.items():
        if rule in node and not (rule in ("minItems", "maxItems") and "prefixItems" in node):
            value = node.pop(rule)
            said.append(_FORMATS.get(str(value)) or words.format(_shown(value)))
    for dropped in ("discriminator", "patternProperties"):
        node.pop(dropped, None)
    _loosen_parts(node)
    if said:
        guidance = f"({'; '.join(said)})"
        held = str(node.get("description") or "")
        node["description"] = f"{held}\n{guidance}" if held else guidance
    return node


def _loosen_type(node: dict[str, Any], said: list[str]) -> None:
    """Chooses the nearest type for a union of plain types, and for what may be anything."""
    for key in ("anyOf", "oneOf"):
        if isinstance(node.get(key), list):
            members = [_scalar(member) for member in node[key]]
            if None not in members and len(set(members) - {"null"}) > 1:
                del node[key]
                node["type"] = members
    if isinstance(node.get("type"), list):
        names = list(dict.fromkeys(map(str, node["type"])))
        plain = [name for name in names if name != "null"]
        if len(plain) > 1:
            numbers = set(plain) == {"integer", "number"}
            if not numbers:
                said.append(f"{' or '.join(plain)}, as a text")
            nearest = "number" if numbers else "string"
            node["type"] = [nearest, "null"] if "null" in names else nearest
    if not any(key in node for key in (*_SHAPES, "anyOf", "oneOf", "allOf", "$ref")):
        said.append("anything, as a text")
        node["type"] = "string"


def _loosen_parts(node: dict[str, Any]) -> None:
    """Loosens the parts, and makes bare lists and objects hold texts."""
    names = node.get("type")
    types = names if isinstance(names, list) else [names]
    if "object" in types and "properties" not in node:
        held = node.get("additionalProperties", True)
        node["additionalProperties"] = held if isinstance(held, Mapping) and held else _TEXT
    elif "properties" in node:
        node.pop("additionalProperties", None)
    if "array" in types and "prefixItems" not in node:
        node["items"] = node.get("items") or _TEXT
    for key in ("additionalProperties", "items"):
        _replace(node, key, Mapping, loosened)
    for key in ("properties", "$defs", "definitions"):
        _replace(node, key, Mapping, lambda parts: {k: _part(v) for k, v in parts.items()})
    for key in ("prefixItems", "anyOf", "oneOf", "allOf"):
        _replace(node, key, list, lambda parts: [_part(part) for part in parts])


def _replace(node: dict[str, Any], key: str, kind: type, make: Callable[[Any], Any]) -> None:
    if isinstance(node.get(key), kind):
        node[key] = make(node[key])


def _part(part: Any) -> Any:
    if part is True:
        part = {}
    return loosened(part) if isinstance(part, Mapping) else part


def _scalar(member: Any) -> str | None:
    """Returns the plain type, or null, of a member of a union; None for others."""
    name = member.get("type") if isinstance(member, Mapping) else None
    if name not in (*_SCALARS, "null") or "enum" in member or "const" in member:
        return None
    return str(name)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
