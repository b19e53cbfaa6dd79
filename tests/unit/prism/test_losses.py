"""Losses: proposals rejected for want of room are reported to readers."""

import json

from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amendments import Rules
from service.domain.prism.losses import LossKind, after_change, after_schema, after_step, losses_of
from service.domain.prism.memory import PrismMemory
from service.domain.prism.revisions import has_room, parse_reply
from service.domain.prism.schemas.source import parse_source
from service.domain.values.json_values import Json

SCHEMA = parse_source("class N:\n    topics: dict[str, str]\n")
RULES = Rules(max_memory_bytes=300, max_breadth=5, max_value_bytes=150, may_remove=True)

topics = st.sampled_from("abcdefgh")
lines = st.one_of(
    st.tuples(st.just("put"), topics, st.integers(0, 200)),
    st.tuples(st.just("remove"), topics, st.just(0)),
)


def reply(said: list[tuple[str, str, int]]) -> str:
    puts = [
        json.dumps({f"$.topics.{topic}": {"add": "x" * size}})
        for kind, topic, size in said
        if kind == "put"
    ]
    gone = [f"$.topics.{topic}" for kind, topic, _ in said if kind == "remove"]
    return "\n".join(["[OBJECTS FOR ADD]", *puts, "[OBJECTS FOR REMOVE]", *gone])


@given(st.lists(st.lists(lines, max_size=6), max_size=25))
def test_whatever_finds_no_room_is_told_until_there_is_room_again(
    steps: list[list[tuple[str, str, int]]],
) -> None:
    memory, stored = PrismMemory.create(SCHEMA), None
    missing, since = 0, 0
    for number, said in enumerate(steps, start=1):
        revision = parse_reply(reply(said), SCHEMA, memory.value, RULES)
        memory = memory.apply(number, revision.amendments)
        changed = after_step(stored, revision, memory.value, RULES, first_position=number)
        stored = stored if changed is None else changed
        # By what is stored and shown to people, not by the mark that the code counts.
        crowded = sum(
            one.reason.startswith(("the memory would have", "a list or dict would have"))
            for one in revision.rejections
        )
        if crowded:
            missing, since = missing + crowded, since or number
        elif has_room(memory.value, RULES):
            missing, since = 0, 0
        told = [
            (one.count, one.since_position)
            for one in losses_of(stored)
            if one.kind is LossKind.NO_ROOM
        ]
        assert told == ([(missing, since)] if missing else [])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30))
def test_a_run_of_rejections_is_told_from_its_third_step_on(
    steps: list[tuple[int, int]],
) -> None:
    memory, stored = PrismMemory.create(SCHEMA), None
    run: list[tuple[int, int]] = []
    rules = Rules()
    for number, (good, bad) in enumerate(steps, start=1):
        said = [{f"$.topics.t{number}_{n}": {"add": "x"}} for n in range(good)]
        said += [{f"$.wrong.t{n}": {"add": "x"}} for n in range(bad)]
        text = "\n".join(["[OBJECTS FOR ADD]", *map(json.dumps, said)])
        revision = parse_reply(text, SCHEMA, memory.value, rules)
        memory = memory.apply(number, revision.amendments)
        changed = after_step(stored, revision, memory.value, rules, first_position=number)
        stored = stored if changed is None else changed
        if bad > good:
            run.append((number, bad))
        elif good:
            run = []
        told = [(one.steps, one.count, one.since_position) for one in losses_of(stored)]
        whole = (len(run), sum(bad for _, bad in run), run[0][0]) if len(run) >= 3 else None
        assert told == ([whole] if whole else [])


def test_a_change_by_hand_ends_what_it_mends() -> None:
    tally = {"count": 3, "steps": 3, "since_position": 7}
    stored = {"no_room": tally, "invalid": tally}
    full: Json = {"topics": {"a": "x" * 280}}
    small: Json = {"topics": {"a": "x" * 100}}
    wide: Json = {"topics": dict.fromkeys("abcde", "")}
    assert after_change(stored, full, RULES) is None
    assert after_change(stored, small, RULES) == {"invalid": tally}
    assert after_change(stored, wide, RULES) is None, "it has as many entries as it may have"
    assert after_schema(stored) == {"no_room": tally}
    assert after_change(None, small, RULES) is None
    assert after_schema({}) is None
