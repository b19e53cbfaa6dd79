"""Where the offline model lets sentences end."""

from service.llm.offline.texts import prose, sentences

CHAINED = (
    "Comparisons can be chained arbitrarily, e.g. the first of them is evaluated only once, i.e."
    " The second is not, cf. Section 5 of the manual vs. Section 6 of it."
)
NEXT = "It is 3.14 times all the others that we have seen."


def test_abbreviations_and_numbers_end_no_sentence() -> None:
    assert sentences(f"{CHAINED} {NEXT}") == [CHAINED, NEXT]
    assert list(prose(f"{CHAINED} {NEXT}")) == [CHAINED, NEXT]


def test_what_goes_on_in_small_letters_is_the_same_sentence() -> None:
    page = 'The king rode out with his\ndaughter. "Where is it?" asked Ingrid.\nNobody knew.'
    assert sentences(page) == [
        "The king rode out with his daughter.",
        '"Where is it?" asked Ingrid.',
        "Nobody knew.",
    ]


def test_scripts_without_blanks_have_sentences() -> None:
    assert sentences("港は閉まっている。博物館は開いている。") == [
        "港は閉まっている。",
        "博物館は開いている。",
    ]
