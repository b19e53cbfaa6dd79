"""Measures against values worked by hand."""

import pytest

from evaluation.datasets import Document, Question
from evaluation.measures import (
    Measure,
    exact_match,
    gold_cited,
    measure_of,
    recall,
    rouge_l,
    score,
    token_f1,
)
from evaluation.strategies import CitedSpan
from evaluation.words import holds, normalized, telling
from service.domain.log.chunks import Chunk, ChunkKind


def question(*golds: str, options: tuple[str, ...] = ()) -> Question:
    return Question(number=1, text="Who?", golds=golds, options=options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Snow-Man, an   owl!", "snowman owl"),
        ("a The AN", ""),
        ("“Straße”…", "strasse"),
        ("theatre and then", "theatre and then"),
    ],
)
def test_what_is_compared(text: str, expected: str) -> None:
    assert normalized(text) == expected


def test_exact_match_sees_words_only() -> None:
    assert exact_match("The king's horse.", "kings horse") == 1
    assert exact_match("the horse", "the horses") == 0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("the red fox", "red fox", 1.0),
        # 2 of 4 said, 2 of 3 wanted: 2 * 2 / 7.
        ("a big red fox ran", "red fox jumped", 4 / 7),
        # A word counts as often as both have it: 1 of 3, 1 of 1.
        ("no no no", "no", 0.5),
        ("blue", "red", 0.0),
        ("the", "an", 1.0),
        ("the", "fox", 0.0),
    ],
)
def test_f1(answer: str, gold: str, expected: float) -> None:
    assert token_f1(answer, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("police killed the gunman", "police kill the gunman", 0.75),
        ("the gunman kill police", "police kill the gunman", 0.5),
        ("a b c", "a b c", 1.0),
        ("x", "a b c", 0.0),
        ("", "a", 0.0),
        # The subsequence is a, c, e: 3 of 5, 3 of 3.
        ("a b c d e", "a c e", 0.75),
    ],
)
def test_rouge_l(answer: str, gold: str, expected: float) -> None:
    assert rouge_l(answer, gold) == pytest.approx(expected)


def test_the_best_gold_counts() -> None:
    found = score("the red fox", question("blue whale", "Red fox"), Measure.F1)
    assert (found.score, found.exact) == (1.0, 1.0)


def test_no_answer_scores_nothing() -> None:
    assert score(" ", question("the"), Measure.F1).score == 0.0


def test_an_option_is_right_or_wrong() -> None:
    asked = question("red fox", options=("red fox", "red fox cub"))
    assert score("red fox cub", asked, Measure.F1).score == 0.0
    assert score("red fox", asked, Measure.ACCURACY).score == 1.0


def test_the_measure_fits_the_form() -> None:
    long = " ".join(["word"] * 20)
    assert measure_of([question("a", options=("a", "b"))]) is Measure.ACCURACY
    assert measure_of([question("a"), question("a", options=("a", "b"))]) is Measure.F1
    assert measure_of([question(long), question(long), question("a")]) is Measure.ROUGE_L


def test_recall_is_of_the_evidence() -> None:
    assert recall(frozenset({1, 2, 3, 4}), [2, 3, 9]) == 0.5
    assert recall(frozenset(), [1]) is None
    assert recall(frozenset({1}), None) is None, "nobody can say"


def test_words_are_looked_for_as_wholes() -> None:
    golds = telling(("Yes.", "The Blue Whale", "no", "...", "17"))
    assert golds == ("blue whale", "17")
    assert holds(normalized("It saw a blue whale!"), golds)
    assert not holds(normalized("Blue whales; 1,700 of them"), golds)
    assert not holds(normalized("yes"), telling(("yes",)))


def cites(answer: str, *spans: tuple[int, int, int], text: str = "He fed the fox.") -> float | None:
    chunks = tuple(Chunk(kind=ChunkKind.TEXT, text=one) for one in ("Nothing.", text))
    asked = question(answer)
    document = Document(id="d", chunks=chunks, questions=(asked,))
    found = [CitedSpan(position=p, from_character=f, to_character=t) for p, f, t in spans]
    return gold_cited(document, asked, found)


def test_a_cited_span_has_the_answer_or_not() -> None:
    assert cites("the fox", (2, 0, 15)) == 1.0
    assert cites("the fox", (1, 0, 8), (2, 7, 14)) == 1.0
    assert cites("the fox", (2, 0, 10)) == 0.0, "the characters end before it"
    assert cites("the fox", (1, 0, 8)) == 0.0
    assert cites("the fox") == 0.0
    assert cites("the fox", (3, 0, 15), (0, 0, 15)) == 0.0, "no such chunk"


def test_what_cannot_be_cited_is_not_counted() -> None:
    assert cites("a wolf", (2, 0, 15)) is None, "it does not stand in the text"
    assert cites("yes", (2, 0, 4), text="Yes!") is None
    asked = question("fox")
    chunks = (Chunk(kind=ChunkKind.TEXT, text="A fox."),)
    assert gold_cited(Document(id="d", chunks=chunks, questions=(asked,)), asked, None) is None
