"""Streaming of the replies to final requests while they are written."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.prism import replies as prism
from service.domain.prompting.no_answers import may_say_none
from service.domain.state import asking as state

FINDERS = [prism.answer_so_far, state.answer_so_far]
_PARTS = st.lists(
    st.sampled_from(
        [
            *("[ANSWER]", "[PATHS]", "[STEPS]", "[steps]:", "Steps:", "Step", "sources:", "So"),
            *("**", "\n", "\n", " ", "[", "]", "1", "2, 3", " and ", " to 4", "none", "."),
            *("no answer", "There is", "the context does", " not say", "it", "n't", "'"),
            *("A ship", "<think>", "</think>\n", "- "),
        ]
    ),
    max_size=14,
)


def all_of(reply: str, find_text: Callable[[str], str]) -> list[str]:
    return [find_text(reply[:end]) for end in range(len(reply) + 1)]


@pytest.mark.parametrize("find_text", FINDERS)
@given(parts=_PARTS)
@example(parts=["Ship\n", "Steps:", "1 an", "d 2\nSteps: 3", "\n[STEPS]"])
@example(parts=["no answer", ".\n", "[STEPS]\n1\n[STEPS]"])
def test_what_is_told_only_grows(find_text: Callable[[str], str], parts: list[str]) -> None:
    told = all_of("[ANSWER]\n" + "".join(parts), find_text)
    assert all(after.startswith(before) for before, after in pairwise(told))


@pytest.mark.parametrize(
    "reply",
    [
        "[ANSWER]\nA ship.\n[PATHS]\n$.museum\n",
        "**[ANSWER]** A ship.\n\nIt lies at\n[the pier].\n[ Paths ]:\n- $.museum",
        "[answer]:\nA ship",
    ],
)
def test_the_answer_of_a_memory_is_streamed(reply: str) -> None:
    told = all_of(reply, prism.answer_so_far)
    said = prism.read_answer(reply)
    assert said is not None
    assert told[-1] == said.text
    assert all("path" not in text.lower() for text in told)
    assert len(set(told)) > 3


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("[ANSWER]\nA ship.\n[STEPS]\n1\n2", "A ship."),
        ("<think>A boat?</think>\n[ANSWER]\nA ship.\n**[STEPS]**\n1", "A ship."),
        ("[ANSWER]\nA ship.\nSteps: 1 and 2", "A ship."),
        ("[ANSWER]\nDo this:\nSteps: 1 to 3, then rest.\n[STEPS]\n1",
         "Do this:\nSteps: 1 to 3, then rest."),
        ("[ANSWER]\n[STEPS] are numbered.\n[STEPS]\n1", "[STEPS] are numbered."),
        ("[ANSWER]\nNo answers were given.\n[STEPS]\n1", "No answers were given."),
    ],
)  # fmt: skip
def test_the_answer_of_a_working_context_is_told(reply: str, told: str) -> None:
    texts = all_of(reply, state.answer_so_far)
    said = state.read_answer(reply, {1, 2, 3})
    assert said is not None
    assert texts[-1] == said.text == told
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    "reply",
    [
        "[ANSWER]\nno answer\n[STEPS]\n",
        "[ANSWER]\n**No answer.**",
        "[ANSWER]\nThe working context does not say so.\n[STEPS]\nnone",
        "A ship.\n[STEPS]\n1",
        "Answer: a ship",
        "<think>\n[ANSWER]\nA ship",
        "",
    ],
)
def test_no_answer_and_what_may_become_one_are_not_streamed(reply: str) -> None:
    assert set(all_of(reply, state.answer_so_far)) == {""}


def test_a_long_text_is_not_folded_for_each_way_to_say_nothing() -> None:
    folded = 0

    class Text(str):
        def casefold(self) -> str:
            nonlocal folded
            folded += len(self)
            return super().casefold()

    assert not may_say_none(Text("no answer " * 6000))
    assert folded < 1000
    assert may_say_none("There is NO")
    assert not may_say_none("There is no answer to")
