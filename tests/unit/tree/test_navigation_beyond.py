"""What navigation does beyond the paper: several nodes at once, and leaves by retrieval."""

import pytest

from service.domain.answers.trajectory import (
    Action,
    EventKind,
    NoAnswer,
)
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply
from tests.unit.tree.navigating import UP, Tree, down, leaves_of, notes, run, says, scripted

#: Two parents of two leaves each.
TREE = (("alpha", "beta"), ("gamma", "delta"))
OPTIONS = ("The sun", "The moon", "Neither")


# Beam


def test_a_beam_explores_several_children_at_once() -> None:
    replies = (down(1, 0), down(0), down(1), says("gamma"), UP)
    got = run(Tree(TREE), scripted(*replies), beam=2)
    assert got.batches == [1, 2, 2]
    assert got.events[0].targets == ("r.1", "r.0")
    assert got.moves()[1:5] == [
        ("r.1", "enter"),
        ("r.0", "enter"),
        ("r.1.0", "answer"),
        ("r.0.1", "revert"),
    ]
    assert got.result.leaves == ("r.1.0",)


def test_equal_answers_of_a_round_are_cited_together() -> None:
    replies = (down(1, 0), down(0), down(1), says("The moon."), says("the moon"))
    got = run(Tree(TREE), scripted(*replies), beam=2)
    assert (got.result.text, got.result.leaves) == ("The moon.", ("r.1.0", "r.0.1"))
    assert got.result.statistics.calls == 5


def test_different_answers_are_merged_by_the_model() -> None:
    merged = "Reasoning: both\nAnswer: The sun and the moon\nSources: 1, 0"
    replies = (down(1, 0), down(0), down(1), says("The moon"), says("The sun"), merged)
    got = run(Tree(TREE), scripted(*replies), beam=2)
    assert got.result.text == "The sun and the moon"
    assert got.result.leaves == ("r.0.1", "r.1.0")
    merge = got.events[-2]
    assert (merge.kind, merge.action) == (EventKind.MERGE, Action.ANSWER)
    assert (merge.shown, merge.targets) == (("r.1.0", "r.0.1"), ("r.0.1", "r.1.0"))
    assert got.result.statistics.valid_actions == 5


def test_a_merge_that_picks_cites_whose_answer_it_is() -> None:
    replies = (down(1, 0), down(0), down(1), says("Moon"), says("Sun"), "Answer: sun")
    got = run(Tree(TREE), scripted(*replies), beam=2)
    assert got.result.leaves == ("r.0.1",)


@pytest.mark.parametrize("bad", ["", "Reasoning: hm", "Answer: Sun\nSources: 2", "Answer: ..."])
def test_a_merge_is_asked_again_and_three_times_at_most(bad: str) -> None:
    first = (down(1, 0), down(0), down(1), says("Moon"), says("Sun"))
    got = run(Tree(TREE), scripted(*first, bad, bad, "Answer: Sun"), beam=2)
    assert got.result.text == "Sun"
    got = run(Tree(TREE), scripted(*first, bad, bad, bad), beam=2)
    assert got.result.no_answer is NoAnswer.UNREADABLE
    got = run(Tree(TREE), scripted(*first, bad), beam=2, max_calls=6)
    assert got.result.no_answer is NoAnswer.STEP_LIMIT


def test_with_options_a_merge_keeps_to_what_was_answered() -> None:
    first = (down(1, 0), down(0), down(1), says("A"), says("B"))
    got = run(Tree(TREE), scripted(*first, "Answer: (C)", "Answer: (B)"), beam=2, options=OPTIONS)
    assert got.events[-3].text == "its answer is an option that none of the answers was"
    assert (got.result.text, got.result.leaves) == ("The moon", ("r.0.1",))


def test_with_a_beam_more_children_than_it_allows_are_no_move() -> None:
    got = run(Tree(("a", "b", "c")), scripted(down(0, 1, 2), down(2, 0), UP, says("a")), beam=2)
    assert got.moves()[0] == ("r", "invalid")
    assert got.result.leaves == ("r.0",)


def test_the_parent_is_asked_again_when_all_that_it_named_was_in_vain() -> None:
    replies = (down(0, 1), UP, UP, down(2), says("c"))
    got = run(Tree(("a", "b", "c")), scripted(*replies), beam=2)
    assert got.batches == [1, 2, 1, 1]
    assert "did not have the answer: 0, 1." in got.asks[3].text


# Hybrid


def hybrid(*best: str) -> Tree:
    one = Tree(TREE)
    one.best = best
    return one


def test_it_begins_with_the_leaves_that_retrieval_names() -> None:
    got = run(hybrid("r.1.1", "r.0.0"), scripted(UP, says("alpha")), hybrid_leaves=2)
    assert got.moves() == [
        ("retrieval", "none"),
        ("r.1.1", "revert"),
        ("r.0.0", "answer"),
        ("end", "answer"),
    ]
    assert got.events[0].shown == ("r.1.1", "r.0.0")
    assert got.events[1].depth == 2
    assert notes(got) == ["about r.1", "about r.0"]


def test_when_they_do_not_have_it_it_begins_at_the_root() -> None:
    replies = (UP, UP, down(0), down(1), says("beta"))
    got = run(hybrid("r.1.1", "r.0.0"), scripted(*replies), hybrid_leaves=2)
    assert got.result.leaves == ("r.0.1",)
    assert "did not have the answer: 0." in got.asks[3].text
    assert len(leaves_of(got.asks)) == 3


def test_a_node_that_they_leave_nothing_of_is_refuted() -> None:
    replies = (UP, UP, down(0), down(1), says("beta"))
    got = run(hybrid("r.1.1", "r.1.0"), scripted(*replies), hybrid_leaves=2)
    assert "did not have the answer: 1." in got.asks[2].text
    all_of_them = run(
        hybrid("r.1.1", "r.1.0", "r.0.0", "r.0.1"), scripted(UP, UP, UP, UP), hybrid_leaves=4
    )
    assert all_of_them.result.no_answer is NoAnswer.NOT_FOUND


def test_leaves_of_retrieval_are_read_in_parallel_up_to_the_beam() -> None:
    got = run(
        hybrid("r.1.1", "r.1.0", "r.0.0"), scripted(UP, UP, says("a")), hybrid_leaves=3, beam=2
    )
    assert got.batches == [2, 1]


def test_without_a_hit_it_begins_at_the_root() -> None:
    got = run(hybrid(), scripted(down(0), down(1), says("beta")), hybrid_leaves=4)
    assert got.moves()[:2] == [("retrieval", "none"), ("r", "enter")]
    assert got.events[0].shown == ()


def test_a_leaf_that_is_named_twice_is_read_once() -> None:
    got = run(hybrid("r.1.1", "r.1.1"), scripted(UP, down(0), down(0), says("a")), hybrid_leaves=2)
    assert got.events[0].shown == ("r.1.1",)
    assert got.result.leaves == ("r.0.0",)


# Options without an answer

CHOICE = ("Ann left", "Ben stayed")


def test_of_options_one_is_chosen_and_marked_as_a_guess() -> None:
    why = "Reasoning: Ann is not named here\nAction: -1"
    replies = (down(0), why, down(1), UP, '{"answer": "(B)"}')
    got = run(Tree(("a", "b")), scripted(*replies), options=CHOICE)
    assert (got.result.text, got.result.no_answer) == ("Ben stayed", None)
    assert got.result.guessed
    assert got.result.leaves == ()
    assert got.moves()[-2:] == [("merge", "answer"), ("end", "answer")]
    last = got.asks[-1]
    assert last.template == "tree.guess/1"
    assert "about r.0" in last.text
    assert "Ann is not named here" in last.text
    assert "(B) Ben stayed" in last.text


def test_an_answer_that_was_found_is_no_guess() -> None:
    got = run(Tree(("a", "b")), scripted(down(0), says("(A)")), options=CHOICE)
    assert (got.result.text, got.result.guessed) == ("Ann left", False)


@pytest.mark.parametrize("refused", [End.REFUSAL, End.FILTER, End.EMPTY])
def test_without_a_choice_of_the_models_the_words_decide(refused: End) -> None:
    none = ModelReply(text="", model="m", end=refused)
    tree = Tree(("a", "b"), about="Ben was there and")
    got = run(tree, scripted(down(0), UP, down(1), UP, none, none, none), options=CHOICE)
    assert (got.result.text, got.result.guessed) == ("Ben stayed", True)


def test_the_last_call_may_be_used_up() -> None:
    tree = Tree(("a", "b"), about="Ben was there and")
    got = run(tree, scripted(down(0)), options=CHOICE, max_calls=1)
    assert (got.result.text, got.result.guessed) == ("Ben stayed", True)
    assert got.result.statistics.calls == 1


def test_unreadable_moves_and_a_merge_without_a_choice_leave_a_guess() -> None:
    got = run(Tree(("a", "b")), scripted("hm", "hm", "hm", "Answer: (B)"), options=CHOICE)
    assert (got.result.text, got.result.guessed) == ("Ben stayed", True)
    replies = (down(1, 0), says("(B)"), says("(A)"), "hm", "hm", "hm")
    got = run(Tree(("a", "b")), scripted(*replies), options=CHOICE, beam=2)
    assert (got.result.text, got.result.guessed) == ("Ben stayed", True)
    assert got.result.leaves == ("r.1",)


def test_a_tree_without_text_leaves_nothing_to_guess_by() -> None:
    got = run(Tree(""), scripted(), options=CHOICE)
    assert got.result.no_answer is NoAnswer.EMPTY
