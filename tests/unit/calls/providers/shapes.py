"""Schemas that one provider or another does not take."""

from typing import Any

from tests.providers.exchange import Json

#: The form of amendments that every provider takes (the design's page of providers, 1).
CANONICAL: Json = {
    "type": "object",
    "properties": {
        "changes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "op": {"type": "string", "enum": ["add", "update", "remove"]},
                    "path": {"type": "string"},
                    "value": {"type": "string"},
                },
                "required": ["op", "path", "value"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["changes"],
    "additionalProperties": False,
}
FREE: Json = {
    "type": "object",
    "properties": {"facts": {"type": "object", "additionalProperties": {"type": "string"}}},
    "required": ["facts"],
    "additionalProperties": False,
}
RECURSIVE: Json = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}},
    "required": ["node"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}


def flat(properties: Json, required: list[str] | None = None) -> Json:
    """Returns an object of these properties, all of them required unless said otherwise."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def one(kind: str, **more: Any) -> Json:
    return flat({"x": {"type": kind, **more}})


def nested(levels: int) -> Json:
    inner: Json = flat({"x": {"type": "string"}})
    for _ in range(levels - 1):
        inner = flat({"x": inner})
    return inner


def unions(count: int) -> Json:
    return flat({f"x{at}": {"type": ["string", "null"]} for at in range(count)})


def optional(count: int) -> Json:
    return flat({f"x{at}": {"type": "string"} for at in range(count)}, [])
