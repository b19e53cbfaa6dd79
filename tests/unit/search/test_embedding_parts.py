"""What of a text gets a vector."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.tokens import estimate_tokens
from service.llm.embeddings.parts import EmbeddedPart, ends_of, halves_of, parts_of, unit


def test_a_short_text_is_one_part_and_a_blank_one_is_none() -> None:
    assert parts_of(["", " \n", "one word"], 16) == [
        EmbeddedPart(text=2, from_character=0, to_character=8)
    ]


@given(st.lists(st.text(max_size=600), max_size=3), st.integers(min_value=16, max_value=40))
def test_parts_are_all_that_is_not_blank_in_order(texts: list[str], max_tokens: int) -> None:
    parts = parts_of(texts, max_tokens)
    for number, text in enumerate(texts):
        own = [one for one in parts if one.text == number]
        ends = [0, *(one.to_character for one in own)]
        for part, before in zip(own, ends, strict=False):
            assert not text[before : part.from_character].strip()
            assert text[part.from_character : part.to_character].strip()
            assert part.to_character - part.from_character >= 1
        assert not text[ends[-1] :].strip()
    assert parts == sorted(parts, key=lambda one: (one.text, one.from_character))


@pytest.mark.parametrize("word", ["word ", "Sentence. ", "漢", "x"])
def test_no_part_is_longer_than_it_may_be_and_few_are_much_shorter(word: str) -> None:
    text = word * 5000
    parts = parts_of([text], 64)
    sizes = [estimate_tokens(text[one.from_character : one.to_character]) for one in parts]
    assert max(sizes) <= 64
    assert min(sizes[:-1]) >= 32


def test_a_part_is_halved_between_words() -> None:
    text = "AAA one two three"
    halves = halves_of(EmbeddedPart(text=1, from_character=4, to_character=17), text)
    assert [text[one.from_character : one.to_character] for one in halves] == ["one ", "two three"]
    assert {one.text for one in halves} == {1}


@given(st.text(min_size=1, max_size=50))
def test_halves_are_the_whole_and_smaller(text: str) -> None:
    part = EmbeddedPart(text=0, from_character=0, to_character=len(text))
    halves = halves_of(part, text)
    assert all(one.to_character - one.from_character < len(text) for one in halves)
    if len(halves) == 2:
        assert halves[0].to_character == halves[1].from_character


@given(
    st.lists(
        st.floats(min_value=-1e3, max_value=1e3, allow_nan=False).filter(lambda x: abs(x) > 1e-3),
        min_size=1,
        max_size=20,
    )
)
def test_vectors_are_of_length_1(values: list[float]) -> None:
    made = unit(values)
    assert made is not None
    assert math.isclose(math.hypot(*made), 1, rel_tol=1e-9)


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan], [math.inf, 1.0]])
def test_what_has_no_direction_is_no_vector(values: list[float]) -> None:
    assert unit(values) is None


@given(st.text(min_size=1, max_size=600), st.integers(min_value=16, max_value=40))
def test_of_a_long_question_both_ends_are_kept(question: str, max_tokens: int) -> None:
    kept = ends_of(question, max_tokens)
    if estimate_tokens(question) <= max_tokens:
        assert kept == question
        return
    cuts = [at for at, character in enumerate(kept) if character == "\n" and at]
    assert any(question.startswith(kept[:at]) and question.endswith(kept[at + 1 :]) for at in cuts)
    assert max_tokens - 4 <= estimate_tokens(kept) <= max_tokens + 1


def test_the_code_after_a_long_request_counts() -> None:
    question = "Complete the code. " + "Keep to the rules. " * 50 + "return convert_fahrenheit("
    kept = ends_of(question, 32)
    assert kept.startswith("Complete the code.")
    assert kept.endswith("return convert_fahrenheit(")
