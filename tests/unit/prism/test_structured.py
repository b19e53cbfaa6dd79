"""The schema of a revision: one for all memories, in what every provider takes, and read back."""

import json
from typing import Any

import pytest

from service.domain.prism.amendments import Rules
from service.domain.prism.replies import REPLY_SCHEMA
from service.domain.prism.revisions import parse_reply
from service.domain.prism.schemas.source import parse_source
from service.domain.prompting.asking import Unusable

SCHEMA = parse_source(
    """
class M:
    class P:
        name: str
        age: int | None
    people: dict[str, P]
    pairs: dict[str, tuple[str, int]]
    kind: Literal["open", "closed", 3]
    note: str
    maybe: str | None
    count: int
    share: float
    is_open: bool
    tags: list[str]
"""
)
HELD: Any = {"count": 1, "kind": 3, "note": "a", "tags": ["x"]}
_PLAIN = {"type", "properties", "required", "additionalProperties", "items", "enum"}


def _nodes(schema: dict[str, Any]) -> list[dict[str, Any]]:
    below = [*schema.get("properties", {}).values()]
    below += [schema["items"]] if "items" in schema else []
    return [schema, *(node for one in below for node in _nodes(one))]


def test_it_is_in_the_subset_that_every_provider_takes() -> None:
    for node in _nodes(REPLY_SCHEMA):
        assert set(node) <= _PLAIN
        assert node["type"] in ("object", "array", "string")
        if node["type"] == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])


def change(op: str, path: str, value: Any = "") -> dict[str, Any]:
    return {"op": op, "path": path, "value": value}


def read(*changes: Any, may_remove: bool = True) -> tuple[list[tuple[str, str, Any]], list[str]]:
    revision = parse_reply(
        json.dumps({"changes": changes}), SCHEMA, HELD, Rules(may_remove=may_remove)
    )
    made = [(one.op.value, str(one.path), one.value) for one in revision.amendments]
    return made, [one.reason for one in revision.rejections]


@pytest.mark.parametrize(
    "around", ["%s", "```json\n%s\n```", "<think>\n{}\n</think>\n%s", "So: %s"]
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_reply_by_the_schema_becomes_amendments(around: str, indent: int | None) -> None:
    reply = {
        "changes": [
            change("update", "$.'count'", "2"),
            change("remove", "$.'kind'"),
            change("add", "$.'people'.'Ada'", '{"name": "Ada", "age": null}'),
            change("add", "$.'pairs'.'p'", '["one", 1]'),
            change("add", "$.'tags'[1]", "y"),
        ]
    }
    text = around % json.dumps(reply, indent=indent)
    revision = parse_reply(text, SCHEMA, HELD, Rules(may_remove=True))
    assert revision.rejections == ()
    assert [(one.op.value, str(one.path), one.value) for one in revision.amendments] == [
        ("update", "$['count']", 2),
        ("add", "$['people']['Ada']", {"name": "Ada", "age": None}),
        ("add", "$['pairs']['p']", ["one", 1]),
        ("add", "$['tags'][1]", "y"),
        ("remove", "$['kind']", None),
    ]


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("note", "plain text", "plain text"),
        ("note", '"in quotes"', "in quotes"),
        ("note", '"Yes," she said.', '"Yes," she said.'),
        ("note", "42", "42"),
        ("note", '["x"]', '["x"]'),
        ("note", "\u00e4\n", "\u00e4\n"),
        ("maybe", "nine", "nine"),
        ("maybe", '"nine"', "nine"),
        ("count", "7", 7),
        ("count", 7, 7),
        ("share", "0.5", 0.5),
        ("is_open", "true", True),
        ("is_open", "True", True),
        ("kind", "open", "open"),
        ("kind", '"closed"', "closed"),
        ("tags", '["a", "b",]', ["a", "b"]),
        ("tags", ["a"], ["a"]),
        ("people.Ada", "{'name': 'Ada', 'age': 3}", {"name": "Ada", "age": 3}),
        ("share", "????", "????"),
    ],
)
def test_a_value_is_what_its_text_says_at_its_place(path: str, value: Any, meant: Any) -> None:
    made, rejected = read(change("add", f"$.{path}", value))
    assert rejected == []
    assert [one[2] for one in made] == [meant]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tags", "not a list"),
        ("count", "three"),
        ("count", "3 or 4"),
        ("people.Ada", '{"name": "A'),
    ],
)
def test_a_value_that_does_not_fit_is_rejected_by_itself(path: str, value: str) -> None:
    made, rejected = read(change("add", f"$.{path}", value), change("update", "$.note", "b"))
    assert made == [("update", "$['note']", "b")]
    assert len(rejected) == 1


def test_strings_of_the_old_lists_stay_what_they_are() -> None:
    reply = json.dumps({"update": [{"path": "$.note", "value": '"in quotes"'}]})
    (one,) = parse_reply(reply, SCHEMA, HELD).amendments
    assert one.value == '"in quotes"'


def test_what_is_said_beside_the_changes_is_not_one() -> None:
    reply = {"notes": "The museum is new.", "changes": [change("update", "$.note", "b")], "n": 1}
    revision = parse_reply(json.dumps(reply), SCHEMA, HELD)
    assert [one.value for one in revision.amendments] == ["b"]
    assert revision.rejections == ()


NOTHING = [
    '{"changes": []}',
    '```json\n{\n  "changes": [ ]\n}\n```',
    '<think>Nothing?</think>\n{"changes": []}',
    'Nothing matters here.\n{"changes": []}',
    '{"notes": "no", "changes": []}',
    '{"update": [], "add": []}',
    '{"update": [], "add": [], "remove": []}',
    "[OBJECTS FOR UPDATE]\n{}\n[OBJECTS FOR ADD]\n{}\n",
    "**[OBJECTS FOR UPDATE]:**\n```json\n{}\n```\n[OBJECTS FOR ADD]\n(none)",
    "[OBJECTS FOR UPDATE]\n[OBJECTS FOR REMOVE]\n",
]


@pytest.mark.parametrize("reply", NOTHING)
def test_nothing_changes_where_the_reply_says_so(reply: str) -> None:
    revision = parse_reply(reply, SCHEMA, HELD)
    assert (revision.amendments, revision.rejections) == ((), ())


USELESS = [
    "",
    "  \n",
    "{}",
    "[]",
    "null",
    "I'm sorry, I can't help with that.",
    "I would rather not say anything about {that}.",
    "No changes.",
    "[OBJECTS FOR ADD]\nI'm sorry, I can't help with that.",
    "[TEXT]\n{}",
    '{"changes": null}',
    '{"changes": {}}',
    '{"changes": ["$.note"]}',
    '{"changes": [{"op": "add", "path": "$.note"',
    '{"changes": [{"op": "move", "path": "$.note", "value": "x"}]}',
    '{"error": "content policy"}',
]


@pytest.mark.parametrize("reply", USELESS)
def test_what_is_no_revision_is_not_taken_for_an_empty_one(reply: str) -> None:
    with pytest.raises(Unusable, match="no change could be read in it"):
        parse_reply(reply, SCHEMA, HELD)


def test_what_cannot_apply_was_read() -> None:
    made, rejected = read(change("add", "$.nowhere", "x"), may_remove=False)
    assert made == []
    assert len(rejected) == 1
