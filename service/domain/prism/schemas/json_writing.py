"""A schema written down as JSON Schema."""

from service.domain.prism.schemas.tree import (
    DictType,
    ListType,
    LiteralType,
    OptionalType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    Type,
)
from service.domain.values.json_values import Json

#: Types by their names in JSON Schema.
SCALARS: dict[str, Type] = {
    "string": Scalar.STR,
    "integer": Scalar.INT,
    "number": Scalar.FLOAT,
    "boolean": Scalar.BOOL,
}


def to_json_schema(schema: Schema) -> dict[str, Json]:
    """Returns the schema as JSON Schema 2020-12; `parse_json_schema` reads the same from it.

    Nothing is required, for a memory may not have all of its parts yet.
    """
    definitions: dict[str, Json] = {}
    root = _written_record(schema.root, definitions)
    document: dict[str, Json] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **root}
    if definitions:
        document["$defs"] = definitions
    return document


def _written_record(record: RecordType, definitions: dict[str, Json]) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    for field in record.fields:
        described = _described(field.doc)
        properties[field.name] = {**_written(field.type, definitions), **described}
    return {
        "title": record.name,
        **_described(record.doc),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _described(doc: str) -> dict[str, Json]:
    return {"description": doc} if doc else {}


def _written(of: Type, definitions: dict[str, Json]) -> dict[str, Json]:
    match of:
        case LiteralType():
            return {"enum": list(of.values)}
        case OptionalType():
            return {"anyOf": [_written(of.inner, definitions), {"type": "null"}]}
        case ListType():
            return {"type": "array", "items": _written(of.item, definitions)}
        case DictType():
            return {"type": "object", "additionalProperties": _written(of.value, definitions)}
        case TupleType():
            items: list[Json] = [_written(item, definitions) for item in of.items]
            length = len(items)
            ends: dict[str, Json] = {"minItems": length, "maxItems": length}
            return {"type": "array", "prefixItems": items, **ends}
        case RecordType():
            if of.name not in definitions:
                definitions[of.name] = _written_record(of, definitions)
            return {"$ref": f"#/$defs/{of.name}"}
    return {"type": next(name for name, scalar in SCALARS.items() if scalar == of)}
