"""Putting, removing and replaying, against a memory of plain dicts."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amending import amend, put, remove, replay, settle, value_at
from service.domain.prism.amendments import Amendment, Op, Proposal, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Mismatch, fit
from service.domain.values.json_values import canonical
from service.domain.values.paths import Path
from tests.unit.prism.judging import judged

SCHEMA = parse_source(
    """
class M:
    topics: dict[str, list[str]]
    pairs: dict[str, tuple[str, str]]
    class P:
        name: str
        age: int | None
        tags: list[str]
    people: list[P] | None
    deep: dict[str, dict[str, list[P]]]
    count: int
"""
)
RULES = Rules(may_remove=True)


def plain(memory: Any, one: Amendment) -> None:
    """Does what an amendment does, in as few words as can be."""
    here = memory
    for token, following in zip(one.path.tokens, one.path.tokens[1:], strict=False):
        missing = isinstance(here, list) and token == len(here)
        if missing:
            here.append(None)
        if (here.get(token) if isinstance(here, dict) else here[token]) in (None, "????"):
            tuples = one.path.tokens[0] == "pairs" and isinstance(following, int)
            here[token] = ["????", "????"] if tuples else [] if isinstance(following, int) else {}
        here = here[token]
    last = one.path.tokens[-1]
    if one.op is Op.REMOVE:
        del here[last]
    elif isinstance(here, list) and last == len(here):
        here.append(copy.deepcopy(one.value))
    else:
        here[last] = copy.deepcopy(one.value)


KEYS = st.sampled_from(["a", "a", "a", "a", "b", "c.d", "e'f", "ü]", "0", "-"])
INDEXES = st.integers(0, 3) | st.just("-")
PERSON = st.fixed_dictionaries(
    {"name": st.sampled_from(["Ada", "Bob", "????"])},
    optional={"age": st.none() | st.integers(0, 9), "tags": st.lists(st.text("xy"), max_size=2)},
)
TEXTS = st.lists(st.text("xyz", max_size=2), max_size=3)
PAIR = st.tuples(st.text("xy"), st.text("xy")).map(list)
SPOTS: st.SearchStrategy[tuple[tuple[str | int, ...], Any]] = st.one_of(
    st.tuples(st.tuples(st.just("topics"), KEYS), TEXTS),
    st.tuples(st.tuples(st.just("topics"), KEYS, INDEXES), st.text("xyz", max_size=2)),
    st.tuples(st.just(("topics",)), st.dictionaries(KEYS, TEXTS, max_size=2)),
    st.tuples(st.tuples(st.just("pairs"), KEYS), PAIR),
    st.tuples(st.tuples(st.just("pairs"), KEYS, st.integers(0, 2)), st.text("xy")),
    st.tuples(st.tuples(st.just("people"), INDEXES), PERSON),
    st.tuples(st.tuples(st.just("people"), INDEXES, st.just("tags"), INDEXES), st.text("xy")),
    st.tuples(st.tuples(st.just("people"), INDEXES, st.just("age")), st.integers(0, 9)),
    st.tuples(st.tuples(st.just("deep"), KEYS, KEYS, INDEXES), PERSON),
    st.tuples(st.just(("people",)), st.none()),
    st.tuples(st.just(("count",)), st.integers(0, 5)),
)
OPS = st.sampled_from([Op.ADD, Op.UPDATE, None, Op.REMOVE])
STEPS = st.lists(st.lists(st.tuples(OPS, SPOTS), max_size=4), max_size=8)


def proposal(op: Op | None, spot: tuple[tuple[str | int, ...], Any]) -> Proposal:
    return Proposal(str(Path(spot[0])), op, spot[1])


@given(STEPS, st.integers(0, 8))
def test_every_way_to_amend_gives_the_same_bytes(
    steps: list[list[tuple[Op | None, Any]]], fold_at: int
) -> None:
    kept = PrismMemory.create(SCHEMA)
    model: Any = {}
    log: list[tuple[int, tuple[Amendment, ...]]] = []
    since: list[tuple[int, tuple[Amendment, ...]]] = []
    base = "{}"
    for number, proposals in enumerate(steps, start=1):
        made = judged([proposal(*one) for one in proposals], SCHEMA, kept.value, RULES)
        before = kept.value_json
        one_by_one = kept.value
        for one in made.amendments:
            plain(model, one)
            if one.op is Op.REMOVE:
                one_by_one = remove(SCHEMA, one_by_one, one.path)
            else:
                one_by_one = put(SCHEMA, one_by_one, one.path, one.value)
        after = kept.apply(number, made.amendments)
        assert canonical(kept.value) == before, "amending changes nothing but its result"
        assert after.value_json == canonical(one_by_one) == canonical(model)
        assert canonical(fit(SCHEMA.root, after.value)) == after.value_json
        kept = after
        log.append((number, made.amendments))
        since.append((number, made.amendments))
        if number == fold_at:
            kept = kept.fold()
            base, since = kept.base_json, []
    everything = [one for _, batch in log for one in batch]
    texts = [canonical(one.value) for one in everything]
    assert canonical(replay(SCHEMA, {}, everything)) == canonical(model)
    assert canonical(amend(SCHEMA, {}, everything)) == canonical(model)
    assert [canonical(one.value) for one in everything] == texts, "a replay owns nothing of them"
    loaded = PrismMemory.load(SCHEMA, base_json=base, amendments=since)
    assert loaded.value_json == kept.value_json == canonical(model)
    assert loaded.segments() == kept.segments()


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("$.topics.a", {"topics": {"b": []}, "pairs": {"p": ["l", "r"]}}),
        ("$.topics.a[0]", {"topics": {"a": ["y"], "b": []}, "pairs": {"p": ["l", "r"]}}),
        ("$.topics.a[-2]", {"topics": {"a": ["y"], "b": []}, "pairs": {"p": ["l", "r"]}}),
        ("/topics/a/1", {"topics": {"a": ["x"], "b": []}, "pairs": {"p": ["l", "r"]}}),
        ("$.topics", {"pairs": {"p": ["l", "r"]}}),
    ],
)
def test_what_is_removed_is_gone_and_what_is_behind_it_moves_up(path: str, left: Any) -> None:
    value: Any = {"topics": {"a": ["x", "y"], "b": []}, "pairs": {"p": ["l", "r"]}}
    before = canonical(value)
    settled, _ = settle(SCHEMA, value, Path.parse(path))
    assert remove(SCHEMA, value, settled) == left
    assert canonical(value) == before
    gone = Amendment(path=settled, op=Op.REMOVE, value=None)
    assert replay(SCHEMA, value, [gone]) is value
    assert value == left


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("$", "nothing that could be removed"),
        ("$.count", "nothing that could be removed"),
        ("$.topics.z", "nothing that could be removed"),
        ("$.topics.a[2]", "nothing that could be removed"),
        ("$.topics.a[-]", "nothing that could be removed"),
        ("$.pairs.p[0]", "keeps all its items"),
    ],
)
def test_what_cannot_be_removed_says_why(path: str, reason: str) -> None:
    value: Any = {"topics": {"a": ["x", "y"]}, "pairs": {"p": ["l", "r"]}}
    settled, _ = settle(SCHEMA, value, Path.parse(path))
    with pytest.raises(Mismatch, match=reason):
        remove(SCHEMA, value, settled)


def test_replaying_touches_only_what_lies_on_the_way() -> None:
    value: Any = {"topics": {"a": ["x"], "b": ["y"]}}
    topics: Any = value["topics"]
    other: Any = topics["b"]
    added = Amendment(path=Path(("topics", "a", 1)), op=Op.ADD, value="z")
    after: Any = replay(SCHEMA, value, [added])
    assert after["topics"] is topics
    assert topics["b"] is other
    assert topics["a"] == ["x", "z"]


def test_what_is_known_is_not_lost_to_a_path_below_it() -> None:
    with pytest.raises(Mismatch, match="holds something else"):
        put(SCHEMA, {"topics": "not a dict"}, Path(("topics", "a")), [])
    with pytest.raises(Mismatch, match="nothing can be put below"):
        put(SCHEMA, {"count": 3}, Path(("count", "a")), 1)
    assert put(SCHEMA, {"people": None}, Path(("people", 0, "name")), "Ada") == {
        "people": [{"name": "Ada"}]
    }
    assert put(SCHEMA, {"topics": {"a": "????"}}, Path(("topics", "a", 0)), "x") == {
        "topics": {"a": ["x"]}
    }


@pytest.mark.parametrize("path", ["$.topics.a[-3]", "$.topics.b[-1]", "$.topics.z[-1]"])
def test_an_index_from_the_end_has_to_be_there(path: str) -> None:
    value: Any = {"topics": {"a": ["x", "y"], "b": []}}
    with pytest.raises(Mismatch, match="items; none is at -"):
        settle(SCHEMA, value, Path.parse(path))
    pair: Any = {"pairs": {"p": ["l", "r"]}}
    assert settle(SCHEMA, pair, Path.parse("$.pairs.p[-1]"))[0] == Path(("pairs", "p", 1))
    with pytest.raises(Mismatch, match="has 2 items"):
        settle(SCHEMA, pair, Path.parse("$.pairs.p[-3]"))


def test_nothing_is_at_an_index_that_counts_backwards() -> None:
    assert value_at([1, 2], Path((-1,))) is value_at({}, Path(("a",)))
