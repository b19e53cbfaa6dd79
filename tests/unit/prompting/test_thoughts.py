"""Thoughts before an answer: closed, without an end, and without a beginning."""

from collections.abc import Callable

import pytest

from service.domain.answers import whole
from service.domain.prism import replies as prism
from service.domain.state import asking as state

ANSWER = "It is in the harbour."


def of_prism(reply: str) -> str | None:
    said = prism.read_answer(reply)
    return None if said is None else said.text


def of_whole(reply: str) -> str | None:
    said = whole.read_answer(reply)
    return None if said is None else said.text


def of_state(reply: str) -> str | None:
    said = state.read_answer(reply, ())
    return None if said is None else said.text


@pytest.mark.parametrize("read", [of_prism, of_whole, of_state])
@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (f"<think>\nAt sea?\n</think>\n{ANSWER}", ANSWER),
        (f"<think>\nAt sea?\n</think>\n[ANSWER]\n{ANSWER}\n", ANSWER),
        # The beginning is in the template of a chat, and not in the reply.
        (f"At sea? No.\n</think>\n\n{ANSWER}", ANSWER),
        (f"At sea? No.\n</think>\n[ANSWER]\n{ANSWER}\n", ANSWER),
        ("Does the memory say? No.\n</think>\nThe memory does not say.", ""),
        ("At sea? Hm.\n</think>\n", None),
        ("<think>\nAt sea? Hm", None),
        # What an answer is about.
        (f"[ANSWER]\nIt ends with\n</think>\n{ANSWER}", f"It ends with\n</think>\n{ANSWER}"),
        (f"{ANSWER} A </think> stands there.", f"{ANSWER} A </think> stands there."),
        (f"It has <think> and\n</think>\n{ANSWER}", f"It has <think> and\n</think>\n{ANSWER}"),
    ],
)
def test_an_answer_has_no_thoughts_in_it(
    read: Callable[[str], str | None], reply: str, answer: str | None
) -> None:
    assert read(reply) == answer
