"""What rules allow a revision to do, each refusal with its reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amending import amend
from service.domain.prism.amendments import Op, Proposal, Revision, Rules
from service.domain.prism.coercion import coerce
from service.domain.prism.revisions import (
    MAX_PROPOSALS,
    parse_consolidation,
    parse_reply,
)
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Mismatch, fit
from service.domain.prompting.asking import Unusable
from service.domain.prompting.replies import MAX_REVISION_CHARACTERS
from service.domain.values.json_values import canonical
from tests.unit.prism.judging import judged

SCHEMA = parse_source(
    """
class M:
    topics: dict[str, list[str]]
    pairs: dict[str, tuple[str, str]]
    class P:
        name: str
        age: int
    people: list[P]
    count: int
    ratio: float
    open: bool
    level: Literal[1, 2, "high"]
    note: str | None
    nested: list[list[list[str]]]
"""
)
VALUE: Any = {
    "topics": {"a": ["x", "y", "z"], "b": ["????"]},
    "pairs": {"p": ["l", "????"]},
    "people": [{"name": "Ada", "age": 36}],
    "count": 3,
    "note": "kept",
}


def one(op: Op | None, path: str, value: Any = None, **rules: Any) -> tuple[Revision, str]:
    made = judged([Proposal(path, op, value)], SCHEMA, VALUE, Rules(**rules))
    return made, made.rejections[0].reason if made.rejections else ""


@pytest.mark.parametrize(
    ("op", "path", "value", "reason"),
    [
        (Op.UPDATE, "$.count", None, "what is known"),
        (Op.UPDATE, "$.count", "????", "what is known"),
        (Op.ADD, "$.count", "????", "what is known"),
        (None, "$.note", None, "what is known"),
        (Op.UPDATE, "$.topics.a", [], "what is known"),
        (Op.UPDATE, "$.topics.a", ["x", "????", "z"], "what is known"),
        (Op.UPDATE, "$.topics", {"a": None}, "what is known"),
        (Op.UPDATE, "$.topics", {}, "what is known"),
        (Op.UPDATE, "$.people[0]", {"name": "Ada Lovelace", "age": None}, "what is known"),
        (Op.UPDATE, "$.pairs.p", ["????", "r"], "what is known"),
        (Op.UPDATE, "$.count", 3, "changes nothing"),
        (Op.REMOVE, "$.count", None, "nothing may be removed"),
        (Op.REMOVE, "$.nothing", None, "no field 'nothing'"),
        (None, "$", {}, "name a field"),
        (None, "$.topics.a[7]", "x", "next index is 3"),
        (None, "$.pairs.p[2]", "x", "has 2 items"),
        (None, "$.count", float("nan"), "a number that JSON does not have"),
        (None, "$.count", object(), "which JSON does not have"),
        (None, "$.note", "a\0b", "a NUL character"),
        (None, "$.note", "\ud800", "surrogate"),
        (None, "$.topics['a\0']", ["x"], "a NUL character"),
    ],
)
def test_what_is_refused_says_why(op: Op | None, path: str, value: Any, reason: str) -> None:
    made, why = one(op, path, value)
    assert made.amendments == ()
    assert reason in why
    made.rejections[0].proposal.encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.topics.b", ["known now"]),
        ("$.topics.b", ["????", "more"]),
        ("$.topics.a", ["x"]),
        ("$.pairs.p", ["l", "r"]),
        ("$.pairs.p[1]", "r"),
        ("$.people[0].age", 37),
        ("$.note", ""),
    ],
)
def test_an_update_may_say_more_or_something_else(path: str, value: Any) -> None:
    for proposed, corrected in ((Op.UPDATE, False), (Op.ADD, True), (None, False)):
        made, why = one(proposed, path, value)
        assert why == ""
        (amendment,) = made.amendments
        assert (amendment.op, amendment.op_corrected) == (Op.UPDATE, corrected)


def test_an_op_that_is_left_out_is_no_mistake() -> None:
    made, _ = one(None, "$.topics.new", ["x"])
    assert [(a.op, a.op_corrected) for a in made.amendments] == [(Op.ADD, False)]
    made, _ = one(Op.UPDATE, "$.topics.new", ["x"])
    assert [(a.op, a.op_corrected) for a in made.amendments] == [(Op.ADD, True)]


def test_a_memory_that_takes_additions_only_refuses_updates() -> None:
    assert "takes no updates" in one(Op.UPDATE, "$.count", 4, add_only=True)[1]
    assert "it is there already" in one(Op.ADD, "$.count", 4, add_only=True)[1]
    for path in ("$.topics.c", "$.topics.a[-]"):
        made, why = one(Op.ADD, path, ["x"] if path.endswith("c") else "x", add_only=True)
        assert (len(made.amendments), why) == (1, "")


def test_what_may_be_removed_is_removed() -> None:
    for path in ("$.count", "$.topics.a[1]", "/people/0/age", "$.topics"):
        made, why = one(Op.REMOVE, path, may_remove=True)
        assert why == ""
        assert [(a.op, a.value) for a in made.amendments] == [(Op.REMOVE, None)]
    assert "keeps all its items" in one(Op.REMOVE, "$.pairs.p[0]", may_remove=True)[1]
    assert "nothing that could be removed" in one(Op.REMOVE, "$.ratio", may_remove=True)[1]
    assert one(Op.UPDATE, "$.topics.a", [], may_remove=True)[1] == ""
    assert "remove it instead" in one(Op.UPDATE, "$.topics.a", None, may_remove=True)[1]


def test_edits_apply_in_their_order_and_replies_remove_what_they_saw() -> None:
    paths = ["$.topics.a[0]", "$.topics.a[1]"]
    rules = Rules(may_remove=True)
    edits = judged([Proposal(path, Op.REMOVE, None) for path in paths], SCHEMA, VALUE, rules)
    left: Any = amend(SCHEMA, VALUE, edits.amendments)
    assert left["topics"]["a"] == ["y"]
    reply = "[OBJECTS FOR REMOVE]\n" + "\n".join([*paths, "$.topics.b", "$.topics.b[0]", paths[0]])
    read = parse_reply(reply, SCHEMA, VALUE, rules)
    left = amend(SCHEMA, VALUE, read.amendments)
    assert left["topics"] == {"a": ["z"]}
    assert [one.reason for one in read.rejections] == ["it is removed already"]


@pytest.mark.parametrize(
    ("updated", "removed"),
    [
        ({"$.topics.a": ["x and y", "z"]}, "$.topics.a[1]"),
        ({"$.topics.a": ["x and y", "z"]}, "$.topics.a"),
        ({"$.topics.a[0]": "x and y"}, "$.topics.a"),
        ({"$.topics.a": ["x and y", "z"]}, "$.topics"),
    ],
)
def test_what_a_reply_has_changed_it_does_not_remove(updated: Any, removed: str) -> None:
    for read in (parse_consolidation, parse_reply):
        changes = [{"path": path, "value": value} for path, value in updated.items()]
        text = json.dumps({"remove": [removed, "$.topics.b"], "update": changes})
        made = read(text, SCHEMA, VALUE, Rules(may_remove=True))
        assert [one.op for one in made.amendments] == [Op.UPDATE, Op.REMOVE]
        assert str(made.amendments[1].path) == "$['topics']['b']"
        assert [one.reason for one in made.rejections] == [
            "the same reply has changed what is there"
        ]


def test_a_consolidation_with_too_many_parts_loses_none_of_them() -> None:
    value: Any = {"topics": {f"k{n}": ["x"] for n in range(MAX_PROPOSALS + 20)}}
    paths = [f"$.topics.k{n}" for n in range(MAX_PROPOSALS + 10)]
    many = parse_consolidation(json.dumps({"remove": paths}), SCHEMA, value, Rules())
    assert len(many.amendments) == MAX_PROPOSALS
    late = {"remove": paths, "update": [{"path": "$.topics.k515", "value": ["all of x"]}]}
    assert parse_consolidation(json.dumps(late), SCHEMA, value, Rules()).amendments == ()


def test_of_a_reply_that_is_too_long_nothing_is_taken() -> None:
    start = '[OBJECTS FOR ADD]\n{"$.note": {"add": "x"}}\n[OBJECTS FOR REMOVE]\n$.topics.a[0]'
    longest = start + "\n" * (MAX_REVISION_CHARACTERS - len(start))
    assert len(parse_reply(longest, SCHEMA, VALUE, Rules(may_remove=True)).amendments) == 2
    for parse in (parse_reply, parse_consolidation):
        with pytest.raises(Unusable, match="more than 1,000,000 characters"):
            parse(longest + "\n", SCHEMA, VALUE, Rules())


def test_removals_see_what_a_reply_adds_before_them() -> None:
    reply = (
        '[OBJECTS FOR REMOVE]\n$.topics.a[0]\n[OBJECTS FOR ADD]\n{"$.topics.a[-]": {"add": "w"}}'
    )
    read = parse_reply(reply, SCHEMA, VALUE, Rules(may_remove=True))
    left: Any = amend(SCHEMA, VALUE, read.amendments)
    assert left["topics"]["a"] == ["y", "z", "w"]


@pytest.mark.parametrize(
    ("rules", "path", "value", "reason"),
    [
        ({"max_value_bytes": 5}, "$.note", "four", "the value has 6 bytes; the limit is 5"),
        ({"max_depth": 3}, "$.nested[0]", [["x"]], "3 levels"),
        ({"max_depth": 2}, "$.topics.c", ["x"], "would have 3 levels; the limit is 2"),
        ({"max_breadth": 3}, "$.topics.a[-]", "w", "would have 4 entries; the limit is 3"),
        ({"max_breadth": 3}, "$.topics.c", ["w"] * 4, "would have 4 entries"),
        ({"max_breadth": 5}, "$.ratio", 1.5, "would have 6 entries"),
        ({"max_memory_bytes": 150}, "$.topics.c", ["x" * 40], "the limit is 150"),
    ],
)
def test_each_limit_has_its_reason(rules: Any, path: str, value: Any, reason: str) -> None:
    made, why = one(Op.ADD, path, value, **rules)
    if reason == "3 levels":
        assert made.amendments == ()
        assert "would have 4 levels" in why
    else:
        assert reason in why


def test_what_is_too_large_already_may_become_smaller() -> None:
    rules = {"max_memory_bytes": 10, "max_breadth": 1, "may_remove": True}
    assert one(Op.REMOVE, "$.note", **rules)[1] == ""
    assert one(Op.UPDATE, "$.note", "", **rules)[1] == ""
    assert "the limit is 10" in one(Op.UPDATE, "$.note", "kept longer", **rules)[1]


EDITS = st.lists(
    st.tuples(
        st.sampled_from([Op.ADD, Op.UPDATE, Op.REMOVE, None]),
        st.sampled_from(
            [
                *("$.topics.a", "$.topics.ü", "$.topics.a[0]", "$.topics.q[-]", "$.pairs.n[1]"),
                *("$.people[0].name", "$.people[-]", "$.people", "$.count", "$.note", "$.topics"),
            ]
        ),
        st.sampled_from(
            [["x"], ["é", "b"], "text", 7, {"name": "B", "age": 1}, [], {"k": ["v"]}, None]
        ),
    ),
    max_size=12,
)


@given(EDITS, st.integers(100, 300))
def test_a_memory_keeps_to_its_limit_to_the_byte(edits: list[Any], limit: int) -> None:
    rules = Rules(may_remove=True, max_memory_bytes=limit)
    value: Any = VALUE
    for op, path, new in edits:
        alone = judged([Proposal(path, op, new)], SCHEMA, value, rules)
        free = judged([Proposal(path, op, new)], SCHEMA, value, Rules(may_remove=True))
        after = amend(SCHEMA, value, free.amendments)
        size, before = (len(canonical(one).encode()) for one in (after, value))
        if free.amendments:
            assert bool(alone.amendments) == (size <= limit or size <= before)
        value = amend(SCHEMA, value, alone.amendments)
    together = judged([Proposal(path, op, new) for op, path, new in edits], SCHEMA, VALUE, rules)
    assert canonical(amend(SCHEMA, VALUE, together.amendments)) == canonical(value)


@pytest.mark.parametrize(
    ("path", "value", "taken"),
    [
        ("$.count", "4", 4),
        ("$.count", "-4", -4),
        ("$.ratio", "2.5", 2.5),
        ("$.ratio", "4", 4),
        ("$.note", 3, "3"),
        ("$.note", 2.5, "2.5"),
        ("$.note", True, "true"),
        ("$.open", "true", True),
        ("$.level", "1", 1),
        ("$.level", "high", "high"),
        ("$.topics.c", "one", ["one"]),
        ("$.topics.c", ["one", 2], ["one", "2"]),
        ("$.people", {"name": "Bob", "age": "4"}, [{"name": "Bob", "age": 4}]),
        ("$.topics", {"c": 5}, {"c": ["5"]}),
        ("$.pairs.q", [1, False], ["1", "false"]),
    ],
)
def test_a_value_of_another_kind_is_taken_when_nothing_is_lost(
    path: str, value: Any, taken: Any
) -> None:
    made, why = one(Op.ADD, path, value, coerce=True)
    assert why == ""
    assert repr(made.amendments[0].value) == repr(taken)
    refused, why = one(Op.ADD, path, value)
    if repr(taken) != repr(value):
        assert refused.amendments == ()
        assert ", not " in why


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(
            ("$.count", text)
            for text in ("04", "4.0", "+4", " 4", "four", "4e2", "٤", "9" * 65, "")
        ),
        *(("$.ratio", text) for text in ("2.50", "1e400", "nan", "inf", ".5", "1_0")),
        *(("$.open", value) for value in ("True", "yes", 1, 0)),
        *(("$.count", value) for value in (True, 2.5, [4], {"n": 4})),
        *(("$.level", value) for value in ("3", True, 1.0)),
        ("$.note", ["x"]),
        ("$.topics", ["x"]),
        ("$.pairs.q", ["x"]),
    ],
)
def test_a_value_that_would_lose_something_is_refused(path: str, value: Any) -> None:
    made, why = one(None, path, value, coerce=True)
    assert made.amendments == ()
    assert ", not " in why


SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("019.e-truefals"),
)


@given(SCALARS, st.sampled_from(["count", "ratio", "open", "note", "topics"]))
def test_what_was_coerced_can_be_written_back(value: Any, name: str) -> None:
    of = SCHEMA.root.field(name).type  # type: ignore[union-attr]
    try:
        taken = coerce(of, value)
    except Mismatch:
        return
    assert canonical(fit(of, taken)) == canonical(taken)
    if not isinstance(value, str | bool) and isinstance(taken, int | float):
        assert taken == value
    elif isinstance(taken, list | dict):
        assert name == "topics"
    else:
        written = [one if isinstance(one, str) else canonical(one) for one in (value, taken)]
        assert written[0] == written[1]


def tidy(update: Any, remove: list[str], add: Any = None) -> Revision:
    reply = {
        "update": [{"path": path, "value": value} for path, value in update.items()],
        "add": [{"path": path, "value": value} for path, value in (add or {}).items()],
        "remove": remove,
    }
    rules = Rules(add_only=True, may_remove=False)
    return parse_consolidation(json.dumps(reply), SCHEMA, VALUE, rules)


def test_a_consolidation_updates_and_removes_whatever_the_memorys_rules() -> None:
    made = tidy({"$.topics.a": ["x, y and z"]}, ["$.topics.b", "$.count"])
    assert made.rejections == ()
    assert amend(SCHEMA, VALUE, made.amendments) == {
        "topics": {"a": ["x, y and z"]},
        **{key: VALUE[key] for key in ("pairs", "people", "note")},
    }


@pytest.mark.parametrize(
    ("update", "add", "reason"),
    [
        ({}, {"$.topics.new": ["invented"]}, "nothing may be added"),
        ({"$.topics.new": ["invented"]}, {}, "nothing may be added"),
        ({"$.topics.a": 3}, {}, "an int, not list[str]"),
        ({"$.topics.a": None}, {}, "what is known"),
    ],
)
def test_a_consolidation_of_which_a_part_is_rejected_removes_nothing(
    update: Any, add: Any, reason: str
) -> None:
    made = tidy({"$.note": "short", **update}, ["$.topics.b"], add)
    assert [str(one.path) for one in made.amendments] == ["$['note']"]
    assert reason in made.rejections[0].reason
    assert "a part of the reply was rejected" in made.rejections[1].reason


def test_a_consolidation_that_repeats_what_is_there_may_remove() -> None:
    made = tidy({"$.note": "kept"}, ["$.topics.b", "$.ratio"])
    assert [(one.op, str(one.path)) for one in made.amendments] == [(Op.REMOVE, "$['topics']['b']")]
    assert len(made.rejections) == 2
