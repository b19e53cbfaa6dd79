"""The checker of histories passes a correct one, and names each broken promise."""

from dataclasses import replace

import pytest

from tests.unit.verification.chaos.corruptions import CORRUPTIONS, Corruption, requested
from tests.unit.verification.chaos.made_history import Maker
from verification.chaos import promises
from verification.chaos.checker import check
from verification.chaos.history import ModelCalled
from verification.chaos.promises import PROMISES


def test_a_history_that_the_model_made_keeps_all_promises() -> None:
    made = Maker().make()
    report = check(made.events, made.final)
    assert report.violations == []
    assert report.is_clean
    looked_at = ("chunks", "acks", "pages", "reads", "watches", "edits", "answers", "values")
    assert all(report.counts[name] > 0 for name in looked_at)


def test_requests_are_looked_at() -> None:
    made = Maker().make()
    report = check([*made.events, requested(made), requested(made)], made.final)
    assert report.violations == []
    assert report.counts["requests"] == 2


@pytest.mark.parametrize(
    "corruption", CORRUPTIONS, ids=[f"{one.promise}: {one.name}" for one in CORRUPTIONS]
)
def test_a_broken_promise_is_reported_by_its_name(corruption: Corruption) -> None:
    made = corruption.corrupt(Maker().make())
    report = check(made.events, made.final)
    assert corruption.promise in {one.promise for one in report.violations}
    assert not report.is_clean


def test_each_promise_is_broken_by_some_history() -> None:
    assert {one.promise for one in CORRUPTIONS} == PROMISES.keys()


def test_what_is_not_drained_may_be_behind() -> None:
    made = Maker().make()
    (session,) = made.final.sessions
    stalled = tuple(replace(one, status="stalled") for one in session.memories)
    final = replace(made.final, sessions=(replace(session, memories=stalled),))
    assert check(made.events, final, drained=False).is_clean


def test_prompts_that_were_paid_for_twice_are_counted() -> None:
    made = Maker().make()
    again = [
        ModelCalled(serial=serial, prompt="p1", outcome="replied", is_paid=serial > 901, at=9e9)
        for serial in (901, 902, 903)
    ]
    report = check([*made.events, *again], made.final)
    assert report.is_clean
    assert (report.counts["paid_twice"], report.counts["prompts_paid_twice"]) == (2, 1)


def test_of_many_violations_the_first_are_kept_and_all_are_counted() -> None:
    made = Maker().make()
    rows = [*made.final.ledger] * (promises.KEPT + 1)
    report = check(made.events, replace(made.final, ledger=rows))
    kept = [one for one in report.violations if one.promise == "ledger-once"]
    assert len(kept) == promises.KEPT
    assert report.counts["ledger-once"] == 60 * promises.KEPT
