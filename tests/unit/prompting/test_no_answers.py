"""The words for "no answer" are recognized in any form, and never streamed."""

import pytest

from service.domain.prompting.no_answers import NO_ANSWER, is_blank, may_say_none, says_none


@pytest.mark.parametrize(
    "answer",
    [
        NO_ANSWER,
        "No answer.",
        '**"no answer"**',
        "There is no answer.",
        "The memory does not say.",
        "The working context doesn\u2019t say so.",
        "It does not say it",
        "The texts do not say",
    ],
)
def test_the_words_are_known_however_they_are_dressed(answer: str) -> None:
    assert says_none(answer)
    assert all(may_say_none(answer[:end]) for end in range(len(answer) + 1))


@pytest.mark.parametrize(
    "answer",
    ["No answer came from the captain.", "The memory does not say it rained.", "no", "", "Nine."],
)
def test_an_answer_is_not_taken_for_them(answer: str) -> None:
    assert not says_none(answer)


def test_an_answer_is_streamed_once_it_can_be_nothing_else() -> None:
    assert may_say_none("There is no answer")
    assert not may_say_none("There is no answer to")
    assert not may_say_none("no answer " * 6000)


def test_marks_alone_are_blank() -> None:
    assert is_blank(' **""** \n')
    assert not is_blank("9")
