"""Navigation with a scripted model: every action, and every way that it ends."""

from dataclasses import replace
from typing import Any

import pytest

from service.domain.answers.trajectory import (
    Action,
    EventKind,
    NoAnswer,
)
from service.domain.prompting.asking import NoUse
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import Children, Text
from service.domain.tree.spec import WorkingMemory
from service.domain.values.memory_specs import ReplyFormat
from tests.support.contents import LeafContent, TriageContent, content_of
from tests.unit.tree.navigating import SPEC, UP, Tree, down, notes, run, says, scripted

#: Two parents of two leaves each.
TREE = (("alpha", "beta"), ("gamma", "delta"))


def tree(shape: Any = TREE) -> Tree:
    return Tree(shape)


def test_it_goes_down_to_a_leaf_and_answers() -> None:
    got = run(tree(), scripted(down(1), down(0), says("It is gamma.")))
    assert got.result.text == "It is gamma."
    assert got.result.no_answer is None
    assert got.result.leaves == ("r.1.0",)
    assert got.result.reasoning == "it is there"
    assert got.moves() == [
        ("r", "enter"),
        ("r.1", "enter"),
        ("r.1.0", "answer"),
        ("end", "answer"),
    ]
    statistics = got.result.statistics
    assert (statistics.calls, statistics.valid_actions, statistics.leaves_read) == (3, 3, 1)
    assert (statistics.tokens, statistics.text_tokens) == (36, 1000)


def test_events_say_what_was_seen_and_done() -> None:
    got = run(tree(), scripted(down(1), down(0), says("gamma")), tokens=(100, 40, 7))
    first, second, leaf, end = got.events
    assert [event.ordinal for event in got.events] == [1, 2, 3, 4]
    assert (first.kind, first.shown, first.targets) == (
        EventKind.TRIAGE,
        ("r.0", "r.1"),
        ("r.1",),
    )
    assert (second.depth, second.level, second.from_position, second.to_position) == (1, 1, 3, 4)
    assert second.reasoning == "it fits"
    assert second.reply == down(0)
    assert (leaf.kind, leaf.text, leaf.template, leaf.depth) == (
        EventKind.LEAF,
        "gamma",
        "tree.leaf/2",
        2,
    )
    assert (leaf.input_tokens, leaf.cached_tokens, leaf.output_tokens) == (100, 40, 7)
    assert (end.kind, end.text, end.template, end.node_id) == (EventKind.END, "gamma", "", "")


def test_all_calls_are_for_navigating() -> None:
    got = run(tree(), scripted(down(1), down(0), says("gamma")))
    assert {ask.purpose for ask in got.asks} == {Purpose.NAVIGATE}


def test_it_goes_back_to_the_parent_which_knows_what_was_read() -> None:
    got = run(tree(), scripted(down(0), down(1), UP, down(0), says("alpha")))
    assert got.moves()[1:4] == [("r.0", "enter"), ("r.0.1", "revert"), ("r.0", "enter")]
    again = content_of(got.asks[3])
    assert isinstance(again, TriageContent)
    assert again.open == (0,)
    assert "did not have the answer: 1." in got.asks[3].text
    assert got.result.statistics.reverts == 1


def test_what_was_read_cannot_be_chosen_again() -> None:
    got = run(tree(), scripted(down(0), down(1), UP, down(1), down(0), says("alpha")))
    assert got.moves()[3:5] == [("r.0", "invalid"), ("r.0", "enter")]
    assert "was read already" in got.events[3].text
    assert "was read already" in got.asks[4].text
    assert [event.attempt for event in got.events[3:5]] == [1, 2]
    assert [ask.attempt for ask in got.asks[3:5]] == [0, 1]


def test_a_node_with_nothing_left_is_left_without_a_call() -> None:
    got = run(tree(), scripted(down(0), down(0), UP, down(1), UP, down(1), down(0), says("g")))
    # After the second leaf comes the root, not r.0.
    assert got.moves()[4:6] == [("r.0.1", "revert"), ("r", "enter")]
    assert got.result.text == "g"


def test_an_inner_node_can_be_left_without_reading_all_of_it() -> None:
    got = run(tree(), scripted(down(0), UP, down(1), down(1), says("delta")))
    assert got.moves()[:3] == [("r", "enter"), ("r.0", "revert"), ("r", "enter")]
    assert got.events[0].targets == ("r.0",)
    assert got.result.leaves == ("r.1.1",)


def test_with_one_child_left_it_is_still_asked() -> None:
    got = run(tree(), scripted(down(0), UP, down(1), down(0), UP, UP))
    # r.1 still has a child, yet the model goes up; nothing is left then.
    assert got.moves()[-2:] == [("r.1", "revert"), ("end", "none")]
    assert got.result.no_answer is NoAnswer.NOT_FOUND


def test_when_nothing_is_left_there_is_no_answer() -> None:
    got = run(tree(("a", "b")), scripted(down(0), UP, down(1), UP))
    assert got.result.no_answer is NoAnswer.NOT_FOUND
    assert (got.result.text, got.result.leaves) == ("", ())
    assert got.events[-1].text == "not_found"
    assert got.result.statistics.leaves_read == 2


def test_the_root_offers_no_way_back() -> None:
    got = run(tree(), scripted(UP, UP, UP))
    first = content_of(got.asks[0])
    assert isinstance(first, TriageContent)
    assert not first.may_revert
    assert "[MOVES]\n0, 1\n" in got.asks[0].text
    assert got.result.no_answer is NoAnswer.UNREADABLE
    assert got.result.statistics.invalid_actions == 3


def test_below_the_root_the_way_back_is_offered() -> None:
    got = run(tree(), scripted(down(1), down(0), says("gamma")))
    assert "[MOVES]\n0, 1, -1\n" in got.asks[1].text


def test_three_unreadable_replies_in_a_row_end_it() -> None:
    got = run(tree(), scripted(down(0), "hm", "hm", "hm"))
    assert got.result.no_answer is NoAnswer.UNREADABLE
    assert [event.attempt for event in got.events[1:4]] == [1, 2, 3]
    assert got.result.statistics.invalid_actions == 3
    assert len({(ask.text, ask.attempt) for ask in got.asks}) == len(got.asks)


def test_two_unreadable_replies_do_not_and_are_forgotten() -> None:
    replies = ("hm", "", down(0), "hm", "hm", down(1), "hm", "hm", says("beta"))
    got = run(tree(), scripted(*replies))
    assert got.result.text == "beta"
    assert got.result.statistics.invalid_actions == 6


def test_the_calls_that_it_may_cost_are_a_limit() -> None:
    got = run(tree(), scripted(down(0), down(1)), max_calls=2)
    assert got.result.no_answer is NoAnswer.STEP_LIMIT
    assert got.result.statistics.calls == 2
    assert got.events[-1].text == "step_limit"


def test_an_answer_by_the_last_call_counts() -> None:
    got = run(tree(), scripted(down(0), down(1), says("beta")), max_calls=3)
    assert got.result.text == "beta"


def test_a_tree_of_one_leaf_is_read_at_once() -> None:
    got = run(tree("alone"), scripted(says("alone")))
    assert got.moves() == [("r", "answer"), ("end", "answer")]
    assert got.result.leaves == ("r",)


def test_a_lone_leaf_without_the_answer_ends_it() -> None:
    got = run(tree("alone"), scripted(UP))
    assert got.result.no_answer is NoAnswer.NOT_FOUND


def test_a_root_with_one_child_is_passed_without_a_call() -> None:
    got = run(tree((("a", "b"),)), scripted(down(1), says("b")))
    assert got.moves()[:2] == [("r", "none"), ("r.0", "enter")]
    assert (got.events[0].targets, got.events[0].template) == (("r.0",), "")
    assert got.result.statistics.valid_actions == 2
    none = run(tree(("a",)), scripted(UP))
    assert none.result.no_answer is NoAnswer.NOT_FOUND


def test_without_text_there_is_nothing_to_ask() -> None:
    got = run(tree(""), scripted())
    assert got.result.no_answer is NoAnswer.EMPTY
    assert got.moves() == [("end", "none")]


def test_minus_two_at_an_inner_node_is_no_move() -> None:
    got = run(tree(), scripted(says("x"), down(0), down(0), says("alpha")))
    assert got.moves()[0] == ("r", "invalid")
    assert "-2 is not open here" in got.events[0].text


def test_a_child_number_at_a_leaf_is_no_move() -> None:
    got = run(tree(), scripted(down(0), down(0), down(1), says("alpha")))
    assert got.moves()[2] == ("r.0.0", "invalid")


def test_nodes_are_looked_up_once() -> None:
    one = tree()
    run(one, scripted(down(0), down(1), UP, "hm", down(0), "hm", says("alpha")))
    looked = [lookup for lookup in one.lookups if isinstance(lookup, Children | Text)]
    assert len(looked) == len(set(looked))


# Options

OPTIONS = ("The sun", "The moon", "Neither")


def test_options_stand_in_leaf_prompts_only() -> None:
    got = run(tree(), scripted(down(0), down(0), says("(B)")), options=OPTIONS)
    assert got.result.text == "The moon"
    assert ["(B) The moon" in ask.text for ask in got.asks] == [False, False, True]
    leaf = content_of(got.asks[2])
    assert isinstance(leaf, LeafContent)
    assert leaf.options == OPTIONS


def test_an_answer_that_is_no_option_is_asked_again() -> None:
    replies = (down(0), down(0), says("Venus"), says("the SUN."))
    got = run(tree(), scripted(*replies), options=OPTIONS)
    assert got.moves()[2] == ("r.0.0", "invalid")
    assert "none of the options" in got.asks[3].text
    assert got.result.text == "The sun"


# Reasoning and structured replies


def test_reasoning_can_be_switched_off() -> None:
    spec = replace(SPEC, reasoning=False)
    got = run(tree(), scripted("Action: 0", "1", "Action: -2\nAnswer: b"), spec=spec)
    assert got.result.text == "b"
    assert not any('"notes"' in ask.text for ask in got.asks)
    assert '"notes"' in run(tree(), scripted(UP, UP, UP)).asks[0].text


def test_replies_are_json_by_a_schema_that_every_provider_takes() -> None:
    replies = (
        '{"notes": "n", "action": ["0"]}',
        '{"notes": "n", "action": ["1"]}',
        '{"notes": "because", "action": "-2", "answer": "beta"}',
    )
    got = run(tree(), scripted(*replies))
    assert (got.result.text, got.result.reasoning) == ("beta", "because")
    triage, again, leaf = (ask.reply_schema for ask in got.asks)
    assert triage == again
    assert triage is not None
    assert leaf is not None
    assert triage["properties"]["action"] == {"type": "array", "items": {"type": "string"}}
    assert leaf["properties"]["action"] == {"type": "string", "enum": ["-2", "-1"]}
    for schema in (triage, leaf):
        assert schema["required"] == list(schema["properties"])
        assert schema["required"][0] == "notes"
        assert schema["additionalProperties"] is False


def test_where_replies_are_text_there_is_no_schema_and_the_same_prompt() -> None:
    replies = (down(0), down(1), says("beta"))
    by_schema = run(tree(), scripted(*replies))
    spec = replace(SPEC, reply_format=ReplyFormat.TEXT)
    as_text = run(tree(), scripted(*replies), spec=spec)
    assert [ask.reply_schema for ask in as_text.asks] == [None] * 3
    assert [ask.segments for ask in as_text.asks] == [ask.segments for ask in by_schema.asks]


def ended(text: str, end: End, said: str = "") -> ModelReply:
    return ModelReply(text=text, model="m", end=end, said=said)


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        (End.LENGTH, "too long, and was cut off"),
        (End.THINKING, "all of it was thinking"),
        (End.EMPTY, "it was empty"),
        (End.TOOL_CALL, "it called a tool"),
        (End.UNKNOWN, "it was broken off"),
    ],
)
def test_a_reply_that_did_not_end_is_asked_for_again(end: End, fault: str) -> None:
    text = says("alpha") if end is End.LENGTH else ""
    replies = (down(0), down(0), ended(text, end), says("beta"))
    got = run(tree(), scripted(*replies), window_tokens=32_000)
    assert got.moves()[2] == ("r.0.0", "invalid")
    assert (got.events[2].end, got.result.text) == (end, "beta")
    first, again = got.asks[2:]
    assert again.text.startswith(first.text)
    assert fault in again.text
    grows = end in (End.LENGTH, End.THINKING)
    assert again.max_output_tokens == first.max_output_tokens * (2 if grows else 1)


@pytest.mark.parametrize("end", [End.REFUSAL, End.FILTER])
def test_a_refusal_ends_it_with_its_words(end: End) -> None:
    told: list[Any] = []
    with pytest.raises(NoUse, match="refused the text: not that") as refused:
        run(tree(), scripted(down(0), ended("", end, "not that")), heard=told)
    assert refused.value.end is end
    assert [event.action for event in told] == [Action.ENTER, Action.INVALID]


# Working memory

#: Three levels of inner nodes: a chain of two below the root.
DEEP = (((("a", "b"), "c"), "d"), "e")
TO_A = (down(0), down(0), down(0), down(0), says("a"))


def test_the_summaries_on_the_way_down_are_carried() -> None:
    got = run(tree(DEEP), scripted(*TO_A))
    assert notes(got) == [
        "",
        "",
        "about r.0",
        "about r.0\n\nabout r.0.0",
        "about r.0\n\nabout r.0.0\n\nabout r.0.0.0",
    ]


def test_in_a_tree_of_one_level_the_roots_summary_is_carried() -> None:
    got = run(tree(("a", "b")), scripted(down(0), UP, down(1), says("b")))
    assert notes(got) == ["", "about r", "", "about r"]
    # A leaf right below the root of a larger tree has nothing nearer either.
    mixed = run(tree((("a", "b"), "c")), scripted(down(1), UP, down(0), says("a")))
    assert notes(mixed)[:2] == ["", "about r"]
    deeper = run(tree((("a", "b"), "c")), scripted(down(0), down(0), says("a")))
    assert notes(deeper) == ["", "", "about r.0"]


def test_a_shortened_memory_has_room_for_thoughts() -> None:
    spec = replace(SPEC, working_memory=WorkingMemory.SUMMARIZED, working_memory_tokens=16)
    replies = (down(0), down(0), ended("It is. It w", End.LENGTH), says("a"))
    about = "a long tale of many words that say nothing at all but go on and on"
    one = Tree((("a", "b"), "c"), about=about)
    assert estimate_tokens(one.views["r.0"].summary) > 16
    got = run(one, scripted(*replies), spec=spec)
    assert got.asks[2].template == "tree.remember/2"
    assert got.asks[2].max_output_tokens == 1024 + 32
    assert notes(got)[-1] == "It is. …"


def test_the_working_memory_can_be_off() -> None:
    spec = replace(SPEC, working_memory=WorkingMemory.OFF)
    assert notes(run(tree(DEEP), scripted(*TO_A), spec=spec)) == [""] * 5


def test_it_is_cut_to_its_limit_the_nearest_first() -> None:
    # A summary has 8 or 9 tokens here: the nearest stays, the next is cut, the furthest goes.
    spec = replace(SPEC, working_memory_tokens=16)
    one = Tree(DEEP, about="a tale of many words about")
    last = notes(run(one, scripted(*TO_A), spec=spec))[-1]
    assert last == "a tale of many words …\n\na tale of many words about r.0.0.0"


def test_it_can_be_summarized_by_the_model() -> None:
    spec = replace(SPEC, working_memory=WorkingMemory.SUMMARIZED, working_memory_tokens=5)

    def model(ask: ModelRequest) -> str:
        if ask.template == "tree.remember/2":
            return "<think>\nHm.\n</think>\n in short "
        return says("a") if ask.template == "tree.leaf/2" else down(0)

    got = run(tree(DEEP), model, spec=spec)
    told = [event for event in got.events if event.kind is EventKind.WORKING_MEMORY]
    assert [(event.node_id, event.text, event.action) for event in told] == [
        ("r.0.0", "in short", Action.NONE),
        ("r.0.0.0", "in short", Action.NONE),
    ]
    assert notes(got)[-1] == "in short"
    assert got.result.statistics.calls == 7
    assert got.result.statistics.valid_actions == 5


def test_siblings_share_one_shortened_memory() -> None:
    spec = replace(SPEC, working_memory=WorkingMemory.SUMMARIZED, working_memory_tokens=1)
    shortened = 0

    def model(ask: ModelRequest) -> str:
        nonlocal shortened
        if ask.template == "tree.remember/2":
            shortened += 1
            return ""
        if ask.template == "tree.leaf/2":
            return UP
        return down(*content_of(ask).open[:1]) if isinstance(content_of(ask), TriageContent) else ""

    got = run(tree(), model, spec=spec)
    assert got.result.no_answer is NoAnswer.NOT_FOUND
    # One for each of the two parents, though each has two leaves and nothing came back.
    assert shortened == 2
    assert {e.action for e in got.events if e.kind is EventKind.WORKING_MEMORY} == {Action.INVALID}
