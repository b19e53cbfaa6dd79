"""The offline model tidies: what repeats goes, and nothing that is said once."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amending import amend
from service.domain.prism.amendments import Op
from service.domain.prism.asking import ConsolidateContent, ReviseContent
from service.domain.prism.revisions import parse_consolidation, parse_reply
from service.domain.prism.rules import Rules
from service.domain.prism.schemas.source import parse_source
from service.domain.values.json_values import Json, canonical
from service.llm.offline import model as offline

SCHEMA = parse_source(
    """
class M:
    class P:
        name: str
        said: list[str]
    topics: dict[str, list[str]]
    facts: dict[str, str]
    people: dict[str, P]
    notes: list[str] | None
    numbers: list[int]
    crowd: list[P]
    pair: tuple[str, str]
    nested: dict[str, dict[str, int]]
"""
)


def tidy(value: Any) -> Any:
    content = ConsolidateContent(schema=SCHEMA, task="", question="", value=value, budget_tokens=1)
    reply = offline.complete(content)
    assert reply == offline.complete(content), "it is deterministic"
    revision = parse_consolidation(reply, SCHEMA, value, Rules())
    assert revision.rejections == ()
    assert all(one.op is not Op.ADD and not one.op_corrected for one in revision.amendments)
    return amend(SCHEMA, value, revision.amendments)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"notes": ["It is old.", "it  is OLD", "It is old. It is red.", "Red"]},
            {"notes": ["It is old. It is red."]},
        ),
        ({"notes": ["a", "ab", "a"]}, {"notes": ["a", "ab"]}),
        ({"numbers": [1, 2, 1, 12]}, {"numbers": [1, 2, 12]}),
        (
            {"crowd": [{"name": "A", "said": ["x", "x"]}, {"name": "A", "said": ["x", "x"]}]},
            {"crowd": [{"name": "A", "said": ["x"]}]},
        ),
        (
            {"topics": {"Price": ["nine euros"], "prices": ["children free"], "price": []}},
            {"topics": {"Price": ["nine euros", "children free"]}},
        ),
        (
            {"facts": {"City": "Rome", "city": "in Rome", "Cities": "Paris"}},
            {"facts": {"City": "in Rome", "Cities": "Paris"}},
        ),
        ({"facts": {"it's\nkey": "x", "IT'S\nkey": "x"}}, {"facts": {"it's\nkey": "x"}}),
        ({"facts": {"Bus": "a", "Bu": "a"}}, {"facts": {"Bus": "a", "Bu": "a"}}),
        (
            {"people": {"ada": {"name": "Ada"}, "Ada": {"name": "????", "said": ["hi"]}}},
            {"people": {"ada": {"name": "Ada", "said": ["hi"]}}},
        ),
        (
            {"people": {"ada": {"name": "Ada"}, "Ada": {"name": "Eve", "said": ["a", "a"]}}},
            {"people": {"ada": {"name": "Ada"}, "Ada": {"name": "Eve", "said": ["a"]}}},
        ),
        ({"nested": {"k": {"A": 1, "a": 2}}}, {"nested": {"k": {"A": 1, "a": 2}}}),
        ({"nested": {"k": {"A": 1, "a": 1}}}, {"nested": {"k": {"A": 1}}}),
        ({"pair": ["same", "same"]}, {"pair": ["same", "same"]}),
        ({"notes": None}, {"notes": None}),
        ({}, {}),
    ],
)
def test_what_repeats_goes_and_nothing_else(before: Any, after: Any) -> None:
    assert tidy(before) == after
    assert tidy(after) == after, "a tidy memory stays as it is"


WORDS = st.text("aB s.", max_size=4)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "topics": st.dictionaries(WORDS, st.lists(WORDS, max_size=4), max_size=4),
        "facts": st.dictionaries(WORDS, WORDS | st.none() | st.just("????"), max_size=4),
        "notes": st.lists(WORDS, max_size=5),
        "numbers": st.lists(st.integers(0, 3), max_size=5),
        "nested": st.dictionaries(WORDS, st.dictionaries(WORDS, st.integers(0, 1)), max_size=3),
    },
)


def leaves(value: Json) -> set[str]:
    if isinstance(value, dict):
        return {leaf for child in value.values() for leaf in leaves(child)}
    if isinstance(value, list):
        return {leaf for child in value for leaf in leaves(child)}
    return (
        {" ".join(value.split()).rstrip(".").casefold()}
        if isinstance(value, str)
        else {canonical(value)}
    )


@given(VALUES)
def test_every_thing_that_was_said_is_still_said(value: Any) -> None:
    after = tidy(value)
    assert len(canonical(after)) <= len(canonical(value))
    kept = leaves(after)
    for leaf in leaves(value):
        assert leaf in ("null", "????") or any(leaf in one for one in kept), leaf


def test_where_additions_are_all_that_is_allowed_it_appends() -> None:
    schema = parse_source("class A:\n    topics: dict[str, list[str]]\n    about: str")
    text = "# The harbour museum\n\nThe harbour museum is closed on Mondays in the winter.\n"
    held: Any = {"topics": {"harbour museum": ["It is old."]}}
    content = ReviseContent(
        schema=schema, task="", question="", value=held, chunks=((1, text),), add_only=True
    )
    reply = offline.complete(content)
    assert "UPDATE" not in reply
    revision = parse_reply(reply, schema, held, Rules(add_only=True))
    assert revision.rejections == ()
    after: Any = amend(schema, held, revision.amendments)
    assert len(after["topics"]["harbour museum"]) == 2
    assert json.dumps(after["topics"]).count("It is old.") == 1
