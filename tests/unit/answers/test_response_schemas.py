"""Which response schemas are accepted, and how values are checked against them."""

import json
import time
from typing import Any

import pytest

from service.domain.answers.response_schemas import DIALECTS, check_pattern
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.usecases.answers import response_forms
from service.usecases.answers.response_forms import checker
from service.usecases.answers.shaping import check_response_schema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        PERSON,
        TREE,
        {"$schema": "http://json-schema.org/draft-07/schema#", "enum": [1, "two", None]},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"const": {"$ref": "https://example.com/data", "$anchor": "data"}},
        {"properties": {"a/b": {"type": "integer"}}, "items": {"$ref": "#/properties/a~1b"}},
    ],
)
def test_schemas_that_are_taken(schema: Any) -> None:
    assert check_response_schema(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[]", "no JSON object"),
        ("true", "no JSON object"),
        ('{"minimum": NaN}', "NaN"),
        ('{"const": "\\u0000"}', "NUL"),
        ('{"type": "strng"}', "no JSON Schema"),
        ('{"required": "name"}', "no JSON Schema"),
        ('{"$schema": "https://example.com/mine"}', "dialects"),
        ('{"$schema": 7}', "dialects"),
        ('{"$ref": "https://example.com/schema"}', "does not refer to a part"),
        ('{"items": {"$ref": "other.json#/x"}}', "/items: $ref"),
        ('{"$ref": "#name"}', "does not refer to a part"),
        ('{"$ref": "#/$defs/none"}', "refers to nothing"),
        ('{"$ref": "#/required", "required": []}', "refers to no schema"),
        ('{"$ref": "#/x", "x": {"$ref": "http://example.com"}}', "refers to no schema"),
        ('{"patternProperties": {"(a+)+$": {}}}', "patternProperties is not taken"),
        ('{"items": {"$id": "https://example.com/x"}}', "$id is taken at the top"),
        ('{"items": {"$schema": "' + DIALECTS[0] + '"}}', "$schema is taken at the top"),
        ('{"$dynamicRef": "#x"}', "$dynamicRef is not taken"),
        ('{"pattern": "("}', "'(' is not a 'regex'"),
        ('{"pattern": "' + "a" * 501 + '"}', "more than 500 characters"),
        ('{"items": ' * 40 + "{}" + "}" * 40, "nested deeper"),
        ('{"description": "' + "a" * 16384 + '"}', "more than 16384 bytes"),
    ],
)
def test_schemas_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match="response_schema: ") as refused:
        check_response_schema(text)
    assert said in refused.value.message
    assert (refused.value.reason, refused.value.field) == (Reason.FIELD_INVALID, "response_schema")


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        (PERSON, {"name": "Ada", "age": 36}, ""),
        (PERSON, {"age": 36}, "'name' is a required property"),
        (PERSON, {"name": "Ada", "age": "36"}, "at /age: '36' is not of type 'integer'"),
        (TREE, {"parts": [{"parts": []}]}, ""),
        (TREE, {"parts": [{"parts": 1}]}, "at /parts/0/parts: 1 is not of type 'array'"),
        ({"pattern": "^a+$"}, "aaa", ""),
        ({"pattern": "^a+$"}, "aab", "'aab' does not match '^a+$'"),
    ],
)
def test_values_against_schemas(schema: Any, value: Any, fault: str) -> None:
    assert checker(schema)(value) == fault


def test_a_schema_that_doubles_with_each_level_is_given_up() -> None:
    inner = {"$ref": "#/$defs/in"}
    twice: dict[str, Any] = {"allOf": [inner, inner]}
    schema = {"$defs": {"in": {"type": "object", "properties": {"a": twice}}}, **twice}
    assert check_response_schema(json.dumps(schema)) == schema
    value: Any = {}
    for _ in range(15):
        value = {"a": value}
    assert "too many steps" in checker(schema)(value)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"items": {}}, {"$ref": "#"}]}])
def test_a_schema_that_refers_to_itself_without_end_fits_no_value(schema: Any) -> None:
    check_response_schema(json.dumps(schema))
    assert checker(schema)(1) == "it is nested too deeply"


def test_a_part_that_was_held_against_a_value_before_still_counts() -> None:
    number = {"$ref": "#/$defs/number"}
    defs = {"$defs": {"number": {"type": "number"}}}
    one = checker({**defs, "oneOf": [number, {"allOf": [number]}]})
    assert "is not valid under any" in one("x")
    assert "is valid under each of" in one(1)
    assert checker({**defs, "anyOf": [{"not": number}, number]})(1) == ""
    neither = checker({**defs, "properties": {"a": number, "b": {"not": number}}})
    assert neither({"a": 1, "b": 1}).startswith("at /b: 1 should not be valid under")
    assert neither({"a": "x", "b": "x"}) == "at /a: 'x' is not of type 'number'"


def test_a_schema_that_asks_much_of_each_of_many_values_is_given_up() -> None:
    schema = {"items": {"allOf": [{"type": "integer"}] * 10}}
    assert check_response_schema(json.dumps(schema)) == schema
    assert checker(schema)([1] * 900) == ""
    assert "too many steps" in checker(schema)([1] * 9000)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_looking_for_what_was_evaluated_is_bounded(dialect: str) -> None:
    parts: dict[str, Any] = {"a15": {}}
    for n in range(15):
        inner = {"$ref": f"#/$defs/a{n + 1}"}
        parts[f"a{n}"] = {**inner, "dependentSchemas": {"x": inner}}
    whole = {"unevaluatedProperties": False, "$ref": "#/$defs/a0", "$schema": dialect}
    schema = check_response_schema(json.dumps({**whole, "$defs": parts}))
    assert "too many steps" in checker(schema)({"x": 1})


def test_a_pattern_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_forms, "PATTERN_SECONDS", 0.01)
    schema = check_response_schema('{"type": "string", "pattern": "^(a|aa|b?a)+$"}')
    assert "takes too long" in checker(schema)("a" * 5000 + "!")


def test_a_pattern_that_would_not_fit_into_memory_is_refused() -> None:
    for pattern in ("(((a{99}){99}){99}){99}", "a{,99999}", "(?:(?:a|b){99}|c){200}"):
        with pytest.raises(InvalidInput, match="more than 10,000 parts"):
            check_response_schema(json.dumps({"pattern": pattern}))
    for pattern in ("(a{99}){99}", r"^\d{1,999}-\d{1,999}$", "[{99}(]{3}", r"\{99999}", "[]a(]{9}"):
        assert check_response_schema(json.dumps({"pattern": pattern})) == {"pattern": pattern}


def test_a_pattern_of_blanks_is_counted_at_once() -> None:
    began = time.process_time()
    for pattern in ("{" + " " * 30_000 + "!", "{1," + " " * 30_000 + "x"):
        with pytest.raises(ValueError, match="more than 10,000 parts"):
            check_pattern(pattern)
    assert time.process_time() - began < 5, "17 s when blanks were looked through from each"
    check_pattern("a{ 1 , 10 }")
    with pytest.raises(InvalidInput, match="more than 10,000 parts"):
        check_response_schema(json.dumps({"pattern": "a{ 1 , 10001 }"}))


def test_items_that_cannot_be_sorted_are_compared_at_once() -> None:
    fault = checker({"uniqueItems": True})
    assert fault([{"a": number} for number in range(5000)]) == ""
    assert "non-unique" in fault([{"a": 1, "b": [2]}, {"b": [2], "a": 1}])
    assert fault([1, True, "1", [1], {"1": 1}, 0, False, None]) == ""


def test_faults_that_repeat_a_large_value_count_as_many_steps() -> None:
    parts = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(12)}
    schema = {"$ref": "#/$defs/a0", "$defs": parts | {"a12": {"type": "null"}}}
    assert "too many steps" in checker(schema)(["x" * 20] * 9000)


def test_all_strings_of_a_value_share_the_time_of_its_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_forms, "PATTERN_SECONDS", 0.0001)
    fault = checker({"items": {"pattern": "^x+$"}})
    assert "takes too long" in fault(["x" * 20] * 5000)


def test_a_machine_that_stands_still_takes_no_time_from_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = response_forms._compiled

    def late(pattern: str) -> Any:
        time.sleep(response_forms.PATTERN_SECONDS * 1.2)
        return compiled(pattern)

    monkeypatch.setattr(response_forms, "_compiled", late)
    assert checker({"items": {"pattern": "^x+$"}})(["x", "xx"]) == ""
