"""Sums of results, against values worked by hand."""

from dataclasses import replace

import pytest

from evaluation.report import Build
from evaluation.strategies import Spent
from evaluation.summary import is_right, summarize
from tests.unit.evaluation.results import result, walk


def test_means_are_over_all_and_a_failure_counts_as_nothing() -> None:
    found = summarize(
        "memwalker",
        [
            result(1, score=1.0, exact=1.0, evidence_shown=1.0, evidence_cited=0.5),
            result(2, score=0.5, no_answer="not_found", seconds=3.0, evidence_shown=0.0),
            result(3, failure="it broke", spent=Spent(), seconds=60.0),
            result(1, strategy="retrieval", score=1.0),
        ],
        [],
    )
    assert (found.questions, found.failed) == (3, 1)
    assert found.score == 0.5
    assert found.exact == pytest.approx(1 / 3)
    assert (found.evidence_shown, found.evidence_cited) == (0.5, 0.5)
    assert (found.no_answer_rate, found.seconds) == (0.5, 2.0)
    assert found.spent == Spent(calls=4, input_tokens=20, output_tokens=8)
    assert found.walks is None
    assert found.tokens_per_question == pytest.approx(28 / 3)
    assert (found.pieces, found.chosen) == (None, {})


def test_nothing_is_said_of_what_is_not_there() -> None:
    found = summarize("memwalker", [result(1, failure="it broke")], [])
    assert (found.no_answer_rate, found.seconds, found.evidence_shown) == (None, None, None)
    assert found.spent.cost_micro_usd is None


def test_building_is_apart_and_prices_are_of_what_has_one() -> None:
    def build(document: str, place: str, cost: int | None) -> Build:
        spent = Spent(calls=3, input_tokens=30, output_tokens=3, cost_micro_usd=cost)
        return Build(strategy="memwalker", document=document, place=place, spent=spent, seconds=2.0)

    found = summarize("memwalker", [result(1)], [build("d", "a", 5), build("d", "b", None)])
    assert found.building == Spent(calls=6, input_tokens=60, output_tokens=6, cost_micro_usd=5)
    assert found.building_seconds == 2.0
    assert found.spent.calls == 2
    assert found.tokens_per_question == 14 + 66


def test_walks_are_counted_as_the_paper_does() -> None:
    found = summarize(
        "memwalker",
        [
            result(1, score=0.6, walk=walk(tokens=500)),
            result(2, score=0.5, walk=walk(reverts=2, tokens=1500)),
            result(3, score=0.4, walk=walk(reverts=1, valid=3, invalid=1, tokens=2000)),
            # With options a half is not right.
            result(4, score=0.9, options=("a", "b"), walk=walk(reverts=1, tokens=2000)),
            result(5, failure="it broke", walk=None),
        ],
        [],
    ).walks
    assert found is not None
    assert found.stray_ratio == 0.75
    assert found.recovery_rate == pytest.approx(1 / 3)
    assert found.valid_action_rate == pytest.approx(9 / 10)
    assert found.text_read == 1.5
    assert found.text_read_successful == 1.0


def test_the_share_of_text_read_is_a_mean_over_questions() -> None:
    walks = [walk(tokens=900), replace(walk(tokens=1000), text_tokens=10_000)]
    # One without text has no share.
    walks.append(replace(walk(), text_tokens=0))
    results = [result(number, walk=one) for number, one in enumerate(walks, 1)]
    found = summarize("memwalker", results, []).walks
    assert found is not None
    assert found.text_read == pytest.approx((0.9 + 0.1) / 2)


def test_no_stray_path_has_no_recovery_rate() -> None:
    found = summarize("memwalker", [result(1, walk=walk())], []).walks
    assert found is not None
    assert (found.stray_ratio, found.recovery_rate) == (0.0, None)


def test_browsing_and_choices_are_counted() -> None:
    found = summarize(
        "auto",
        [
            result(1, strategy="auto", chosen="whole", gold_cited=1.0, f1=0.5, rouge_l=0.25),
            result(2, strategy="auto", chosen="dciso-rank", pieces=4, gold_cited=0.0),
            result(3, strategy="auto", chosen="whole"),
            result(4, strategy="auto", failure="it broke"),
            result(5, strategy="auto", chosen="dciso-rank", pieces=1),
            result(6, strategy="auto", chosen="whole"),
        ],
        [],
    )
    assert list(found.chosen.items()) == [("whole", 3), ("dciso-rank", 2)]
    assert (found.pieces, found.gold_cited) == (2.5, 0.5)
    assert found.f1 == pytest.approx(0.5 / 6)
    assert found.rouge_l == pytest.approx(0.25 / 6)


def test_guesses_are_counted_apart() -> None:
    options = ("a", "b")
    results = [
        result(1, score=1.0, exact=1.0, options=options),
        result(2, score=1.0, exact=1.0, options=options, guessed=True, walk=walk(reverts=1)),
        result(3, options=options, guessed=True),
        result(4, no_answer="not_found", options=options),
        result(5, failure="it broke", options=options),
    ]
    found = summarize("memwalker", results, [])
    assert (found.score, found.score_without_guesses) == (0.4, 0.2)
    assert (found.guessed_rate, found.no_answer_rate) == (0.5, 0.25)
    assert found.walks is not None
    assert found.walks.recovery_rate == 0, "luck is no recovery"
    assert not is_right(results[1]), "nothing is to be learnt from a guess"
