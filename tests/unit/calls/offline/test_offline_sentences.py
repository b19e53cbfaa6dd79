"""Where the offline model lets sentences end, and when it says that a leaf has no answer."""

import pytest

from service.domain.tree.contents import LeafContent
from service.llm.offline import navigation, plain_text, summaries, texts

CHAINED = (
    "Comparisons can be chained arbitrarily, e.g. the first of them is evaluated only once, i.e."
    " The second is not, cf. Section 5 of the manual vs. Section 6 of it, as Smith et al. Wrote."
)
NEXT = "It is approx. 3.14 of all the others that we have seen."


@pytest.mark.parametrize("sentences", [texts.sentences, plain_text.sentences])
def test_abbreviations_and_numbers_end_no_sentence(sentences: object) -> None:
    assert callable(sentences)
    assert list(sentences(f"{CHAINED} {NEXT}")) == [CHAINED, NEXT]


def test_neither_do_they_in_summaries() -> None:
    ends = [match.end() for match in summaries._END.finditer(f"{CHAINED} {NEXT}")]
    assert ends == [len(CHAINED) + 1]


def test_scripts_without_blanks_have_sentences() -> None:
    assert plain_text.sentences("港は閉まっている。博物館は開いている。") == [
        "港は閉まっている。",
        "博物館は開いている。",
    ]


def leaf(query: str, text: str, options: tuple[str, ...] = ()) -> str:
    content = LeafContent(query=query, text=text, options=options, notes="", reasoning=False)
    return navigation.complete(content)


def test_what_is_asked_of_a_number_no_other_number_answers() -> None:
    text = "You are in the hall number 8. A lamp hangs there."
    assert leaf("What hangs in the hall number 1203?", text) == "Action: -1"
    assert "-2" in leaf("What hangs in the hall number 1203?", text.replace("8", "1203"))
    assert "-2" in leaf("What hangs in the hall number 8?", text)
    assert "-2" in leaf("Is it hall number 1203?", text, ("A lamp hangs there.", "A door."))
