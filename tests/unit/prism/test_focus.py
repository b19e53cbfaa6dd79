"""What steps and questions are shown of a memory that is larger than they have room for."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism import asking as prism
from service.domain.prism import focus, pacing, prompts
from service.domain.prism.amending import MISSING, amend, value_at
from service.domain.prism.amendments import Amendment, Op, Revision, Rules
from service.domain.prism.focus import FocusedView, FocusEntry, focused, sections, taken_apart
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Need, StepBounds, Wish
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import Encoding, PrismSpec, StepScope
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import TextTooLong
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path
from tests.unit.support.logged import logged

SOURCE = """\
class Notes:
    class Person:
        age: int
        events: list[str]
    name: str
    topics: dict[str, list[str]]
    people: list[Person]
    about: dict[str, str]
"""
SPEC = PrismSpec(schema_source=SOURCE, steps=StepScope.FOCUSED, memory_tokens=400)
KEY = b"a key"
#: Titles of the parts that are shown, and what a whole has more than its lines.
CONSTANT = 16
WISH = Wish(applied_position=9, consolidate_position=None, consolidated_tokens=0)


def held(**fields: Any) -> PrismMemory:
    """Returns a memory with these fields, folded."""
    return PrismMemory.load(parse_source(SOURCE), base_json=canonical(fields), amendments=())


def town(topics: int = 60, people: int = 20) -> PrismMemory:
    """Returns a memory of some thousand tokens, in all the ways in which one can grow."""
    return held(
        name="Ada",
        topics={f"street {n}": [f"street {n} has {n} trees", "it is quiet"] for n in range(topics)},
        people=[{"age": n, "events": [f"person {n} came by boat {n}"]} for n in range(people)],
    )


def lines(view: FocusedView) -> dict[str, Json]:
    """Returns the entries that a view shows, by their paths."""
    _, _, shown = view.segments[1].text.partition("[ENTRIES]\n")
    found: dict[str, Json] = {}
    for line in shown.splitlines():
        found |= json.loads(line)
    return found


def tokens(view: FocusedView) -> int:
    return estimate_tokens("".join(segment.text for segment in view.segments))


values = st.recursive(
    st.text(max_size=30) | st.integers(0, 10**6) | st.none(),
    lambda below: (
        st.lists(below, max_size=6) | st.dictionaries(st.text(max_size=12), below, max_size=6)
    ),
    max_leaves=60,
)
memories = st.fixed_dictionaries(
    {
        "name": st.text(max_size=300),
        "topics": st.dictionaries(
            # No key has a NUL character.
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
            st.lists(st.text(max_size=60)),
            max_size=30,
        ),
        "people": st.lists(
            st.fixed_dictionaries({"age": st.integers(0, 99), "events": st.lists(st.text())}),
            max_size=20,
        ),
    }
)


@given(memories, st.text(max_size=200), st.integers(0, 600))
def test_a_view_never_passes_its_tokens_and_shows_what_is_there(
    fields: dict[str, Any], text: str, most: int
) -> None:
    memory = held(**fields)
    view = focused(memory, text, most)
    assert tokens(view) <= most + CONSTANT
    for path, value in lines(view).items():
        place = Path.parse(path)
        assert canonical(value_at(memory.value, place)) == canonical(value)  # type: ignore[arg-type]
        assert not view.hides(place)


@given(memories, st.integers(8, 600))
def test_the_entries_are_the_whole_memory_and_each_is_shown_or_hidden(
    fields: dict[str, Any], most: int
) -> None:
    memory = held(**fields)
    entries, _ = taken_apart(memory, most)
    view = focused(memory, "", most)
    assert {one.path for one in view.hidden} | set(map(Path, view.shown)) == {
        one.path for one in entries
    }
    assert all(view.hides(one.path) for one in view.hidden)
    # Written one after the other they make the memory again.
    made = amend(
        memory.schema, {}, [Amendment(path=e.path, op=Op.ADD, value=e.value) for e in entries]
    )
    assert canonical(made) == canonical(memory.value)


def test_what_fits_the_text_is_shown_at_the_indexes_that_it_has() -> None:
    memory = town()
    view = focused(memory, "Something fell in street 41; the person of boat 13 saw it.", 400)
    shown = lines(view)
    assert shown["$['topics']['street 41']"] == ["street 41 has 41 trees", "it is quiet"]
    assert shown["$['people'][13]"] == {"age": 13, "events": ["person 13 came by boat 13"]}
    assert shown["$['name']"] == "Ada", "what stands by itself is shown before all else"
    assert len(shown) < 80
    order = [str(one.path) for one in taken_apart(memory, 400)[0]]
    assert list(shown) == sorted(shown, key=order.index), "in the order of the memory"


def test_names_and_counts_say_what_else_there_is() -> None:
    view = focused(town(topics=500), "nothing", 400)
    keys, counts = view.segments[0].text, view.segments[1].text.partition("[ENTRIES]")[0]
    assert '"street 0"' in keys
    assert '"street 499"' not in keys
    assert '{"$[\'topics\']":"500 keys"}' in counts
    assert '{"$[\'people\']":"20 items"}' in counts
    assert tokens(view) <= 400 + CONSTANT


def test_lists_and_dicts_that_are_not_counted_are_counted_together() -> None:
    memory = held(people=[{"age": 1, "events": ["x" * 99] * 30} for _ in range(50)])
    counts = focused(memory, "", 400).segments[1].text.partition("[ENTRIES]")[0]
    named = counts.count("items")
    assert f"and {51 - named} more lists and dicts" in counts


def test_the_names_stay_as_they_are_while_the_memory_grows() -> None:
    views = [focused(town(topics=topics), f"street {topics}", 400) for topics in (300, 400, 500)]
    assert len({view.segments[0].text for view in views}) == 1
    assert len({view.segments[1].text for view in views}) == 3
    assert [segment.reusable for segment in views[0].segments] == [True, False]
    assert views[0].segments[0].lasting
    assert not focused(town(topics=3), "", 4000).segments[0].lasting, "more names may come"


def test_what_was_changed_last_is_shown_whatever_the_text_says() -> None:
    memory = town()
    new = Amendment(path=Path(("topics", "street 7", 2)), op=Op.ADD, value="a shop opened")
    changed = memory.apply(1, [new])
    assert "$['topics']['street 7']" not in lines(focused(memory, "nothing said", 400))
    assert "$['topics']['street 7']" in lines(focused(changed, "nothing said", 400))


def test_a_value_that_is_too_large_is_taken_apart_or_not_shown() -> None:
    memory = held(
        topics={"price": [f"ticket {n} costs {n} euros" for n in range(300)]},
        about={"long": "word " * 2000},
    )
    view = focused(memory, "ticket 217, and a word", 400)
    assert lines(view)["$['topics']['price'][217]"] == "ticket 217 costs 217 euros"
    assert view.hides(Path(("about", "long")))
    assert view.hides(Path(("topics", "price"))), "a part of it is not shown"
    assert view.hides(Path(("topics",)))
    assert not view.hides(Path(("topics", "price", 300))), "nothing is there yet"
    assert not view.hides(Path(("topics", "hours")))


@pytest.mark.parametrize("text", ["我住在海街", "ゆきは犬を飼う"])
def test_texts_without_blanks_find_what_fits_them(text: str) -> None:
    others = {f"t{n}": [f"nothing {n}"] for n in range(200)}
    memory = held(topics={**others, "home": ["海街很安静", "犬がいる"]})
    assert "$['topics']['home']" in lines(focused(memory, text, 200))


def reply(*changes: tuple[str, str, Json]) -> ModelReply:
    made = [{"op": op, "path": path, "value": json.dumps(value)} for op, path, value in changes]
    return ModelReply(text=json.dumps({"changes": made}), model="m")


def step(
    memory: PrismMemory, *replies: ModelReply, **rules: Any
) -> tuple[Revision, list[ModelRequest]]:
    """Returns one step with these replies, and what was asked."""
    flow = prism.revise(
        SPEC,
        memory,
        [logged(1, "It is said of street 1.")],
        marker_key=KEY,
        rules=Rules(**rules),
        focus_tokens=400,
    )
    return driven(flow, replies)


def driven(flow: Flow[Any], replies: Sequence[ModelReply]) -> tuple[Any, list[ModelRequest]]:
    asked: list[ModelRequest] = []
    given = iter(replies)
    try:
        asks = next(flow)
        while True:
            asked += asks
            asks = flow.send([next(given) for _ in asks])
    except StopIteration as end:
        assert next(given, None) is None, "a reply that was not asked for"
        return end.value, asked


def test_what_was_not_shown_is_shown_before_it_is_changed() -> None:
    path = "$.'topics'.'street 44'"
    careless = reply(("add", path, ["a new bench"]))
    careful = reply(("update", path, ["street 44 has 44 trees", "it is quiet", "a new bench"]))
    made, (first, second) = step(town(), careless, careful)
    assert "street 44" not in first.segments[2].text
    assert "street 44 has 44 trees" in second.segments[2].text
    assert second.segments[-1].text == prompts.now_shown_segment()
    assert estimate_tokens(second.text) <= estimate_tokens(first.text) + 60
    (amendment,) = made.amendments
    assert amendment.value == ["street 44 has 44 trees", "it is quiet", "a new bench"]
    assert not made.rejections


def test_what_the_first_reply_changed_is_shown_to_the_second_one() -> None:
    topics = {f"street {n}": ["it has trees"] for n in range(200)}
    right = ("update", "$.'about'.'Zed'", "a pilot")
    stray: tuple[str, str, Json] = ("add", "$.'topics'", {"the harbour": ["it is new"]})
    memory = held(topics=topics, about={"Zed": "a baker"})
    flow = prism.revise(
        SPEC,
        memory,
        [logged(1, "Zed flies now, far from the harbour.")],
        marker_key=KEY,
        rules=Rules(),
        focus_tokens=400,
    )
    view = focused(memory, "Zed flies now", 400)
    assert len(lines(view)) == 1, "no street fits"
    made, (first, second) = driven(flow, [reply(right, stray), reply(right)])
    assert "a baker" in first.text
    assert "it has trees" in second.text
    assert "a baker" in second.text
    assert [one.value for one in made.amendments] == ["a pilot"]
    assert not made.rejections


@pytest.mark.parametrize(
    ("reason", "tries"), [(End.FILTER, 1), (End.LENGTH, 2), (End.EMPTY, 3), (None, 3)]
)
def test_a_second_reply_of_no_use_does_not_sink_the_first_one(
    reason: End | None, tries: int
) -> None:
    careless = reply(
        ("add", "$.'about'.'sea'", "it is cold"), ("add", "$.'topics'.'street 44'", ["a bench"])
    )
    useless = ModelReply(text="no JSON", model="m", end=reason or End.COMPLETE)
    made, asked = step(town(), careless, *[useless] * tries)
    assert len(asked) == 1 + tries
    assert [one.value for one in made.amendments] == ["it is cold"]
    assert "was not shown" in made.rejections[0].reason


def test_nothing_is_asked_again_where_no_more_could_be_shown() -> None:
    topics = {f"street {n}": [f"street {n} has trees"] for n in range(200)}
    memory = held(topics=topics, people=[{"age": 7, "events": ["she is a pilot"]}])
    stray: tuple[str, str, Json] = ("add", "$.'topics'", {"the harbour": ["it is new"]})
    made, asked = step(memory, reply(("add", "$.'people'[0].'age'", 8), stray))
    assert len(asked) == 1, "what fits the text best was shown already"
    assert "was not shown" in made.rejections[-1].reason


def test_what_holds_too_much_leaves_room_for_what_fits_the_text() -> None:
    memory = held(topics=town().value["topics"], about={"sea": "a sailor told of it"})  # type: ignore[call-overload,index]
    view = focused(memory, "the sailor", 400, wanted=[Path(("topics",))])
    assert "$['about']['sea']" in lines(view)
    assert any("topics" in path for path in lines(view))


def test_many_wanted_places_are_found_in_as_many_passes_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(list[FocusEntry]):
        passes = 0

        def __iter__(self) -> Iterator[FocusEntry]:
            self.passes += 1
            return super().__iter__()

    memory, passes = town(), []
    entries, holders = taken_apart(memory, 400)
    for many in (1, 60):
        counted = Counted(entries)
        monkeypatch.setattr(focus, "taken_apart", lambda *_, held=counted: (held, holders))
        wanted = [Path(("topics", f"street {number}")) for number in range(many)]
        focused(memory, "nothing", 400, wanted=wanted)
        passes.append(counted.passes)
    assert passes[0] == passes[1]


def test_additions_beside_what_was_not_shown_need_no_second_look() -> None:
    made, asked = step(
        town(),
        reply(
            ("add", "$.'topics'.'street 44'[-]", "a new bench"),
            ("add", "$.'topics'.'the harbour'", ["it is new"]),
            ("add", "$.'people'[20]", {"age": 3, "events": []}),
        ),
    )
    assert len(asked) == 1
    assert [str(one.path) for one in made.amendments] == [
        "$['topics']['street 44'][2]",
        "$['topics']['the harbour']",
        "$['people'][20]",
    ]


def test_an_index_that_was_guessed_is_asked_for_again_with_the_list() -> None:
    wrong = reply(("add", "$.'topics'.'street 44'[7]", "a new bench"))
    right = reply(("add", "$.'topics'.'street 44'[2]", "a new bench"))
    made, (_, second) = step(town(), wrong, right)
    assert "street 44 has 44 trees" in second.segments[2].text
    assert [one.value for one in made.amendments] == ["a new bench"]


def test_what_is_there_already_is_not_asked_for_again() -> None:
    same = reply(("add", "$.'topics'.'street 44'", ["street 44 has 44 trees", "it is quiet"]))
    made, asked = step(town(), same)
    assert len(asked) == 1
    assert not made.amendments


@pytest.mark.parametrize("add_only", [False, True])
def test_what_is_not_shown_even_then_is_not_lost_but_rejected(add_only: bool) -> None:
    large = held(topics={"price": ["x" * 80 for _ in range(300)]}, about={"long": "word " * 2000})
    over = reply(("add", "$.'about'.'long'", "short"), ("add", "$.'topics'.'hours'", ["nine"]))
    made, asked = step(large, over, add_only=add_only)
    assert len(asked) == 1, "there is no room to show it: the same prompt would come again"
    assert [str(one.path) for one in made.amendments] == ["$['topics']['hours']"]
    (lost,) = made.rejections
    assert "was not shown" in lost.reason

    first = reply(("add", "$.'topics'.'price'", ["y"]), ("add", "$.'about'.'a'", "b"))
    made, asked = step(large, first, first, add_only=add_only)
    assert len(asked) == 2
    assert [str(one.path) for one in made.amendments] == ["$['about']['a']"]
    assert "was not shown" in made.rejections[0].reason


@pytest.mark.parametrize(("op", "reason"), [("remove", "removed"), ("update", "no updates")])
def test_what_may_not_be_done_is_not_asked_again(op: str, reason: str) -> None:
    path = "$.'topics'.'street 44'"
    made, asked = step(town(), reply((op, path, ["a new bench"])), add_only=True, may_remove=False)
    assert len(asked) == 1
    assert reason in made.rejections[0].reason
    assert not made.unseen


def test_what_a_reply_made_itself_it_may_change() -> None:
    path = "$.'topics'.'the harbour'"
    made, asked = step(town(), reply(("add", path, ["old"]), ("update", path, ["old", "new"])))
    assert len(asked) == 1
    assert [one.op for one in made.amendments] == [Op.ADD, Op.UPDATE]


def test_the_same_step_has_the_same_prompts_in_every_worker() -> None:
    first, again = (
        step(town(), reply(("add", "$.'people'[3]", {"age": 1, "events": []})), reply())[1]
        for _ in range(2)
    )
    assert [ask.segments for ask in first] == [ask.segments for ask in again]


def bounds(window: int, max_memory_bytes: int = 2**20) -> StepBounds:
    return StepBounds.of(window, 1000, max_memory_bytes)


def test_a_focused_memory_grows_past_its_budget_and_prompts_do_not() -> None:
    memory, roomy = town(), bounds(32_000)
    assert memory.live_tokens > 2 * SPEC.memory_tokens
    whole = replace(SPEC, steps=StepScope.WHOLE)
    assert pacing.next_need(whole, memory, roomy, WISH) is Need.CONSOLIDATION
    assert pacing.next_need(SPEC, memory, roomy, WISH) is Need.STEP
    assert pacing.focus_tokens(SPEC, memory, roomy) == 400
    assert pacing.focus_tokens(whole, memory, roomy) is None
    assert pacing.focus_tokens(SPEC, town(5, 0), roomy) is None, "it is shown whole"
    at_first, later = (pacing.room_tokens(SPEC, town(n), roomy) for n in (60, 600))
    assert at_first == later


def test_a_memory_larger_than_the_window_is_read_on_with() -> None:
    memory = town(topics=3000)
    small = bounds(4000)
    spec = replace(SPEC, memory_tokens=1_000_000)
    assert memory.live_tokens > 5 * 4000
    assert pacing.next_need(spec, memory, small, WISH) is Need.STEP
    shown = pacing.focus_tokens(spec, memory, small)
    assert shown is not None
    assert pacing.room_tokens(spec, memory, small) >= shown


def test_near_the_limit_of_bytes_a_focused_memory_is_consolidated() -> None:
    memory = town()
    tight = bounds(32_000, max_memory_bytes=memory.live_bytes * 3 // 2)
    assert pacing.next_need(SPEC, memory, tight, WISH) is Need.CONSOLIDATION
    tried = replace(WISH, consolidated_tokens=memory.live_tokens)
    assert pacing.next_need(SPEC, memory, tight, tried) is Need.STEP
    assert pacing.goal_tokens(SPEC, memory, bounds(32_000)) == memory.live_tokens
    assert 0.7 < pacing.goal_tokens(SPEC, memory, tight) / memory.live_tokens < 0.8


def test_a_consolidation_of_what_passes_the_window_goes_through_it_in_parts() -> None:
    memory = town(topics=20, people=120)
    flow = prism.consolidate(
        SPEC, memory, marker_key=KEY, rules=Rules(), budget_tokens=900, room_tokens=500
    )
    paths: list[str] = []
    removed: list[str] = []
    ask, made = next(flow)[0], None
    try:
        while True:
            assert ask.template == prompts.CONSOLIDATE_PART
            part = ask.segments[1].text
            assert estimate_tokens(part) < 540
            shown = re.findall(r'^\{"(\$.*?)":', part, re.MULTILINE)
            paths += shown
            removed.append(shown[0])
            # The first of each part goes, and what is not in it may not.
            gone = [("remove", shown[0], ""), ("remove", "$.'topics'", "")]
            ask = flow.send([reply(*gone)])[0]
    except StopIteration as end:
        made = end.value
    assert isinstance(made, Revision)
    parts = len(made.rejections)
    assert parts > 2
    assert sorted(paths) == sorted(str(one.path) for one in taken_apart(memory, 500)[0])
    assert len(made.amendments) == parts
    after = memory.apply(1, made.amendments)
    entries = taken_apart(memory, 500)[0]
    left = [canonical(one.value) for one in entries if str(one.path) not in removed]
    assert [canonical(one.value) for one in taken_apart(after, 500)[0]] == left
    assert sum("people" in path for path in removed) > 1, "parts that share a list"


def test_parts_of_a_consolidation_are_as_large_as_a_reply_can_change() -> None:
    memory = town(topics=3000)
    roomy = StepBounds.of(128_000, 1000, memory.live_bytes * 5 // 4)
    output = roomy.consolidation_output_tokens
    assert memory.live_tokens > 2 * output
    flow = prism.consolidate(
        SPEC,
        memory,
        marker_key=KEY,
        rules=Rules(),
        budget_tokens=pacing.goal_tokens(SPEC, memory, roomy),
        output_tokens=output,
        room_tokens=pacing.consolidation_tokens(roomy),
    )
    ask = next(flow)[0]
    assert ask.template == prompts.CONSOLIDATE_PART
    assert estimate_tokens(ask.segments[1].text) <= 2 * output + 60
    assert pacing.most_consolidation_tokens(memory, roomy) == 2 * output, "there is room to grow"


def test_a_single_value_may_have_more_than_a_part() -> None:
    memory = held(name="Ada", about={"long": "word " * 2000})
    parts = sections(memory, 500, room_tokens=4000)
    assert [len(view.entries) for view in parts] == [1, 1]


def test_a_part_whose_reply_finds_no_room_is_consolidated_in_halves() -> None:
    memory = town(topics=0, people=60)
    flow = prism.consolidate(
        SPEC, memory, marker_key=KEY, rules=Rules(), budget_tokens=300, room_tokens=600
    )
    cut, asks, paths = 0, [next(flow)[0]], list[str]()
    made = None
    try:
        while True:
            shown = re.findall(r'^\{"(\$.*?)":', asks[-1].segments[1].text, re.MULTILINE)
            if len(shown) > 8:
                cut += 1
                asks += flow.send([replace(reply(), end=End.LENGTH)])
                continue
            paths += shown
            asks += flow.send([reply(("remove", shown[0], ""))])
    except StopIteration as end:
        made = end.value
    assert isinstance(made, Revision)
    assert cut > 2
    order = [str(one.path) for one in taken_apart(memory, 600)[0]]
    assert sorted(paths, key=order.index) == order, "each entry was shown once"
    assert not made.rejections
    left, _ = taken_apart(memory.apply(1, made.amendments), 600)
    assert len(left) == len(order) - len(made.amendments)


def test_a_value_that_no_prompt_has_room_for_is_said() -> None:
    with pytest.raises(TextTooLong, match="shorten it by hand"):
        sections(held(about={"long": "word " * 2000}), 500)


@pytest.mark.parametrize("encoding", Encoding)
def test_a_question_is_shown_what_fits_it_where_the_window_is_too_small(encoding: Encoding) -> None:
    memory = replace(town(topics=2000), encoding=encoding)
    query = "How many trees has street 1234?"
    (ask,) = next(prism.answer(SPEC, memory, query, marker_key=KEY, window_tokens=4000))
    assert ask.template == prompts.ANSWER_FOCUSED
    assert "street 1234 has 1234 trees" in ask.text
    assert estimate_tokens(ask.text) + ask.max_output_tokens < 4000
    (ask,) = next(prism.answer(SPEC, memory, query, marker_key=KEY, window_tokens=400_000))
    assert ask.template == prompts.ANSWER


def test_entries_that_no_tokenizer_counted_leave_room_for_what_they_have_more() -> None:
    def exact(text: str) -> int:
        # A tokenizer finds about so many in a line of an entry.
        return -(-len(text.encode()) * 14 // 40)

    memory = town(topics=3000)
    query = "How many trees has street 1234?"
    (ask,) = next(prism.answer(SPEC, memory, query, marker_key=KEY, window_tokens=8000))
    assert exact(ask.text) + ask.max_output_tokens < 8000
    small = StepBounds.of(8000, 1000, 2**20)
    room, output = pacing.consolidation_tokens(small), small.consolidation_output_tokens
    flow = prism.consolidate(
        SPEC,
        memory,
        marker_key=KEY,
        rules=Rules(),
        budget_tokens=900,
        output_tokens=output,
        room_tokens=room,
    )
    ask = next(flow)[0]
    assert exact(ask.segments[1].text) < room
    counted = replace(memory, count=exact)
    assert pacing.entry_tokens(counted, room) == room


def test_an_answer_is_shown_no_more_than_it_needs_of_a_large_memory() -> None:
    memory = town(topics=12_000)
    query = "How many trees has street 1234?"
    (ask,) = next(prism.answer(SPEC, memory, query, marker_key=KEY, window_tokens=128_000))
    assert ask.template == prompts.ANSWER_FOCUSED
    assert "street 1234 has 1234 trees" in ask.text
    assert estimate_tokens(ask.text) < 34_000


def test_a_place_that_exists_is_never_taken_for_missing() -> None:
    view = focused(town(), "", 50)
    assert view.value is not None
    assert value_at(view.value, Path(("topics", "street 9"))) is not MISSING
    assert view.hides(Path(("topics", "street 9", 0)))
