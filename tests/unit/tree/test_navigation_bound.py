"""A navigation ends after as many calls as the depth of its tree allows."""

from collections.abc import Callable

import pytest

from service.domain.answers.trajectory import Action, EventKind, NoAnswer
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.tree.exploring import SPARE_CALLS, WAYS, most_calls
from tests import ROOT
from tests.support.contents import LeafContent, TriageContent, content_of
from tests.unit.tree.navigating import UP, Model, Shape, Tree, down, run, says

#: What a client may ask for at most.
MOST = 1000


def tree_of(depth: int, children: int = 4) -> Shape:
    """Returns a tree in which every leaf is as deep."""
    return "text" if depth == 0 else [tree_of(depth - 1, children) for _ in range(children)]


def reads_all(ask: ModelRequest) -> str:
    """Enters each child, and finds nothing in any leaf: as with code that is to be continued."""
    content = content_of(ask)
    return down(content.open[0]) if isinstance(content, TriageContent) else UP


def never_reads(ask: ModelRequest) -> str:
    """Goes back up as soon as it may."""
    content = content_of(ask)
    if isinstance(content, TriageContent) and not content.may_revert:
        return down(content.open[0])
    return UP


def back_and_forth() -> Model:
    """Goes down and up in turn, and names what was refuted before what is open."""
    asked: dict[str, int] = {}

    def reply(ask: ModelRequest) -> str:
        content = content_of(ask)
        if not isinstance(content, TriageContent):
            return UP
        closed = [n for n in range(len(content.summaries)) if n not in content.open]
        turn = asked[content.summaries[0]] = asked.get(content.summaries[0], -1) + 1
        if closed and turn % 2:
            return down(closed[0])
        return UP if content.may_revert and turn % 3 == 2 else down(content.open[-1])

    return reply


@pytest.mark.parametrize("depth", range(1, 7))
@pytest.mark.parametrize("model", [lambda: reads_all, lambda: never_reads, back_and_forth])
def test_the_bound_rises_with_the_depth_and_not_with_the_leaves(
    depth: int, model: Callable[[], Model]
) -> None:
    got = run(Tree(tree_of(depth)), model(), max_calls=MOST)
    assert got.result.no_answer is NoAnswer.NOT_FOUND
    assert got.result.statistics.calls == len(got.asks) <= WAYS * (depth + 1) + SPARE_CALLS
    assert got.events[-1].kind is EventKind.END


def test_the_guide_has_the_figures_of_the_code() -> None:
    page = " ".join((ROOT / "docs/guides/trees.md").read_text().split())
    assert f"{WAYS} for each level, leaves included, and {SPARE_CALLS} more" in page
    for depth in (1, 2, 3, 4, 6):
        most = most_calls(depth, beam=1, first_leaves=0)
        assert f"| {depth} | {8**depth:,} | {most} |" in page


@pytest.mark.parametrize(("beam", "first"), [(1, 3), (4, 0), (2, 5)])
def test_a_beam_and_leaves_to_begin_with_have_calls_of_their_own(beam: int, first: int) -> None:
    tree = Tree(tree_of(4), best=tuple(f"r.0.0.0.{n}" for n in range(4)))
    got = run(tree, reads_all, max_calls=MOST, beam=beam, hybrid_leaves=first)
    assert got.result.bounded
    assert len(got.asks) <= most_calls(4, beam=beam, first_leaves=first)


def test_all_of_a_small_tree_is_read() -> None:
    got = run(Tree(tree_of(1, 8)), reads_all, max_calls=MOST)
    assert got.result.statistics.leaves_read == 8
    assert (got.result.no_answer, got.result.bounded) == (NoAnswer.NOT_FOUND, False)


def leaf_says(*needed: str) -> Model:
    """Returns a model that answers from a text with all of these words."""

    def reply(ask: ModelRequest) -> str:
        content = content_of(ask)
        if isinstance(content, LeafContent):
            return says(" and ".join(needed)) if all(n in content.text for n in needed) else UP
        return reads_all(ask)

    return reply


def test_the_leaves_that_were_read_may_say_together_what_none_says_alone() -> None:
    shape = [["one text of alpha", "another"], ["one text of omega", "another"], *tree_of(3)]
    got = run(Tree(shape), leaf_says("alpha", "omega"), max_calls=MOST, query="omega?")
    assert (got.result.text, got.result.no_answer) == ("alpha and omega", None)
    assert got.result.leaves in (("r.0.0",), ("r.1.0",))
    merge = got.events[-2]
    assert (merge.kind, merge.action) == (EventKind.MERGE, Action.ANSWER)
    assert {"r.0.0", "r.1.0"} <= set(merge.shown)
    assert len(got.asks) == most_calls(got.events[0].level, beam=1, first_leaves=0)
    # In the order of the text, whatever fits the question best.
    assert got.asks[-1].text.index("alpha") < got.asks[-1].text.index("omega")


def test_what_was_not_found_is_not_said_to_be_nowhere() -> None:
    got = run(Tree(tree_of(4)), reads_all, max_calls=MOST)
    assert (got.result.no_answer, got.result.bounded) == (NoAnswer.NOT_FOUND, True)
    assert (got.events[-2].kind, got.events[-2].action) == (EventKind.MERGE, Action.REVERT)
    assert (got.events[-1].action, got.events[-1].text) == (Action.NONE, "not_found")


@pytest.mark.parametrize("max_calls", [1, 5, 11])
def test_a_client_may_allow_fewer_calls(max_calls: int) -> None:
    got = run(Tree(tree_of(4)), reads_all, max_calls=max_calls)
    assert (got.result.no_answer, got.result.bounded) == (NoAnswer.STEP_LIMIT, False)
    assert len(got.asks) <= max_calls


def test_a_refusal_of_several_leaves_is_no_answer() -> None:
    def reply(ask: ModelRequest) -> str | ModelReply:
        content = content_of(ask)
        if isinstance(content, LeafContent) and "text\n\ntext" in content.text:
            return ModelReply(text="", model="m", end=End.REFUSAL, said="not that")
        return reads_all(ask)

    got = run(Tree(tree_of(4)), reply, max_calls=MOST)
    assert (got.result.no_answer, got.events[-2].action) == (NoAnswer.NOT_FOUND, Action.INVALID)


def test_leaves_that_have_no_room_together_are_not_read_again() -> None:
    def long(depth: int) -> Shape:
        return "word " * 900 if depth == 0 else [long(depth - 1)] * 4

    got = run(Tree(long(4)), reads_all, max_calls=MOST, window_tokens=2200)
    assert got.result.bounded
    assert EventKind.MERGE not in {event.kind for event in got.events}


def test_with_options_a_call_is_kept_for_a_guess() -> None:
    got = run(
        Tree(tree_of(4)),
        lambda ask: says("(B)") if ask.template.startswith("tree.guess") else reads_all(ask),
        max_calls=MOST,
        options=("at sea", "on land"),
    )
    assert (got.result.text, got.result.guessed) == ("on land", True)
    assert len(got.asks) == most_calls(4, beam=1, first_leaves=0)
    assert [one.template for one in got.asks[-2:]] == ["tree.leaf/2", "tree.guess/1"]
