"""Quotes are located in the text, and invented ones are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.browse.pieces import ChunkPart, Span
from service.domain.answers.browse.quoting import best_span, located, spans_of
from service.domain.answers.browse.replies import BrowseQuote

TEXT = "Ann came in.\n  “It is\tlate,” she said — and Ben’s dog left."
PARTS = (
    ChunkPart(position=4, from_character=100, text="Ann came in."),
    ChunkPart(position=5, from_character=0, text=TEXT),
)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Ann came", "Ann came"),
        ('"It is late," she said', "“It is\tlate,” she said"),
        ("in. “It is", "in.\n  “It is"),
        ("and Ben's dog left.", "and Ben’s dog left."),
        ("she said - and", "she said — and"),
        ("Ann came in. She left", None),
        ("ann came", None),
        ("…", None),
        ("", None),
    ],
)
def test_words_are_found_whatever_blanks_and_signs_are_between(
    words: str, found: str | None
) -> None:
    place = located(TEXT, words)
    assert (None if place is None else TEXT[slice(*place)]) == found


def test_the_chunk_that_is_named_comes_first() -> None:
    (first,) = spans_of([BrowseQuote(chunk=4, words='"Ann came in"')], PARTS)
    assert first == Span(position=4, from_character=100, to_character=111, text="Ann came in")
    (second,) = spans_of([BrowseQuote(chunk=5, words="Ann came in.")], PARTS)
    assert (second.position, second.from_character) == (5, 0)


def test_a_wrong_number_does_not_lose_a_quote_and_a_made_up_one_is_dropped() -> None:
    quotes = [BrowseQuote(chunk=99, words="dog left"), BrowseQuote(chunk=5, words="the cat left")]
    assert [span.text for span in spans_of(quotes, PARTS)] == ["dog left"]


def test_a_number_may_belong_to_the_words() -> None:
    part = ChunkPart(position=7, from_character=0, text="12 men left.")
    quote = BrowseQuote(chunk=12, words="men left.", line="12 men left.")
    assert spans_of([quote], [part])[0].text == "men left."


@pytest.mark.prove
@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=4), st.text(max_size=40))
def test_the_best_passage_stands_where_it_says(texts: list[str], said: str) -> None:
    parts = [
        ChunkPart(position=at, from_character=at * 10, text=one) for at, one in enumerate(texts)
    ]
    span = best_span(said, parts)
    part = parts[span.position]
    start = span.from_character - part.from_character
    assert part.text[start : start + len(span.text)] == span.text != ""
    assert span.to_character - span.from_character == len(span.text)
