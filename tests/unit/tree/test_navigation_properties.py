"""Properties of navigation: any tree, any replies."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.answers.trajectory import (
    Action,
    EventKind,
    NoAnswer,
)
from service.domain.prompting.flows import ModelRequest
from service.domain.tree import exploring
from service.domain.tree.spec import WorkingMemory
from tests.support.contents import LeafContent, MergeContent, TriageContent, content_of
from tests.support.properties import examples
from tests.unit.tree.navigating import SPEC, UP, Run, Tree, down, run, says

SHAPES: st.SearchStrategy[Any] = st.recursive(
    st.text("abc ", min_size=1, max_size=9),
    lambda below: st.lists(below, min_size=1, max_size=4).map(tuple),
    max_leaves=12,
)
#: What a model does at a node: a number picks a move, text is said as it is.
DOINGS = st.integers(0, 30) | st.sampled_from(["", "hm", "Action: 99", "Action: -2", "{", "-1"])
MEMORIES = st.sampled_from(list(WorkingMemory))


class Doing:
    """A model that does what it is given, mostly in the right form."""

    def __init__(self, doings: Sequence[int | str]) -> None:
        self.doings = doings
        self.calls = 0

    def __call__(self, ask: ModelRequest) -> str:
        self.calls += 1
        doing = self.doings[self.calls % len(self.doings)]
        if isinstance(doing, str):
            return doing
        match content_of(ask):
            case TriageContent(open=free, may_revert=may_revert, beam=beam):
                if may_revert and doing % 5 == 0:
                    return UP
                at = doing % len(free)
                return down(*(free[at:] + free[:at])[: 1 + doing % beam])
            case LeafContent():
                return UP if doing % 4 else says(f"answer {doing % 3}")
            case MergeContent(answers=answers):
                return f"Answer: {answers[doing % len(answers)]}"
        return "in short"


@st.composite
def runs(draw: st.DrawFn) -> tuple[Tree, Run, dict[str, Any]]:
    tree = Tree(draw(SHAPES), stored=draw(st.booleans()))
    leaves = sorted(tree.texts)
    tree.best = tuple(draw(st.lists(st.sampled_from(leaves), max_size=4, unique=True)))
    if tree.root.is_leaf:
        tree.best = ()
    spec = replace(SPEC, working_memory=draw(MEMORIES), working_memory_tokens=4)
    settled: dict[str, Any] = {
        "spec": spec,
        "beam": draw(st.integers(1, 4)),
        "hybrid_leaves": draw(st.integers(0, 3)),
        "max_calls": draw(st.integers(1, 40)),
    }
    model = Doing(draw(st.lists(DOINGS, min_size=1, max_size=40)))
    return tree, run(tree, model, **settled), settled


@settings(max_examples=examples(150))
@given(runs())
def test_it_ends_within_its_calls_and_says_how(given_run: tuple[Tree, Run, dict[str, Any]]) -> None:
    tree, got, settled = given_run
    assert got.result.statistics.calls == len(got.asks) <= settled["max_calls"]
    assert max(got.batches, default=0) <= settled["beam"]
    assert (got.result.no_answer is None) == bool(got.result.text)
    assert set(got.result.leaves) <= set(tree.texts)
    assert bool(got.result.leaves) == (got.result.no_answer is None)
    end = got.events[-1]
    assert end.kind is EventKind.END
    assert end.text == (got.result.no_answer.value if got.result.no_answer else got.result.text)


@settings(max_examples=examples(150))
@given(runs())
def test_no_leaf_is_read_twice_and_nothing_refuted_is_entered(
    given_run: tuple[Tree, Run, dict[str, Any]],
) -> None:
    tree, got, _ = given_run
    read = Counter(
        event.node_id
        for event in got.events
        if event.kind is EventKind.LEAF and event.action is not Action.INVALID
    )
    assert set(read.values()) <= {1}
    refuted: set[str] = set()
    for event in got.events:
        if event.action is Action.REVERT:
            assert event.node_id not in refuted
            refuted.add(event.node_id)
        if event.action is Action.ENTER:
            assert not refuted & set(event.targets)
            assert set(event.targets) <= set(tree.views[event.node_id].children)


@settings(max_examples=examples(150))
@given(runs())
def test_the_statistics_are_what_the_events_come_to(
    given_run: tuple[Tree, Run, dict[str, Any]],
) -> None:
    _, got, _ = given_run
    events = got.events
    assert [event.ordinal for event in events] == list(range(1, len(events) + 1))
    called = [event for event in events if event.template]
    moves = [e for e in called if e.kind in (EventKind.TRIAGE, EventKind.LEAF)]
    invalid = sum(event.action is Action.INVALID for event in moves)
    assert asdict(got.result.statistics) == {
        "calls": len(called),
        "valid_actions": len(moves) - invalid,
        "invalid_actions": invalid,
        "reverts": sum(event.action is Action.REVERT for event in moves),
        "leaves_read": len({e.node_id for e in moves if e.kind is EventKind.LEAF}),
        "tokens": sum(event.input_tokens + event.output_tokens for event in called),
        "text_tokens": 1000,
    }
    assert [event.template for event in called] == [ask.template for ask in got.asks]


@settings(max_examples=examples(100))
@given(runs())
def test_no_prompt_is_sent_twice_but_as_another_attempt(
    given_run: tuple[Tree, Run, dict[str, Any]],
) -> None:
    tree, got, _ = given_run
    if len(set(tree.texts.values())) == len(tree.texts):
        sent = Counter((ask.template, ask.text, ask.attempt) for ask in got.asks)
        assert set(sent.values()) <= {1}


def explored(tree: Tree, model: Any, **question: Any) -> Run:
    """Navigates without the limit that the depth of the tree sets."""
    with patch.object(exploring, "SPARE_CALLS", 1000):
        return run(tree, model, max_calls=1000, **question)


class Steady:
    """A model whose replies depend on the node alone, and which names one child at a time."""

    def __init__(self, choices: dict[str, int], golden: str) -> None:
        self.choices = choices
        self.golden = golden

    def __call__(self, ask: ModelRequest) -> str:
        if isinstance(content_of(ask), LeafContent):
            return says("found") if content_of(ask).text == self.golden else UP
        assert isinstance(content_of(ask), TriageContent)
        turn = self.choices.get(content_of(ask).summaries[0], 0)
        return down(content_of(ask).open[turn % len(content_of(ask).open)])


@settings(max_examples=examples(100))
@given(SHAPES, st.dictionaries(st.sampled_from(["about r.0", "about r.1.0"]), st.integers(0, 3)))
def test_with_one_child_at_a_time_a_beam_changes_nothing(
    shape: Any, choices: dict[str, int]
) -> None:
    model = Steady(choices, "b")
    narrow = explored(Tree(shape), model)
    wide = explored(Tree(shape), model, beam=4)
    assert narrow.moves() == wide.moves()
    assert narrow.result == wide.result


def paper_walk(tree: Tree, doings: dict[str, int]) -> list[str]:
    """Returns the nodes where the paper's walk asks the model, as plainly as possible."""
    asked: list[str] = []
    refuted: set[str] = set()
    node = "r"
    while "r" not in refuted and tree.root.children:
        children = tree.views[node].children
        free = [child for child in children if child not in refuted]
        if node == "r" and len(children) == 1 and free:
            node = free[0]
            continue
        if free:
            asked.append(node)
            if node == "r" or doings.get(node, 0) % 5:
                node = free[doings.get(node, 0) % len(free)]
                continue
        elif not children:
            asked.append(node)
        refuted.add(node)
        node = node.rpartition(".")[0]
    return asked or ["r"]


@settings(max_examples=examples(150))
@given(SHAPES, st.dictionaries(st.sampled_from(["r", "r.0", "r.1", "r.0.0"]), st.integers(0, 9)))
def test_with_a_beam_of_one_it_is_the_papers_walk(shape: Any, doings: dict[str, int]) -> None:
    tree = Tree(shape)

    def model(ask: ModelRequest) -> str:
        if not isinstance(content_of(ask), TriageContent):
            return UP
        # Its first child's summary ends with the node's name and ".0".
        node = content_of(ask).summaries[0].removeprefix("about ").removesuffix(".0")
        doing = doings.get(node, 0)
        if content_of(ask).may_revert and doing % 5 == 0:
            return UP
        return down(content_of(ask).open[doing % len(content_of(ask).open)])

    got = explored(tree, model)
    assert [event.node_id for event in got.events if event.template] == paper_walk(tree, doings)


@settings(max_examples=examples(100))
@given(SHAPES, st.integers(1, 4))
def test_who_never_gives_up_reads_every_leaf_once(shape: Any, beam: int) -> None:
    tree = Tree(shape)
    model = Steady({}, "nowhere")
    got = explored(tree, model, beam=beam)
    assert got.result.no_answer is NoAnswer.NOT_FOUND
    assert got.result.statistics.leaves_read == len(tree.texts)


@settings(max_examples=examples(100))
@given(SHAPES, st.integers(1, 4))
def test_the_answer_is_found_wherever_it_is(shape: Any, beam: int) -> None:
    tree = Tree(shape)
    holders = [name for name, text in tree.texts.items() if text == "b"]
    got = explored(tree, Steady({}, "b"), beam=beam)
    assert bool(got.result.leaves) == bool(holders)
    assert set(got.result.leaves) <= set(holders)
