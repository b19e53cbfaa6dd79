import json
from typing import Any

import pytest
from hypothesis import given

from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.schemas.names import _same
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import (
    DictType,
    Field,
    ListType,
    LiteralType,
    OptionalType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    Type,
    fit,
    render,
)
from tests.unit.prism.schemas import schemas

STRING: Any = {"type": "string"}


def parse(document: Any) -> Schema:
    return parse_json_schema(json.dumps(document))


def of(part: Any, **others: Any) -> Schema:
    return parse({"title": "A", "properties": {"x": part}, **others})


def type_of(part: Any, **others: Any) -> Type:
    return of(part, **others).root.fields[0].type


def person(**others: Any) -> Any:
    return {"title": "Person", "properties": {"name": STRING}, **others}


@given(schemas())
def test_a_schema_survives_being_written_as_json(schema: Schema) -> None:
    text = json.dumps(to_json_schema(schema))
    assert parse_json_schema(text) == schema
    assert render(parse_json_schema(text)) == render(schema)


@given(schemas())
def test_what_is_written_is_json_schema(schema: Schema) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    document = to_json_schema(schema)
    validator.check_schema(document)
    validator(document).validate({})
    value: Any = _example(schema.root)
    validator(document).validate(value)
    assert fit(schema.root, value) == value


def _example(of: Type) -> Any:
    match of:
        case Scalar.STR:
            return "a"
        case Scalar.INT:
            return 3
        case Scalar.FLOAT:
            return 1.5
        case Scalar.BOOL:
            return True
        case LiteralType():
            return of.values[-1]
        case OptionalType():
            return _example(of.inner)
        case ListType():
            return [_example(of.item)] * 2
        case DictType():
            return {"some key": _example(of.value)}
        case TupleType():
            return [_example(item) for item in of.items]
        case RecordType():
            return {field.name: _example(field.type) for field in of.fields}


PAIR = TupleType(items=(Scalar.STR, Scalar.INT))
ENDS = {"minItems": 2, "maxItems": 2}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (STRING, Scalar.STR),
        ({"type": ["integer"]}, Scalar.INT),
        ({"type": "number", "title": "N", "default": 1.5, "examples": [2]}, Scalar.FLOAT),
        ({"type": "boolean", "$comment": "c", "x-order": 3, "deprecated": True}, Scalar.BOOL),
        ({"type": ["string", "null"]}, OptionalType(inner=Scalar.STR)),
        ({"type": "string", "nullable": True}, OptionalType(inner=Scalar.STR)),
        ({"type": "string", "nullable": False}, Scalar.STR),
        ({"type": "string", "minLength": 0}, Scalar.STR),
        ({"type": "array", "items": STRING}, ListType(item=Scalar.STR)),
        ({"items": STRING, "minItems": 0, "uniqueItems": False}, ListType(item=Scalar.STR)),
        ({"additionalProperties": STRING}, DictType(value=Scalar.STR)),
        (
            {"type": "object", "additionalProperties": STRING, "propertyNames": STRING},
            DictType(value=Scalar.STR),
        ),
        ({"prefixItems": [STRING, {"type": "integer"}], **ENDS}, PAIR),
        ({"prefixItems": [STRING, {"type": "integer"}], "items": False, **ENDS}, PAIR),
        (
            {"items": [STRING, {"type": "integer"}], "additionalItems": False, "minItems": 2},
            PAIR,
        ),
        ({"enum": ["a", 1, True, "a"]}, LiteralType(values=("a", 1, True))),
        ({"enum": ["a", None]}, OptionalType(inner=LiteralType(values=("a",)))),
        ({"type": ["string", "null"], "enum": ["a"]}, LiteralType(values=("a",))),
        ({"type": "string", "enum": ["a"], "const": "a"}, LiteralType(values=("a",))),
        ({"const": False}, LiteralType(values=(False,))),
        (
            {"type": "string", "enum": ["a", None], "nullable": True},
            OptionalType(inner=LiteralType(values=("a",))),
        ),
        ({"anyOf": [STRING, {"type": "null"}]}, OptionalType(inner=Scalar.STR)),
        ({"oneOf": [{"const": None}, STRING]}, OptionalType(inner=Scalar.STR)),
        (
            {"anyOf": [{"type": ["string", "null"]}, {"type": "null"}]},
            OptionalType(inner=Scalar.STR),
        ),
        ({"oneOf": [STRING]}, Scalar.STR),
        ({"allOf": [STRING], "default": "x"}, Scalar.STR),
        (
            {"oneOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}]},
            OptionalType(inner=LiteralType(values=("a", "b"))),
        ),
    ],
)
def test_types_are_read(part: Any, expected: Type) -> None:
    assert repr(type_of(part)) == repr(expected)


def test_references_lead_to_definitions() -> None:
    expected = parse_source("class A:\n  class Person:\n    name: str\n  x: list[Person]\n")
    people = {"items": {"$ref": "#/$defs/Person"}}
    assert of(people, **{"$defs": {"Person": person()}}) == expected
    old = {"items": {"allOf": [{"$ref": "#/definitions/Person"}]}}
    assert of(old, definitions={"Person": person()}) == expected


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        ("#/$defs/a~1b~0c", "a/b~c"),
        ("#/$defs/My%20Type", "My Type"),
        ("#/$defs/Box[int]", "Box[int]"),
    ],
)
def test_references_may_be_escaped(reference: str, key: str) -> None:
    assert type_of({"$ref": reference}, **{"$defs": {key: STRING}}) == Scalar.STR


def test_a_root_that_is_a_reference_keeps_all_guidance() -> None:
    document = {
        "$ref": "#/$defs/Person",
        "description": "Whoever is named.",
        "$defs": {"Person": person(description="Somebody.")},
    }
    assert parse(document).root.doc == "Somebody.\nWhoever is named."
    assert parse(document).root.name == "Person"


def test_guidance_goes_to_the_record_or_to_the_field() -> None:
    schema = of(
        {
            "description": " All of\r\n\tthem. ",
            "items": {"allOf": [{"$ref": "#/$defs/Kind"}], "description": "One."},
        },
        description="The whole.",
        **{"$defs": {"Kind": {"enum": ["a"], "description": "A kind."}}},
    )
    assert schema.root.doc == "The whole."
    assert schema.root.fields[0].doc == "All of\n        them.\nOne.\nA kind."
    record = type_of(person(description="Somebody."))
    assert isinstance(record, RecordType)
    assert record.doc == "Somebody."


def names(schema: Schema) -> list[str]:
    return [line.split()[1].rstrip(":") for line in render(schema).split("\n") if "class " in line]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        # From the title, else the definition, else the property, else none.
        ({"title": "Opening hours!", "properties": {"x": STRING}}, ["OpeningHours"]),
        ({"properties": {"x": STRING}}, ["Memory"]),
        ({"title": "class", "properties": {"x": STRING}}, ["Class"]),
        ({"title": "3D", "properties": {"x": STRING}}, ["_3D"]),
        ({"title": "int", "properties": {"x": STRING}}, ["Memory"]),
        (
            {"$ref": "#/$defs/my.Type-2", "$defs": {"my.Type-2": {"properties": {"x": STRING}}}},
            ["MyType2"],
        ),
        (
            {"title": "A", "properties": {"old_people": {"items": {"properties": {"x": STRING}}}}},
            ["A", "OldPeople"],
        ),
        ({"title": "A", "properties": {"_": {"properties": {"x": STRING}}}}, ["A", "Record"]),
        # Names that are written in the schema go first, the memory's before all.
        (
            {
                "title": "A",
                "properties": {
                    "person": {"properties": {"x": STRING}},
                    "a": {"properties": {"x": STRING}},
                    "b": {"$ref": "#/$defs/Person"},
                },
                "$defs": {"Person": {"properties": {"y": STRING}}},
            },
            ["A", "Person2", "A2", "Person"],
        ),
        # The same record twice is one; others get a number.
        (
            {
                "title": "A",
                "properties": {
                    "a": person(),
                    "b": {"items": person()},
                    "c": person(properties={"age": STRING}),
                },
            },
            ["A", "Person", "Person2"],
        ),
        # Two models of one name, as pydantic distinguishes them.
        (
            {
                "title": "A",
                "properties": {"a": {"$ref": "#/$defs/m__P"}, "b": {"$ref": "#/$defs/n__P"}},
                "$defs": {
                    "m__P": {"title": "P", "properties": {"x": {"const": 1}}},
                    "n__P": {"title": "P", "properties": {"x": {"const": True}}},
                },
            },
            ["A", "P", "n__P"],
        ),
    ],
)
def test_records_get_names(document: Any, expected: list[str]) -> None:
    schema = parse(document)
    assert names(schema) == expected
    assert parse_source(render(schema)) == schema


def test_what_is_read_can_be_shown_and_read() -> None:
    deep: Any = STRING
    for _ in range(15):
        deep = {"type": ["array", "null"], "items": deep}
    schema = of(deep)
    assert parse_source(render(schema)) == schema
    assert parse(to_json_schema(schema)) == schema


def test_a_value_and_records_within_records_are_compared_by_their_types() -> None:
    # Written out, the records would have 2 ** 40 parts.
    record = RecordType(name="R", fields=(Field(name="x", type=Scalar.STR),))
    for _ in range(40):
        parts = (Field(name="a", type=record), Field(name="b", type=record))
        record = RecordType(name="R", fields=parts)
    literal = LiteralType(values=("a",))
    assert not _same(literal, record)
    assert not _same(literal, OptionalType(inner=record))
    assert not _same(Scalar.STR, record)
    assert not _same(LiteralType(values=(True,)), LiteralType(values=(1,)))
    assert _same(literal, LiteralType(values=("a",)))
