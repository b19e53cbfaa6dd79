"""Measures of how good an answer is.

Exact match and token F1 as SQuAD has them (arXiv 1606.05250), ROUGE-L as an F-measure
(Lin 2004) for long answers, accuracy for multiple choice.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evaluation.datasets import Document, Question
from evaluation.strategies import CitedSpan
from evaluation.words import holds, normalized, telling

#: Words of a dataset's right answers from which on they count as long, by their median.
LONG_ANSWER_WORDS = 20
#: A path that strayed has recovered when its answer scores this; with options it must be
#: the right one, which is the same.
RECOVERED_SCORE = 0.5
#: Words of a text that ROUGE-L looks at; its time grows with the product of two of them.
MAX_ROUGE_WORDS = 5000

_WORD = re.compile(r"\w+")


class Measure(StrEnum):
    """What a dataset's answers are scored by."""

    #: The right option or not.
    ACCURACY = "accuracy"
    #: Words that answer and gold share.
    F1 = "f1"
    #: The longest common subsequence of their words.
    ROUGE_L = "rouge_l"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How good one answer is; each from 0 to 1, by the gold that fits best."""

    #: By the dataset's measure.
    score: float
    #: The same words in the same order.
    exact: float
    f1: float
    rouge_l: float


def measure_of(questions: Iterable[Question]) -> Measure:
    """Returns the measure that fits a dataset's form."""
    asked = list(questions)
    if all(question.options for question in asked):
        return Measure.ACCURACY
    words = [len(gold.split()) for question in asked for gold in question.golds]
    return Measure.ROUGE_L if statistics.median(words) >= LONG_ANSWER_WORDS else Measure.F1


def score(answer: str, question: Question, measure: Measure) -> Scores:
    """Returns the scores of an answer; an empty one, for none, scores 0."""
    if not answer.strip():
        return Scores(score=0.0, exact=0.0, f1=0.0, rouge_l=0.0)
    exact = max(exact_match(answer, gold) for gold in question.golds)
    f1 = max(token_f1(answer, gold) for gold in question.golds)
    rouge = max(rouge_l(answer, gold) for gold in question.golds)
    # Where only some questions have options, those are still right or wrong.
    used = Measure.ACCURACY if question.options else measure
    by = {Measure.ACCURACY: exact, Measure.F1: f1, Measure.ROUGE_L: rouge}
    return Scores(score=by[used], exact=exact, f1=f1, rouge_l=rouge)


def exact_match(answer: str, gold: str) -> float:
    """1 when both are the same after `normalized`, else 0."""
    return float(normalized(answer) == normalized(gold))


def token_f1(answer: str, gold: str) -> float:
    """Returns the harmonic mean of precision and recall over their words, with repetitions."""
    said, wanted = normalized(answer).split(), normalized(gold).split()
    if not said or not wanted:
        return float(said == wanted)
    return _harmonic((Counter(said) & Counter(wanted)).total(), len(said), len(wanted))


def rouge_l(answer: str, gold: str) -> float:
    """Returns the F-measure of their longest common subsequence of words, without stemming."""
    said, wanted = (_WORD.findall(text.casefold())[:MAX_ROUGE_WORDS] for text in (answer, gold))
    return _harmonic(_common(said, wanted), len(said), len(wanted))


def _harmonic(common: int, said: int, wanted: int) -> float:
    return 2 * common / (said + wanted) if common else 0.0


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        above = 0
        for at, facing in enumerate(other, start=1):
            diagonal, above = above, row[at]
            row[at] = diagonal + 1 if word == facing else max(row[at], row[at - 1])
    return row[-1]


def recall(evidence: frozenset[int], seen: Iterable[int] | None) -> float | None:
    """Returns the share of the evidence's positions that were seen.

    None without evidence, or where it is not known what was seen.
    """
    if not evidence or seen is None:
        return None
    return len(evidence.intersection(seen)) / len(evidence)


def gold_cited(
    document: Document, question: Question, spans: Iterable[CitedSpan] | None
) -> float | None:
    """Returns 1 when a cited span has a right answer word for word, else 0.

    None if that is impossible: without citations of characters, or when no right answer
    is in the text word for word, or it is yes or no.
    """
    golds = telling(question.golds)
    if spans is None or not golds:
        return None
    texts = [chunk.as_text() for chunk in document.chunks]
    if not any(holds(normalized(text), golds) for text in texts):
        return None
    # What lies outside the text holds nothing.
    cited = (
        texts[one.position - 1][one.from_character : one.to_character]
        for one in spans
        if 1 <= one.position <= len(texts)
    )
    return float(any(holds(normalized(text), golds) for text in cited))
