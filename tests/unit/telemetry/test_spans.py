"""Where a citation is in a chunk's text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.citations import best_excerpt
from service.usecases.answers.readers.spans import located, quoted, spanned
from storage.answers.answers import StoredCitation

TEXT = "The cat sat. “A cat’s\n life”, said the Cat, is nine lives."


@pytest.mark.parametrize(
    ("excerpt", "found"),
    [
        ("The cat sat.", "The cat sat."),
        ("cat", "cat"),
        ("at", None),
        ("The cat s", "The cat s"),
        ("said the cat", None),
        ("", None),
        (TEXT, TEXT),
    ],
)
def test_an_excerpt_stands_word_for_word(excerpt: str, found: str | None) -> None:
    span = located(TEXT, excerpt)
    assert (None if span is None else TEXT[slice(*span)]) == found


def test_a_value_within_a_longer_word_is_passed_over() -> None:
    assert located("17 and 7", "7") == (7, 8)
    assert located("category cat", "cat") == (9, 12)


@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ('"A cat\'s life", said the cat', "A cat’s\n life”, said the Cat"),
        ("is  nine lives", "is nine lives"),
        ("is ten lives", None),
        ("…", None),
        ("word " * 300, None),
    ],
)
def test_a_quote_may_differ_in_blanks_signs_and_case(quote: str, found: str | None) -> None:
    span = quoted(TEXT, quote)
    assert (None if span is None else TEXT[slice(*span)]) == found


@given(st.text(max_size=400), st.data())
def test_a_span_is_of_exactly_what_is_cited(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    excerpt = text[start : data.draw(st.integers(start, len(text)))]
    offset = data.draw(st.integers(0, 50))
    whole = "x" * offset + text
    cited = StoredCitation(position=1, path="", revision=0, excerpt=excerpt)
    found = spanned(cited, text, offset)
    if found.to_character:
        assert whole[found.from_character : found.to_character] == excerpt
    else:
        assert located(text, excerpt) is None


@given(
    st.lists(st.sampled_from(["The king left. ", "No! ", "Rain\nfell, ", "a b c "]), max_size=30)
)
def test_the_best_excerpt_of_a_text_has_a_span(parts: list[str]) -> None:
    text = "".join(parts)
    excerpt = best_excerpt("the king", text, 500)
    span = located(text, excerpt)
    assert (excerpt == "") == (span is None)
    assert span is None or text[slice(*span)] == excerpt
