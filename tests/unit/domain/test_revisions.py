"""Replies become amendments and rejections, whatever they are."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.amendments import Amendment, Op
from service.domain.json_values import canonical
from service.domain.prism import PrismMemory
from service.domain.revisions import MAX_PROPOSALS, parse_reply
from service.domain.schema_source import parse_source

SCHEMA = parse_source(
    """
class Memory:
    topics: dict[str, list[str]]
    pairs: dict[str, tuple[str, str]]
    class Person:
        name: str
        age: int
    people: list[Person]
    count: int
"""
)


def read(
    reply: str, value: Any = None, **limits: int
) -> tuple[list[tuple[str, str, Any]], list[str]]:
    revision = parse_reply(reply, SCHEMA, value or {}, **limits)
    return (
        [(one.op.value, str(one.path), one.value) for one in revision.amendments],
        [one.reason for one in revision.rejections],
    )


def add(path: str, value: Any) -> str:
    return "[OBJECTS FOR ADD]\n" + json.dumps({path: {"add": value}})


@pytest.mark.parametrize(
    "reply",
    [
        """[OBJECTS FOR UPDATE]\n{}\n[OBJECTS FOR ADD]\n{"$.'topics'.'a'": {"add": ["x"]}}""",
        """Sure!\n\n**[OBJECTS FOR ADD]**\n```\n{"$.topics.a": {"add": ["x"]}}\n```""",
        """[OBJECTS FOR ADD]\n{"$['topics']['a']": {"add":\n ["x"]\n}}\nDone, {I think}.""",
        """[OBJECTS FOR ADD]\n{'$.topics.a': {'add': ['x',],},}""",
        """[OBJECTS FOR ADD]\n{"/topics/a": ["x"]}""",
        """{"$.topics.a": {"add": ["x"]}}""",
        """[objects for add]: {"$.'topics'.'a'": {"add": ("x",)}}""",
    ],
)
def test_the_format_is_read_as_models_write_it(reply: str) -> None:
    accepted, _ = read(reply)
    assert accepted == [("add", "$['topics']['a']", ["x"])]


def test_both_forms_of_a_section_are_read() -> None:
    one = """[OBJECTS FOR ADD]\n{"$.topics.a": {"add": ["x"]}, "$.count": {"add": 3}}"""
    two = """[OBJECTS FOR ADD]\n{"$.topics.a": {"add": ["x"]}}\n{"$.count": {"add": 3}}"""
    assert read(one) == read(two)
    assert len(read(one)[0]) == 2


def test_the_memory_decides_between_add_and_update() -> None:
    reply = """[OBJECTS FOR UPDATE]\n{"$.topics.new": {"update": ["x"]}}
[OBJECTS FOR ADD]\n{"$.topics.old": {"add": ["y"]}}"""
    revision = parse_reply(reply, SCHEMA, {"topics": {"old": ["z"]}})
    assert [(one.op, one.op_corrected) for one in revision.amendments] == [
        (Op.ADD, True),
        (Op.UPDATE, True),
    ]


def test_missing_parents_are_made_and_lists_grow_at_their_end() -> None:
    accepted, rejected = read(
        """[OBJECTS FOR ADD]
{"$.people[0].name": {"add": "Ada"}}
{"$.people[-]": {"add": {"name": "Bob", "age": 4}}}
{"$.pairs.p[1]": {"add": "right"}}
{"$.people[7]": {"add": {"name": "Eve"}}}"""
    )
    assert [path for _, path, _ in accepted] == [
        "$['people'][0]['name']",
        "$['people'][1]",
        "$['pairs']['p'][1]",
    ]
    assert "next index is 2" in rejected[0]
    memory = PrismMemory.create(SCHEMA).apply(
        1, parse_reply(add("$.pairs.p[1]", "r"), SCHEMA, {}).amendments
    )
    assert memory.value == {"pairs": {"p": ["????", "r"]}}


@pytest.mark.parametrize(
    ("proposal", "reason"),
    [
        (add("$.count", "3"), "a str, not int"),
        (add("$.nothing", 1), "no field 'nothing'"),
        (add("$.topics.a.b.c", 1), "has indexes"),
        (add("$", {"count": 1}), "name a field"),
        (add("topics.a", ["x"]), "begins with"),
        (add("$.topics.a", ["x" * 70_000]), "the limit is 65536"),
        (add("$.count", 1) + add("$.count", 1)[17:], "changes nothing"),
        ('[OBJECTS FOR ADD]\n{"$.count": {"add": 1}', "not closed"),
        ('[OBJECTS FOR ADD]\n{"$.count": open}', "neither JSON nor a Python literal"),
        ('[OBJECTS FOR ADD]\n{"$.count": {"add": NaN}}', "JSON does not have"),
    ],
)
def test_an_invalid_proposal_is_rejected_by_itself(proposal: str, reason: str) -> None:
    neighbour = """[OBJECTS FOR ADD]\n{"$.topics.ok": {"add": ["kept"]}}\n"""
    accepted, rejected = read(neighbour + proposal)
    assert ("add", "$['topics']['ok']", ["kept"]) in accepted
    assert any(reason in one for one in rejected), rejected


def test_a_proposal_without_header_and_op_is_rejected() -> None:
    assert read('{"$.count": 1}') == ([], ["it says neither add nor update"])


def test_a_memory_does_not_outgrow_its_limit() -> None:
    reply = "[OBJECTS FOR ADD]\n" + "\n".join(
        json.dumps({f"$.topics.t{n}": {"add": ["x" * 100]}}) for n in range(30)
    )
    accepted, rejected = read(reply, max_memory_bytes=1000)
    assert 5 <= len(accepted) <= 9
    assert all("the limit is 1000" in one for one in rejected)


def test_a_reply_has_a_bounded_number_of_proposals() -> None:
    reply = "[OBJECTS FOR ADD]\n" + '{"$.count": {"add": "no"}}\n' * (MAX_PROPOSALS + 50)
    assert len(read(reply)[1]) == MAX_PROPOSALS + 1


@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="replace")))
def test_any_text_is_read(text: str) -> None:
    for reply in (text, f"[OBJECTS FOR ADD]\n{text}", f'[OBJECTS FOR ADD]\n{{"{text}": {text}}}'):
        revision = parse_reply(reply, SCHEMA, {})
        PrismMemory.create(SCHEMA).apply(1, revision.amendments)


@pytest.mark.parametrize("piece", ["{", '{"a":', "[{", "{'", '{"$.a": {"add": ', "(" * 50])
def test_long_nonsense_takes_no_long_time(piece: str) -> None:
    revision = parse_reply("[OBJECTS FOR ADD]\n" + piece * 50_000, SCHEMA, {})
    assert revision.amendments == ()


KEYS = st.sampled_from(["a", "b", "c.d", "e'f", "ü"])
VALUES = st.lists(st.text("xyz", max_size=3), max_size=3)
PROPOSALS = st.lists(st.tuples(st.sampled_from(["add", "update"]), KEYS, VALUES), max_size=6)


def plain(memory: dict[str, Any], batch: list[Amendment]) -> None:
    """What amendments do, in as few words as can be."""
    for one in batch:
        here: Any = memory
        for token in one.path.tokens[:-1]:
            here = here.setdefault(token, {})
        here[one.path.tokens[-1]] = copy.deepcopy(one.value)


@given(st.lists(PROPOSALS, max_size=12), st.integers(0, 12))
def test_the_log_replayed_from_any_fold_gives_the_same_bytes(
    replies: list[list[tuple[str, str, list[str]]]], fold_at: int
) -> None:
    kept = PrismMemory.create(SCHEMA)
    model: dict[str, Any] = {}
    since: list[tuple[int, tuple[Amendment, ...]]] = []
    base, base_revision = "{}", 0
    for number, proposals in enumerate(replies, start=1):
        reply = "\n".join(
            f"[OBJECTS FOR {op.upper()}]\n"
            + json.dumps({"$.'topics'.'{}'".format(key.replace("'", "\\'")): {op: value}})
            for op, key, value in proposals
        )
        amendments = parse_reply(reply, SCHEMA, kept.value).amendments
        before = kept.value_json
        after = kept.apply(number, amendments)
        assert kept.value_json == before, "applying changes nothing but its result"
        kept = after
        plain(model, list(amendments))
        since.append((number, amendments))
        if number == fold_at:
            kept = kept.fold(number)
            base, base_revision, since = kept.base_json, number, []
    loaded = PrismMemory.load(
        SCHEMA,
        base_json=base,
        base_revision=base_revision,
        amendments=[entry for entry in since if entry[1]],
    )
    assert loaded.value_json == kept.value_json == canonical(model)
    assert loaded.segments() == kept.segments()
