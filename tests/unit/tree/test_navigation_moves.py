"""How replies of a navigation are read: tolerant of form, never guessing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.replies import MAX_REPLY_CHARACTERS
from service.domain.tree.moves import (
    Enter,
    NavigationAnswer,
    Revert,
    Unreadable,
    read_leaf,
    read_merge,
    read_triage,
)

#: More than is read.
LONG = " so" * MAX_REPLY_CHARACTERS
OPTIONS = ("He realized that it was late", "The sun", "a dog")


def triage(reply: str, *, beam: int = 1, may_revert: bool = True) -> Enter | Revert | Unreadable:
    return read_triage(reply, shown=5, closed={3}, may_revert=may_revert, beam=beam)


@pytest.mark.parametrize(
    "reply",
    [
        "Reasoning: it fits\nAction: 2",
        "Action: 2\nReasoning: 4 does not fit",
        "action: 2",
        "ACTION = 2",
        "Action 2",
        "Action: 2.",
        "**Action:** 2",
        "**Action: 2**",
        "- **Action**: `2`",
        "## Action\n2",
        "### Reasoning\nIt fits.\n### Action\n\n**2**\n",
        "Final Action: 2",
        "Action: [2]",
        "Action: (2)",
        'Action: "2"',
        "Action: Summary 2",
        "Action: summary #2, which is about 3 dogs",
        "Action: I choose to enter summary 2",
        "Action: 2 because 4 is worse",
        "Action: 2\nAction: 2",
        "Action:\n2\nGood luck!",
        "Reasoning: Summary 2 fits. Action: 2",
        "##########\nReasoning: it fits\nAction: 2\n##########",
        "<think>Action: 1? No.</think>\nAction: 2",
        "<think>\nAction: 1? No.</think> Action: 2",
        "2",
        " 2\n",
        "Summary 2",
        "summary 2.",
        "I compared the five.\n\n2",
        '{"reasoning": "it fits", "action": 2}',
        '{"action": "2"}',
        '{"action": 2.0, "confidence": {"high": true}}',
        'Here it is:\n```json\n{"Action": [2]}\n```',
        "Reasoning: a list {1, 2}\nAction: 2",
    ],
)
def test_a_clear_choice_is_read(reply: str) -> None:
    move = triage(reply)
    assert isinstance(move, Enter), move
    assert move.targets == (2,)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "it is empty"),
        (" \n\t", "it is empty"),
        ("I do not know.", "no action that is"),
        ("Summary 2 is the best.", "no action that is"),
        ("Action: none", "no action that is"),
        ("Action: two", "no action that is"),
        ("Action: not 2", "no action that is"),
        ("Action: anything but 2", "no action that is"),
        ("Action: 2.5", "no action that is"),
        ("Action: 2nd", "no action that is"),
        ("Action:", "no action that is"),
        ('{"action": true}', "no action that is"),
        ('{"action": null}', "no action that is"),
        ('{"action": {"number": 2}}', "no action that is"),
        ("Action: 0 / 1 / 2, ...", "several numbers"),
        ("Action: 1 or 2", "several numbers"),
        ("Action: 1, 2", "several numbers"),
        ("Action: 1 2", "several numbers"),
        ("Action: 1\nAction: 2", "several actions that differ"),
        ('{"action": 1}\n{"action": 2}', "several actions that differ"),
        ("Action: -1, 2", "up and down at once"),
        ("Action: 5", "there is no summary 5"),
        ("Action: 99999", "there is no summary 99999"),
        ("Action: 9999999999999999", "no action that is"),
        ("Action: -3", "there is no summary -3"),
        ("Action: -2\nAnswer: the sun", "-2 is not open here"),
        ("Action: 3", "was read already"),
        ("Reasoning: it is " + LONG, "cut off"),
        ("Reasoning: it fits\nAction: 1" + LONG, "cut off"),
        ("<think>Action: 2", "it is empty"),
    ],
)
def test_what_is_not_clear_is_not_guessed(reply: str, why: str) -> None:
    move = triage(reply)
    assert isinstance(move, Unreadable), move
    assert why in move.text


@pytest.mark.parametrize(
    "reply", ["Action: -1", "Action: −1", "Action: – 1", "-1", "Action: go back up (-1)"]
)
def test_going_back_is_read(reply: str) -> None:
    assert isinstance(triage(reply), Revert)
    at_root = triage(reply, may_revert=False)
    assert isinstance(at_root, Unreadable)
    assert "-1 is not open here" in at_root.text


def test_what_was_said_before_the_action_is_the_reasoning() -> None:
    for reply in (
        "Reasoning: it\nfits\nAction: 2",
        "it\nfits\nAction: 2",
        "Action: 2\nReasoning: it\nfits",
        '{"reasoning": "it\\nfits", "action": 2}',
        "it\nfits\n\n2",
    ):
        move = triage(reply)
        assert isinstance(move, Enter)
        assert move.reasoning == "it\nfits"


@pytest.mark.parametrize(
    ("reply", "targets"),
    [
        ("Action: 2, 0", (2, 0)),
        ("Actions: 2 and 0", (2, 0)),
        ("Action: summary 2 / summary 0", (2, 0)),
        ("Action: [2,0]", (2, 0)),
        ('{"action": [2, 0]}', (2, 0)),
        ("Action: 2, 2, 0", (2, 0)),
        ("Action: 4", (4,)),
    ],
)
def test_with_a_beam_it_may_name_several(reply: str, targets: tuple[int, ...]) -> None:
    move = triage(reply, beam=2)
    assert isinstance(move, Enter), move
    assert move.targets == targets
    more = triage("Action: 0, 1, 2", beam=2)
    assert more == Unreadable(text="give at most 2 numbers")
    assert isinstance(triage("Action: 2, 3", beam=2), Unreadable)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Reasoning: r\nAction: -2\nAnswer: the sun", "the sun"),
        ("Answer: the sun\nAction: -2\nReasoning: r", "the sun"),
        ("Action: -2 Answer: the sun", "the sun"),
        ("**Action:** -2\n**Answer:** the sun", "the sun"),
        ("Action: -2\n**Answer: the sun**", "the sun"),
        ('Action: -2\nAnswer: "the sun"', "the sun"),
        ("Action: -2\nAnswer: C#", "C#"),
        ("Action: -2\nAnswer: 7", "7"),
        ("Action: -2\nAnswer: first\n\nthen\nthat", "first\n\nthen\nthat"),
        ('{"action": -2, "answer": "the sun"}', "the sun"),
        ('{"action": "-2", "answer": 7}', "7"),
        ("Action: −2\nFinal Answer: the sun", "the sun"),
    ],
)
def test_an_answer_is_read(reply: str, answer: str) -> None:
    move = read_leaf(reply, options=())
    assert isinstance(move, NavigationAnswer), move
    assert move.text == answer


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Action: -2", "it has no answer"),
        ("Action: -2\nAnswer:", "it has no answer"),
        ("Action: -2\nAnswer: ...", "it has no answer"),
        ("Answer: the sun", "no action that is"),
        ("Action: 2\nAnswer: the sun", "neither -1 nor -2"),
        ("Action: 0", "neither -1 nor -2"),
        ("Action: -2 or -1\nAnswer: the sun", "several actions"),
        ("Action: -2\nAnswer: the sun\nAnswer: the moon", "several answers"),
        ("Action: -2\nAnswer: the su" + LONG, "its answer was cut off"),
        ('{"action": -2, "answer": ""}', "it has no answer"),
    ],
)
def test_an_answer_that_is_not_clear_is_not_guessed(reply: str, why: str) -> None:
    move = read_leaf(reply, options=())
    assert isinstance(move, Unreadable), move
    assert why in move.text


def test_a_leaf_can_be_left_whatever_stands_for_the_answer() -> None:
    for reply in ("Action: -1", "Action: -1\nAnswer: N/A", '{"action": -1, "answer": ""}'):
        assert isinstance(read_leaf(reply, options=OPTIONS), Revert)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("B", 1),
        ("(B)", 1),
        ("b)", 1),
        ("(b)", 1),
        ("B.", 1),
        ("B) The sun", 1),
        ("(B) The sun", 1),
        ("(B) the one in the sky", 1),
        ("Option B", 1),
        ("The answer is (B)", 1),
        ("the SUN!", 1),
        ("**The sun**", 1),
        ("A dog", 2),
        ("a dog.", 2),
        ("A", 0),
        ("he realized that\nit was late", 0),
        ("(C) The sun", None),
        ("D", None),
        ("the moon", None),
        ("A cat", None),
        ("the sun or a dog", None),
    ],
)
def test_an_option_is_chosen_by_its_letter_or_its_text(said: str, meant: int | None) -> None:
    move = read_leaf(f"Action: -2\nAnswer: {said}", options=OPTIONS)
    if meant is None:
        assert isinstance(move, Unreadable), move
    else:
        assert isinstance(move, NavigationAnswer), move
        assert move.text == OPTIONS[meant]


def test_an_option_that_looks_like_another_ones_letter_is_not_guessed() -> None:
    assert isinstance(read_leaf("Action: -2\nAnswer: B", options=("B", "A")), Unreadable)
    move = read_leaf("Action: -2\nAnswer: (B) A", options=("B", "A"))
    assert isinstance(move, NavigationAnswer)
    assert move.text == "A"


def test_a_merge_is_read() -> None:
    def merge(reply: str) -> NavigationAnswer | Unreadable:
        return read_merge(reply, answers=3, options=(), rivals=())

    move = merge("Reasoning: r\nAnswer: both\nSources: 2, 0")
    assert move == NavigationAnswer(text="both", reasoning="r", sources=(2, 0))
    assert merge('{"answer": "both", "sources": [1, 1]}') == NavigationAnswer(
        text="both", sources=(1,)
    )
    assert merge("Answer: both") == NavigationAnswer(text="both")
    assert isinstance(merge("Answer: both\nSources: 3"), Unreadable)
    assert isinstance(merge("both"), Unreadable)


PIECES = st.sampled_from(
    ["Action", ":", " ", "\n", "-", "1", "2", "Answer", "Reasoning", "{", "}", '"', "*", "#",
     "<think>", "</think>", "[", ",", ".", "or", "A", "(B)", "```", "�", "９", "²"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=200))
def test_any_reply_is_a_move_or_a_reason(reply: str) -> None:
    for beam in (1, 3):
        move = triage(reply, beam=beam)
        if isinstance(move, Enter):
            assert 1 <= len(move.targets) <= beam
            assert set(move.targets) <= {0, 1, 2, 4}
            assert len(set(move.targets)) == len(move.targets)
    leaf = read_leaf(reply, options=OPTIONS)
    assert not isinstance(leaf, NavigationAnswer) or leaf.text in OPTIONS
    free = read_leaf(reply, options=())
    assert not isinstance(free, NavigationAnswer) or free.text.strip()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["*", " ", "{", "Action", "Action: ", "\n", "the ", '{"a":', "-"])
def test_long_replies_take_little_time(piece: str) -> None:
    reply = piece * (100_000 // len(piece))
    assert isinstance(triage(reply), Unreadable)
    assert isinstance(read_leaf(reply, options=OPTIONS), Unreadable)


def test_what_the_escapes_of_json_say_can_be_stored() -> None:
    move = read_leaf(
        r'{"reasoning": "a\u0000b", "action": -2, "answer": "the \ud800 m\u0000ill"}', options=()
    )
    assert move == NavigationAnswer(text="the ? mill", reasoning="ab")


def test_json_that_is_nested_without_end_is_unreadable() -> None:
    deep = "[" * 900 + "1" + "]" * 900
    move = read_leaf(f'{{"action": -2, "answer": {deep}}}', options=())
    assert isinstance(move, Unreadable)
