"""The offline model puts an answer's words into the places of a schema."""

import json
from typing import Any

import pytest

from service.domain.answers.shaping import ShapeContent, shape
from service.domain.prompting.tokens import estimate_tokens
from service.llm.offline.model import complete
from service.usecases.answers.response_forms import checker

TOWN = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "count": {"type": "integer"},
        "is_open": {"type": "boolean"},
        "colour": {"enum": ["blue", "red"]},
        "note": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["answer", "colour"],
    "additionalProperties": False,
}


def shaped(answer: str, schema: Any) -> Any:
    content = ShapeContent(query="?", answer=answer, excerpts=(), schema=schema)
    (ask,) = next(
        shape(
            content,
            check=checker(schema),
            marker_key=b"key",
            window_tokens=32_768,
            count=estimate_tokens,
        )
    )
    return json.loads(complete(ask))


@pytest.mark.parametrize(
    ("answer", "schema", "value"),
    [
        ("Box 7.", {"type": "string"}, "Box 7."),
        ("About 1,250 boxes.", {"type": "integer"}, 1250),
        ("It weighs 2.5 pounds.", {"type": "number"}, 2.5),
        ("Yes, it is.", {"type": "boolean"}, True),
        ("It isn't there.", {"type": "boolean"}, False),
        ("The red one.", {"enum": ["blue", "red", "green"]}, "red"),
        (
            "Ann, Ben and Cid.",
            {"type": "array", "items": {"type": "string"}},
            ["Ann", "Ben", "Cid"],
        ),
        ("1, 2 and 3", {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [1, 2]),
        ("Ann.", {"const": 4}, 4),
        ("Ann", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "string"}}}, "Ann"),
        ("nothing to count", {"type": ["integer", "null"]}, None),
    ],
)
def test_what_it_takes_from_an_answer(answer: str, schema: Any, value: Any) -> None:
    assert shaped(answer, schema) == value
    assert checker(schema)(value) == ""


def test_an_object_is_filled_field_by_field() -> None:
    value = shaped("The gate is red and has 7 bars.", TOWN)
    assert value == {
        "answer": "The gate is red and has 7 bars.",
        "count": 7,
        "is_open": True,
        "colour": "red",
        "note": 7,
    }
    assert checker(TOWN)(value) == ""


def test_what_it_does_not_find_it_does_not_make_up() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert shaped("Many.", schema) == {}
    needed = {**schema, "required": ["n"]}
    assert shaped("Many.", needed) == {"n": None}
    assert checker(needed)({"n": None}) != ""


def test_a_schema_that_holds_itself_ends() -> None:
    node: Any = {"type": "object", "properties": {"in": {"$ref": "#"}, "text": {"type": "string"}}}
    assert checker(node)(shaped("Ann.", node)) == ""
