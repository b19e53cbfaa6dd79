"""Where texts are cut: borders of paragraphs, definitions, sentences and words."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.tokens import estimate_tokens
from service.llm.splitter import first_piece


def pieces(text: str, max_tokens: int) -> list[str]:
    found: list[str] = []
    while text:
        end = first_piece(text, max_tokens)
        found.append(text[:end])
        text = text[end:]
    return found


WORDS = st.sampled_from(
    ["a", "Ελλάδα", "市場。", "word ", "End. ", "\n", "\n\n", "```\n", "# ", "👩‍👧", "\t"]
)
TEXTS = st.lists(WORDS, max_size=80).map("".join) | st.text(max_size=200)


@given(text=TEXTS, max_tokens=st.integers(1, 40))
def test_the_pieces_are_the_text_and_none_is_too_long(text: str, max_tokens: int) -> None:
    found = pieces(text, max_tokens)
    assert "".join(found) == text
    assert all(piece and estimate_tokens(piece) <= max_tokens for piece in found)
    assert found == pieces(text, max_tokens)


@given(text=TEXTS, max_tokens=st.integers(8, 40))
def test_two_neighbours_are_more_than_one_piece_or_parted_by_a_line(
    text: str, max_tokens: int
) -> None:
    for one, other in pairwise(pieces(text, max_tokens)):
        together = estimate_tokens(one + other)
        assert together > max_tokens or "\n" in (one + other)


@pytest.mark.parametrize(
    ("sentences", "max_tokens"),
    [
        (["The king rode out. ", "Nobody saw him! ", "Did he come back?"], 6),
        (["我今天去了市場。", "那裡有很多人！", "你知道嗎？"], 8),
        (["今日は市場に行きました。", "人がたくさんいました。", "リンゴを買いました。"], 14),
        (["ذهبت اليوم إلى السوق. ", "كان هناك الكثير من الناس؟ ", "اشتريت التفاح."], 16),
        (["Сегодня я ходил на рынок. ", "Там было много людей! ", "Я купил яблоки."], 16),
    ],
)
def test_a_text_of_any_script_is_cut_at_its_sentences(
    sentences: list[str], max_tokens: int
) -> None:
    assert pieces("".join(sentences), max_tokens) == sentences


def test_a_text_without_blanks_or_stops_is_cut_at_its_words() -> None:
    text = "วันนี้ฉันไปตลาดมีคนมากมายฉันซื้อแอปเปิ้ล"
    found = pieces(text, 12)
    assert "".join(found) == text
    assert found[0] == "วันนี้ฉันไปตลาด"


def definition(name: str, lines: int) -> str:
    body = "".join(f"    x = {number}\n\n" for number in range(lines))
    return f"def {name}():\n{body}    return x\n\n\n"


def test_the_definitions_of_source_code_are_kept_whole() -> None:
    parts = [definition(f"f{number}", lines) for number, lines in enumerate((2, 9, 3, 9, 1, 1))]
    limit = max(estimate_tokens(part) for part in parts) + 2
    found = pieces("".join(parts), limit)
    assert all(piece.startswith("def ") and piece.endswith("return x\n\n\n") for piece in found)
    assert found[0] == parts[0], "short as it is: the next fits whole"


def test_blocks_of_code_in_markdown_are_kept_whole() -> None:
    block = "```python\n" + "x = 1\n\n\ny = 2\n" * 10 + "```\n"
    text = f"# Title\n\nSome text of this page, in a line.\n\n{block}\nMore of the text.\n\n" * 3
    found = pieces(text, 45)
    assert len(found) > 3
    assert sum(block.rstrip() in piece for piece in found) == 3


def test_a_heading_is_not_a_piece_before_a_paragraph_that_is_cut_anyway() -> None:
    found = pieces("Title\n\n" + "A sentence that is here. " * 30, 50)
    assert found[0].startswith("Title\n\nA sentence")
    assert found[0].endswith("here. ")
    assert estimate_tokens(found[0]) > 40


def test_a_text_of_many_kinds_of_borders_is_cut_like_any_other() -> None:
    text = "".join("x" + "\n" * number for number in range(300, 0, -1))
    found = first_piece(text, 10_000)
    assert 0 < found < len(text)
    assert estimate_tokens(text[:found]) <= 10_000
