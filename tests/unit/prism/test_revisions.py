"""Replies become amendments and rejections, whatever they are."""

import contextlib
import copy
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amendments import Amendment, Op, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.revisions import MAX_PROPOSALS, parse_reply
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import fit
from service.domain.prompting.asking import Unusable
from service.domain.values.json_values import canonical, parse
from service.domain.values.paths import Path

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
    reply: str, value: Any = None, **limits: Any
) -> tuple[list[tuple[str, str, Any]], list[str]]:
    revision = parse_reply(reply, SCHEMA, value or {}, Rules(**limits))
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


@pytest.mark.parametrize(
    "broken",
    [
        '{"$.count": {"add": 1}',
        '{"$.topics.a": {"add": ["x]}}',
        "Here { we go:",
        "{'$.count': {['x']: 1}}",
        "{'$.count': {'add': 0x%s}}" % ("f" * 200),
        '{"$.count": {"add": 1e300}}',
        '{"$.count": {"add": %s}}' % ("9" * 65),
        '{"$.topics": {"add": {"a\\u0000": ["x"]}}}',
        '{"$.%s": {"add": 1}}' % ("'" * 600),
    ],
)
def test_a_broken_object_leaves_those_around_it_alone(broken: str) -> None:
    def line(key: str) -> str:
        return json.dumps({f"$.topics.{key}": {"add": ["kept"]}})

    accepted, rejected = read(f"[OBJECTS FOR ADD]\n{line('a')}\n{broken}\n{line('b')}\n")
    assert [path for _, path, _ in accepted] == ["$['topics']['a']", "$['topics']['b']"]
    assert len(rejected) == 1


def test_a_value_may_hold_what_looks_like_a_header() -> None:
    value = ["all objects for add", "[OBJECTS FOR UPDATE]", "[TEXT]\n[OBJECTS FOR ADD]\n{"]
    accepted, rejected = read(add("$.topics.a", value) + add("$.count", 3)[17:])
    assert accepted == [("add", "$['topics']['a']", value), ("add", "$['count']", 3)]
    assert rejected == []


def test_only_sections_that_are_asked_for_are_read() -> None:
    reply = f"""[MEMORY]\n{{"count": 7}}\n{add("$.count", 1)}
[TEXT]\n{{"$.topics.a": {{"add": ["no"]}}}}"""
    assert read(reply) == ([("add", "$['count']", 1)], [])


def test_a_rejection_can_be_stored_whatever_the_reply_was() -> None:
    reply = '[OBJECTS FOR ADD]\n{"$.count": \0\ud800}\n{"$.%s": {"add": 1}}' % ("k" * 5000)
    reply += '\n{"$.\'\\\\\0\'": {"add": 1}}'
    revision = parse_reply(reply, SCHEMA, {})
    assert len(revision.rejections) == 3
    for one in revision.rejections:
        stored = (one.proposal + one.reason).encode()
        assert b"\0" not in stored
        assert len(one.proposal) <= 2000
        assert len(one.reason) <= 1000


def test_a_path_that_could_not_be_read_again_is_rejected() -> None:
    schema = parse_source(
        "class M:\n" + "".join(f"  a{n}: {'dict[str, ' * n}str{']' * n}\n" for n in range(1, 14))
    )
    for key, kept in (("\x01" * 300, False), ("k" * 300, True)):
        reply = add(f"/a12/{'/'.join([key] * 12)}", "x")
        amendments = parse_reply(reply, schema, {}).amendments
        assert bool(amendments) is kept
        assert all(Path.parse(str(one.path)) == one.path for one in amendments)


def test_parts_made_on_the_way_count_towards_the_memorys_limit() -> None:
    schema = parse_source(
        f"class M:\n  wide: dict[str, tuple[{', '.join(['str'] * 100)}]]\n  n: int"
    )
    reply = "[OBJECTS FOR ADD]\n" + "\n".join(
        json.dumps({f"$.wide.k{n}[0]": {"add": "x"}}) for n in range(50)
    )
    revision = parse_reply(reply, schema, {}, Rules(max_memory_bytes=5000))
    memory = PrismMemory.create(schema).apply(1, revision.amendments)
    assert 4000 < len(memory.value_json.encode()) <= 5000
    assert "the limit is 5000" in revision.rejections[0].reason


def test_a_proposal_without_header_and_op_is_rejected() -> None:
    other = '[OBJECTS FOR ADD]\n{"$.count": {"add": 1}}\n'
    with pytest.raises(Unusable, match="it says neither add nor update"):
        read('{"$.count": 1}')
    assert len(read(other)[0]) == 1


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
        with contextlib.suppress(Unusable):
            revision = parse_reply(reply, SCHEMA, {})
            assert PrismMemory.create(SCHEMA).apply(1, revision.amendments).value_json


@pytest.mark.prove
@pytest.mark.parametrize(
    "piece",
    [
        *("{", '{"a":', "[{", "{'", '{"$.a": {"add": ', "(" * 50, '{"$":[\n', "[A"),
        *(" ", "\n", "\t\n", "{} ", "{#\n}", "[OBJECTS FOR ADD]\n"),
    ],
)
def test_long_nonsense_takes_no_long_time(piece: str) -> None:
    began = time.process_time()
    for before in ("", "[OBJECTS FOR ADD]\n"):
        with contextlib.suppress(Unusable):
            assert parse_reply(before + piece * 50_000, SCHEMA, {}).amendments == ()
    assert time.process_time() - began < 30, "what repeats is read in linear time"


WORDS = st.text(max_size=5) | st.sampled_from(["????", "\0", "\ud800", "[OBJECTS FOR ADD]", "{"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**64) | WORDS,
    lambda of: (
        st.lists(of, max_size=3)
        | st.lists(of, max_size=3).map(tuple)
        | st.dictionaries(WORDS | st.integers(), of, max_size=3)
    ),
    max_leaves=8,
)
PLACES = st.sampled_from(
    [
        *("$", "$.topics", "$.topics.a", "$.topics.a[0]", "$.topics.a[-]", "/topics/b/0", "$.x"),
        *("$.pairs", "$.pairs.p[1]", "$.people", "$.people[0]", "$.people[0].age", "$.count"),
    ]
)
FITTING = st.sampled_from(
    [("$.topics.a", ["x"]), ("$.pairs.p", ("x", "????")), ("$.count", 3.0), ("$.count", None)]
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "update"]), FITTING | st.tuples(PLACES, ANYTHING)),
        max_size=8,
    ),
    st.sampled_from([json.dumps, repr]),
)
def test_what_is_accepted_fits_the_schema_and_survives_storage(
    proposed: list[tuple[str, tuple[str, Any]]], write: Callable[[Any], str]
) -> None:
    lines = []
    for op, (path, value) in proposed:
        # What the writer cannot write is not what is tested.
        with contextlib.suppress(TypeError, ValueError):
            lines.append(f"[OBJECTS FOR {op.upper()}]\n{write({path: {op: value}})}\n")
    # One that can be read, so that all are: an entry of its own, which always fits.
    lines.append('[OBJECTS FOR ADD]\n{"$.topics.last": {"add": ["x"]}}\n')
    revision = parse_reply("".join(lines), SCHEMA, {})
    assert len(revision.amendments) + len(revision.rejections) == len(lines)
    memory = PrismMemory.create(SCHEMA)
    for number, one in enumerate(revision.amendments, start=1):
        resolved, of = SCHEMA.type_at(one.path)
        assert resolved == one.path == Path.parse(str(one.path))
        assert canonical(fit(of, one.value)) == canonical(one.value)
        assert canonical(parse(canonical(one.value))) == canonical(one.value)
        memory = memory.apply(number, [one])
    assert canonical(fit(SCHEMA.root, memory.value)) == memory.value_json
    base = memory.fold()
    again = PrismMemory.load(SCHEMA, base_json=base.base_json, amendments=[(101, ())])
    assert again.value_json == memory.value_json


KEYS = st.sampled_from(["a", "b", "c.d", "e'f", "ü"])
VALUES = st.lists(st.text("xyz", max_size=3), max_size=3)
PROPOSALS = st.lists(st.tuples(st.sampled_from(["add", "update"]), KEYS, VALUES), max_size=6)


def plain(memory: dict[str, Any], batch: list[Amendment]) -> None:
    """Does what amendments do, in as few words as can be."""
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
    base = "{}"
    for number, proposals in enumerate(replies, start=1):
        reply = "\n".join(
            f"[OBJECTS FOR {op.upper()}]\n"
            + json.dumps({"$.'topics'.'{}'".format(key.replace("'", "\\'")): {op: value}})
            for op, key, value in proposals
        )
        amendments = parse_reply(reply, SCHEMA, kept.value).amendments if reply else ()
        before = kept.value_json
        after = kept.apply(number, amendments)
        assert kept.value_json == before, "applying changes nothing but its result"
        kept = after
        plain(model, list(amendments))
        since.append((number, amendments))
        if number == fold_at:
            kept = kept.fold()
            base, since = kept.base_json, []
    loaded = PrismMemory.load(
        SCHEMA,
        base_json=base,
        amendments=[entry for entry in since if entry[1]],
    )
    assert loaded.value_json == kept.value_json == canonical(model)
    assert loaded.segments() == kept.segments()
