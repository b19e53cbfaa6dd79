"""Structured output: the JSON Schema of a reply, for models that keep to one.

The reply is one object with a list for each op: `update` and `add` hold objects with a
path and a value, `remove` holds paths. The schema says which values the memory's types
allow anywhere, not which belongs at which path: that is judged when the reply is read.
"""

from functools import lru_cache
from typing import Any

from service.domain.json_values import canonical
from service.domain.prism.rules import Rules
from service.domain.schemas.tree import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    OptionalType,
    RecordType,
    Schema,
    StrType,
    TupleType,
    Type,
)

#: A reply's schema as canonical JSON, in bytes; past it a value may be anything.
MAX_REPLY_SCHEMA_BYTES = 16 * 1024
#: Types of a memory that are told apart; past them a value may be anything.
MAX_VALUE_TYPES = 100

_JsonSchema = dict[str, Any]
_KINDS: dict[type, str] = {
    StrType: "string",
    IntType: "integer",
    FloatType: "number",
    BoolType: "boolean",
}


@lru_cache(maxsize=64)
def reply_schema(schema: Schema, rules: Rules, *, may_add: bool = True) -> _JsonSchema:
    """The JSON Schema of a reply for a memory of this schema.

    The same object for the same schema and rules: not to be changed. Without `may_add`
    it is that of a consolidation.
    """
    found = _values(schema)
    reply = _reply(found[0], rules, may_add) if found else None
    if found and reply is not None and found[1]:
        reply["$defs"] = found[1]
    if reply is None or len(canonical(reply).encode()) > MAX_REPLY_SCHEMA_BYTES:
        return _reply({}, rules, may_add)
    return reply


def _reply(value: _JsonSchema, rules: Rules, may_add: bool) -> _JsonSchema:
    change = _object({"path": {"type": "string"}, "value": value}, required=["path", "value"])
    lists: dict[str, _JsonSchema] = {}
    if not rules.add_only or not may_add:
        lists["update"] = {"type": "array", "items": change}
    if may_add:
        lists["add"] = {"type": "array", "items": change}
    if rules.may_remove or not may_add:
        lists["remove"] = {"type": "array", "items": {"type": "string"}}
    return _object(lists, required=list(lists))


def _object(properties: dict[str, _JsonSchema], *, required: list[str]) -> _JsonSchema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _values(schema: Schema) -> tuple[_JsonSchema, dict[str, _JsonSchema]] | None:
    """The values that can be at some path, and the records among them by name.

    None when there are too many to tell them apart.
    """
    types: dict[Type, None] = {}
    records: dict[RecordType, str] = {}
    pending: list[Type] = [field.type for field in reversed(schema.root.fields)]
    while pending:
        of = pending.pop()
        if isinstance(of, OptionalType):
            of = of.inner
        if of in types:
            continue
        types[of] = None
        if len(types) > MAX_VALUE_TYPES:
            return None
        if isinstance(of, RecordType):
            records[of] = f"{of.name}{len(records) + 1}"
        pending += reversed(_parts(of))
    values = [_json_schema(of, records) for of in types]
    options = list({canonical(one): one for one in values}.values())
    value = options[0] if len(options) == 1 else {"anyOf": options}
    return value, {name: _record(of, records) for of, name in records.items()}


def _parts(of: Type) -> list[Type]:
    """The types of what is directly below a value of the type."""
    match of:
        case OptionalType():
            return [of.inner]
        case ListType():
            return [of.item]
        case DictType():
            return [of.value]
        case TupleType():
            return list(of.items)
        case RecordType():
            return [field.type for field in of.fields]
    return []


def _json_schema(of: Type, records: dict[RecordType, str]) -> _JsonSchema:
    match of:
        case OptionalType():
            return _json_schema(of.inner, records)
        case StrType() | IntType() | FloatType() | BoolType():
            # Null is what is not known yet.
            return {"type": [_KINDS[type(of)], "null"]}
        case LiteralType():
            return {"enum": [*of.values, None]}
        case ListType():
            return {"type": "array", "items": _json_schema(of.item, records)}
        case DictType():
            below = _json_schema(of.value, records)
            return {"type": "object", "additionalProperties": below}
        case TupleType():
            items = [_json_schema(item, records) for item in of.items]
            options = list({canonical(one): one for one in items}.values())
            any_item = options[0] if len(options) == 1 else {"anyOf": options}
            count = len(of.items)
            return {"type": "array", "items": any_item, "minItems": count, "maxItems": count}
        case RecordType():
            return {"$ref": f"#/$defs/{records[of]}"}


def _record(of: RecordType, records: dict[RecordType, str]) -> _JsonSchema:
    parts = {field.name: _json_schema(field.type, records) for field in of.fields}
    return {"type": "object", "properties": parts, "additionalProperties": False}
