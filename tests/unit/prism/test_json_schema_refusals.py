import json
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.schemas.limits import MAX_FIELDS, MAX_JSON_BYTES
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, render
from service.domain.values.errors import SchemaInvalid
from service.domain.values.reasons import Reason
from service.rpc.errors import abort_arguments
from tests.support.properties import examples
from tests.unit.prism.schemas import schemas

STRING: Any = {"type": "string"}
ENDS = {"minItems": 2, "maxItems": 2}


def parse(document: Any) -> Schema:
    return parse_json_schema(json.dumps(document))


def of(part: Any, **others: Any) -> Schema:
    return parse({"title": "A", "properties": {"x": part}, **others})


def person(**others: Any) -> Any:
    return {"title": "Person", "properties": {"name": STRING}, **others}


def cannot(key: str) -> str:
    return f'"{key}" says something that a schema cannot hold'


@pytest.mark.parametrize(
    ("part", "below", "about"),
    [
        ({"type": "integer", "minimum": 0}, "", cannot("minimum")),
        ({"type": "string", "pattern": "a"}, "", cannot("pattern")),
        ({"type": "string", "format": "date-time"}, "", cannot("format")),
        ({"type": "string", "minLength": 1}, "", cannot("minLength")),
        ({"type": "array", "items": {**STRING, "maxLength": 3}}, "/items", cannot("maxLength")),
        ({"type": "array", "items": STRING, "uniqueItems": True}, "", cannot("uniqueItems")),
        ({"not": STRING}, "", cannot("not")),
        ({"type": "string", "if": {}}, "", cannot("if")),
        ({"patternProperties": {"a": STRING}}, "", cannot("patternProperties")),
        ({"$ref": "#/$defs/A", "properties": {}}, "", cannot("properties")),
        ({"anyOf": [STRING], "type": "string"}, "", cannot("type")),
        (person(additionalProperties=True), "", cannot("additionalProperties")),
        (person(additionalProperties=STRING), "", cannot("additionalProperties")),
        (person(minProperties=1), "", cannot("minProperties")),
        (
            {"additionalProperties": STRING, "propertyNames": {"pattern": "a"}},
            "",
            cannot("propertyNames"),
        ),
        ({"tpye": "string"}, "", '"tpye" is no keyword that is known'),
        ({"anyOf": [STRING, {"type": "integer"}]}, "", "joins types"),
        ({"allOf": [STRING, STRING]}, "", "joins types"),
        ({"anyOf": [{"type": "null"}]}, "", "joins types"),
        ({"anyOf": STRING}, "", "a list of schemas"),
        ({"anyOf": [STRING, {**STRING, "format": "uri"}]}, "/anyOf/1", cannot("format")),
        ({"type": ["string", "integer"]}, "", "one type"),
        ({"type": "null"}, "", "one type"),
        ({"type": "str"}, "", '"type" is one of string'),
        ({"type": [3]}, "", '"type" is one of string'),
        ({}, "", "there is no type"),
        (True, "", "say no type"),
        (None, "", "say no type"),
        ({"type": "object"}, "", "an object has"),
        ({"additionalProperties": True}, "/additionalProperties", "say no type"),
        ({"additionalProperties": {}}, "/additionalProperties", "there is no type"),
        ({"type": "array"}, "", "an array has"),
        ({"prefixItems": [STRING]}, "", '"minItems": 1, "maxItems": 1'),
        ({"prefixItems": [STRING], "items": False}, "", '"minItems": 1, "maxItems": 1'),
        ({"prefixItems": [STRING], "minItems": 1, "maxItems": 3}, "", "allows others"),
        ({"prefixItems": [], "maxItems": 0}, "", "at least 1"),
        ({"enum": ["a", 1.5]}, "", "a value of an enum is"),
        ({"enum": [["a"]]}, "", "a value of an enum is"),
        ({"enum": []}, "", "list of values"),
        ({"enum": "ab"}, "", "list of values"),
        ({"enum": [None]}, "", "can be null only"),
        ({"const": None}, "", "can be null only"),
        ({"type": "string", "enum": ["a", 1]}, "", 'not of its "type"'),
        ({"type": "string", "enum": ["a", None]}, "", 'not of its "type"'),
        ({"type": "integer", "const": True}, "", 'not of its "type"'),
        ({"enum": ["a"], "const": "b"}, "", '"const" is none of "enum"'),
        ({"enum": [1], "const": True}, "", '"const" is none of "enum"'),
        ({"enum": ["a" * 513]}, "", "512"),
        ({"enum": ["\0"]}, "", "NUL"),
        ({"type": "string", "nullable": "yes"}, "", "nullable"),
        ({"type": "string", "description": 3}, "", '"description" is a text'),
        ({"type": "string", "description": "\ud800"}, "", "surrogate"),
        ({"$ref": "#"}, "", "contains itself"),
        ({"$ref": "https://example.org/a"}, "", "https://example.org/a"),
        ({"$ref": "#/$defs/Gone"}, "", "#/$defs/Gone"),
        ({"$ref": 3}, "", "text"),
        ({"properties": {}}, "/properties", "at least one property"),
        ({"properties": {"a~/b": STRING}}, "/properties/a~0~1b", "call it a_b"),
        ({"properties": {"opening hours": STRING}}, "/properties/opening hours", "opening_hours"),
        ({"properties": {"class": STRING}}, "/properties/class", "call it class_"),
        ({"properties": {"3d": STRING}}, "/properties/3d", "call it _3d"),
        ({"properties": {"ﬁt": STRING}}, "/properties/ﬁt", "call it fit"),
        ({"properties": {"": STRING}}, "/properties/", "cannot be the name"),
        ({"properties": {"\ud800": STRING}}, "/properties/\\ud800", "cannot be the name"),
        ({"type": "string", "properties": {"a": STRING}}, "", "those of an object"),
    ],
)
def test_what_a_schema_cannot_hold_is_refused_with_its_place(
    part: Any, below: str, about: str
) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        of(part, **{"$defs": {"A": STRING}})
    assert about in refused.value.message
    assert refused.value.metadata == {"pointer": f"/properties/x{below}"}
    assert refused.value.message.startswith(f"/properties/x{below}: ")
    assert refused.value.reason == Reason.SCHEMA_INVALID
    assert refused.value.field == "prism.json_schema"


@pytest.mark.parametrize(
    ("text", "metadata", "about"),
    [
        ("", {"line": "1", "column": "1"}, "no JSON"),
        ('{\n "a": }', {"line": "2", "column": "7"}, "no JSON"),
        ("[]", {"pointer": ""}, "is an object"),
        ('{"type": "string"}', {"pointer": ""}, "object with properties"),
        ('{"nullable": true, "properties": {"x": {"type": "string"}}}', {"pointer": ""}, "object"),
        ('{"title": "A", "title": "B"}', {"pointer": ""}, '"title" stands there twice'),
        (
            '{"properties": {"x": {"type": "string"}, "x": {"type": "string"}}}',
            {"pointer": "/properties"},
            '"x" stands there twice',
        ),
        ('{"default": NaN}', {"pointer": ""}, "NaN"),
        (f'{{"default": {"9" * 5000}}}', {"pointer": ""}, "64 digits"),
        ('{"title": "\0"}', {"pointer": ""}, "NUL"),
        ('"' + "a" * MAX_JSON_BYTES + '"', {"pointer": ""}, "bytes"),
        ("[" * 100_000, {"pointer": ""}, "too deeply"),
        ('{"default": ' + "[" * 250 + "]" * 250 + "}", {"pointer": ""}, "deeper than 200"),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str, metadata: dict[str, str], about: str) -> None:
    with pytest.raises(SchemaInvalid, match=about) as refused:
        parse_json_schema(text)
    assert refused.value.metadata == metadata


def test_a_definition_cannot_contain_itself() -> None:
    with pytest.raises(SchemaInvalid, match='"B" contains itself') as refused:
        of(
            {"$ref": "#/$defs/B"},
            **{
                "$defs": {
                    "B": {"items": {"$ref": "#/$defs/C"}},
                    "C": {"properties": {"b": {"$ref": "#/$defs/B"}}},
                }
            },
        )
    assert refused.value.pointer == "/$defs/C/properties/b"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (STRING, {"prefixItems": ["R", "R"], **ENDS}),
        (STRING, {"items": "R"}),
        (STRING, {"anyOf": ["R", {"type": "null"}]}),
        (person(), {"properties": {"a": "R", "b": "R"}}),
        (person(), {"allOf": ["R"]}),
    ],
)
def test_a_short_document_cannot_stand_for_a_huge_schema(first: Any, then: Any) -> None:
    def document(levels: int) -> Any:
        definitions: Any = {"D0": first}
        for n in range(1, levels):
            reference = json.dumps({"$ref": f"#/$defs/D{n - 1}"})
            definitions[f"D{n}"] = json.loads(json.dumps(then).replace('"R"', reference))
        return {"properties": {"x": {"$ref": f"#/$defs/D{levels - 1}"}}, "$defs": definitions}

    assert parse(document(5))
    with pytest.raises(SchemaInvalid, match=r"deeper than|more than 10000"):
        parse(document(200))


def test_there_is_a_limit_to_everything() -> None:
    fields = {f"f{n}": STRING for n in range(MAX_FIELDS + 1)}
    with pytest.raises(SchemaInvalid, match=f"/f{MAX_FIELDS}: there are more than 500 fields"):
        parse({"properties": fields})
    with pytest.raises(SchemaInvalid, match="at most 512 characters"):
        of({"properties": {"a" * 513: STRING}})
    shared = {"$defs": {"S": {**STRING, "description": "d" * 50_000}}}
    parts = {f"f{n}": {"$ref": "#/$defs/S"} for n in range(3)}
    with pytest.raises(SchemaInvalid, match="descriptions up to here"):
        parse({"properties": parts, **shared})
    values = {f"f{n}": {"$ref": "#/$defs/L"} for n in range(20)}
    literals = {"$defs": {"L": {"enum": [f"{n:0400}" for n in range(20)]}}}
    with pytest.raises(SchemaInvalid, match="written out"):
        parse({"properties": values, **literals})


def test_a_refusal_can_be_sent_with_its_place() -> None:
    with pytest.raises(SchemaInvalid) as refused:
        of({"properties": {"\ud800": STRING}})
    code, message, ((_, packed),) = abort_arguments(refused.value)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("/properties/x/properties/\\ud800: ")
    info, violations = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    details = status_pb2.Status.FromString(packed).details
    assert details[0].Unpack(info)
    assert details[1].Unpack(violations)
    assert dict(info.metadata) == {"pointer": "/properties/x/properties/\\ud800"}
    assert violations.field_violations[0].field == "prism.json_schema"


def test_a_refusal_is_short_enough_to_be_sent() -> None:
    part: Any = {"type": "string", "minimum": 1}
    for _ in range(6):
        part = {"properties": {"k" * 500: part}}
    with pytest.raises(SchemaInvalid) as refused:
        of(part)
    assert refused.value.pointer == "/properties/x/properties/" + "k" * 500 + "/properties"
    with pytest.raises(SchemaInvalid) as refused:
        of({"z" * 100_000: 1})
    assert len(refused.value.message) < 1100


#: Documents that are nearly schemas: JSON of the keywords, in any order and depth.
_words = st.sampled_from(
    [
        *("title", "description", "type", "properties", "items", "prefixItems", "nullable"),
        *("additionalProperties", "anyOf", "oneOf", "allOf", "enum", "const", "$ref", "$defs"),
        *("definitions", "minItems", "maxItems", "required", "x-a", "string", "object"),
        *("array", "null", "integer", "#/$defs/A", "#/$defs/B", "#", "A", "B"),
    ]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 2) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)


def reads_or_refuses(text: str) -> None:
    try:
        schema = parse_json_schema(text)
    except SchemaInvalid as error:
        assert error.metadata.keys() in ({"pointer"}, {"line", "column"})
        error.message.encode()
    else:
        assert parse_source(render(schema)) == schema
        assert parse(to_json_schema(schema)) == schema


@given(st.text(max_size=200))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    reads_or_refuses(text)


@settings(max_examples=examples(500))
@given(_values)
def test_any_json_is_a_schema_or_refused(value: Any) -> None:
    reads_or_refuses(json.dumps(value))


@given(schemas(), st.data())
def test_any_change_to_a_schema_is_a_schema_or_refused(schema: Schema, data: st.DataObject) -> None:
    document: Any = to_json_schema(schema)
    here: Any = document
    while isinstance(here, dict | list) and here:
        key = data.draw(st.sampled_from(list(here) if isinstance(here, dict) else range(len(here))))
        if not isinstance(here[key], dict | list) or data.draw(st.booleans()):
            here[key] = data.draw(_values)
            break
        here = here[key]
    reads_or_refuses(json.dumps(document))
