"""The JSON Schema of a reply: small, the same each time, and what replies are read by."""

import json
from typing import Any

import pytest

from service.domain.json_values import canonical
from service.domain.prism.revisions import parse_reply
from service.domain.prism.rules import Rules
from service.domain.prism.structured import MAX_REPLY_SCHEMA_BYTES, reply_schema
from service.domain.schemas.source import parse_source

SCHEMA = parse_source(
    """
class M:
    class P:
        name: str
        age: int | None
    people: dict[str, P]
    pairs: dict[str, tuple[str, int]]
    same: tuple[str, str]
    kind: Literal["open", "closed", 3]
    more: list[P]
    count: int
"""
)


def value_of(schema: dict[str, Any]) -> Any:
    return schema["properties"]["add"]["items"]["properties"]["value"]


def test_it_has_a_list_for_each_op_that_the_rules_allow() -> None:
    def lists(**rules: bool) -> list[str]:
        made = reply_schema(SCHEMA, Rules(**rules))
        assert made["required"] == list(made["properties"])
        assert made["additionalProperties"] is False
        return list(made["properties"])

    assert lists() == ["update", "add"]
    assert lists(add_only=True) == ["add"]
    assert lists(may_remove=True) == ["update", "add", "remove"]
    assert lists(add_only=True, may_remove=True) == ["add", "remove"]
    tidied = reply_schema(SCHEMA, Rules(add_only=True), may_add=False)
    assert list(tidied["properties"]) == ["update", "remove"]
    assert tidied["properties"]["remove"]["items"] == {"type": "string"}


def test_values_are_those_of_the_types_that_occur() -> None:
    made = reply_schema(SCHEMA, Rules())
    text, whole = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
    person = {"$ref": "#/$defs/P1"}
    assert value_of(made)["anyOf"] == [
        {"type": "object", "additionalProperties": person},
        person,
        text,
        whole,
        {
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "items": {"anyOf": [text, whole]},
                "minItems": 2,
                "maxItems": 2,
            },
        },
        {"type": "array", "items": {"anyOf": [text, whole]}, "minItems": 2, "maxItems": 2},
        {"type": "array", "items": text, "minItems": 2, "maxItems": 2},
        {"enum": ["open", "closed", 3, None]},
        {"type": "array", "items": person},
    ]
    assert made["$defs"] == {
        "P1": {
            "type": "object",
            "properties": {"name": text, "age": whole},
            "additionalProperties": False,
        }
    }


def test_it_is_the_same_for_the_same_schema() -> None:
    source = "class A:\n    b: dict[str, list[int]]\n    c: str\n"
    one, other = parse_source(source), parse_source(source)
    reply_schema.cache_clear()
    first = canonical(reply_schema(one, Rules()))
    reply_schema.cache_clear()
    assert canonical(reply_schema(other, Rules())) == first


def test_a_tree_that_is_too_large_leaves_values_open() -> None:
    many = "class A:\n" + "".join(
        f"    f{n}: dict[str, tuple[{', '.join(['int'] * n)}]]\n" for n in range(1, 120)
    )
    wide = "class A:\n    class R:\n" + "".join(
        f"        a_rather_long_name_of_a_field_number_{n}: str\n" for n in range(400)
    )
    for source in (many, wide + "    rows: list[R]\n"):
        made = reply_schema(parse_source(source), Rules())
        assert value_of(made) == {}
        assert "$defs" not in made
        assert len(canonical(made)) < MAX_REPLY_SCHEMA_BYTES


@pytest.mark.parametrize("fence", ["%s", "```json\n%s\n```"])
def test_a_reply_by_the_schema_becomes_amendments(fence: str) -> None:
    reply = {
        "update": [{"path": "$.'count'", "value": 2}],
        "add": [
            {"path": "$.'people'.'Ada'", "value": {"name": "Ada", "age": None}},
            {"path": "$.'pairs'.'p'", "value": ["one", 1]},
        ],
        "remove": ["$.'kind'"],
    }
    held: Any = {"count": 1, "kind": 3}
    revision = parse_reply(fence % json.dumps(reply), SCHEMA, held, Rules(may_remove=True))
    assert revision.rejections == ()
    assert [(one.op.value, str(one.path), one.value) for one in revision.amendments] == [
        ("update", "$['count']", 2),
        ("add", "$['people']['Ada']", {"name": "Ada", "age": None}),
        ("add", "$['pairs']['p']", ["one", 1]),
        ("remove", "$['kind']", None),
    ]
