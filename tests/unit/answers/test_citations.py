"""Which words of a text an answer rests on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.citations import best_excerpt, best_position, best_span

TEXT = (
    "The mill stood by a river. The miller had three sons. They shared the mill, the ass, the cat."
)


def test_the_excerpt_is_around_the_sentence_that_says_it() -> None:
    assert best_excerpt("three sons", TEXT, 30) == "The miller had three sons."
    assert best_excerpt("three sons", TEXT, 70) == (
        "The miller had three sons. They shared the mill, the ass, the cat."
    )
    assert best_excerpt("three sons", TEXT, 500) == TEXT


def test_what_is_said_around_it_decides_only_between_equals() -> None:
    assert best_excerpt("three sons", TEXT, 30, around="the river") == "The miller had three sons."
    assert best_excerpt("yes", TEXT, 30, around="a river") == "The mill stood by a river."
    chunks = [(1, "the cat went to it"), (2, "the giant"), (3, "an ass")]
    assert best_position("the giant", chunks, around="it says so") == 2
    assert best_position("yes", chunks, around="an ass was there") == 3


def test_a_sentence_that_is_too_long_is_cut() -> None:
    assert best_excerpt("three sons", TEXT, 10) == "The miller"


def test_lines_without_stops_are_separated() -> None:
    assert best_excerpt("gold", "tin and iron\nsilver and gold\nlead", 16) == "silver and gold"


def test_the_earliest_wins_where_nothing_fits() -> None:
    assert best_excerpt("zebra", TEXT, 30) == "The mill stood by a river."
    assert best_excerpt("zebra", "", 30) == ""


@pytest.mark.prove
@given(st.text(), st.text(), st.integers(1, 60))
def test_the_excerpt_is_a_part_of_the_text(value: str, text: str, characters: int) -> None:
    found = best_excerpt(value, text, characters)
    assert found in text
    assert len(found) <= characters


@given(st.text(alphabet='ab .\n。!"', max_size=60))
def test_the_whole_text_fits_where_there_is_room(text: str) -> None:
    assert best_excerpt("a", text, 1000) == text.strip()


def test_the_best_sentence_has_a_place() -> None:
    text = "Ann: The sea was calm.\n\n  A wolf ran by the sea.  Nobody saw it."
    span = best_span("Which wolf?", text)
    assert span is not None
    assert text[slice(*span)] == "A wolf ran by the sea."


def test_a_text_without_the_words_has_no_best_place() -> None:
    assert best_span("wolf", "The sea was calm. Nobody came.") is None
    assert best_span("...", "The sea.") is None
    assert best_span("sea", "") is None
