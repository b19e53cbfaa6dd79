"""Calls that were paid for in vain: what explains them, and what does not."""

import pytest

from verification.chaos.history import ClientLeft, Event, LedgerRow, ModelCalled
from verification.chaos.paid_calls import LOSING_POINTS, Harm, Judge, Spending

LEASE_SECONDS = 2.0


def _called(serial: int, at: float, *, executor: str = "executor-1", **more: bool) -> ModelCalled:
    return ModelCalled(
        serial=serial,
        prompt="p",
        outcome="replied",
        is_paid=more.get("is_paid", True),
        is_whole=more.get("is_whole", True),
        asker=executor,
        seconds=0.005,
        at=at,
    )


def _spending(
    *harms: Harm, end: float | None = None, events: list[Event] | None = None
) -> Spending:
    """Returns one call at 100 whose reply is not in the ledger, and the same again at 103."""
    ends = {"executor-1": () if end is None else (end,), "executor-2": (100.1,)}
    made = events or [_called(1, 100.0), _called(2, 103.0)]
    ledger = [LedgerRow(session="s", reply="It is so [s2].")]
    return Judge(harms, ends, LEASE_SECONDS).spending(made, ledger)


def test_a_call_that_nothing_hit_is_a_violation() -> None:
    spent = _spending()
    assert (spent.paid, spent.lost, spent.explained) == (2, 1, {})
    (wrong,) = spent.violations
    assert wrong.promise == "paid-once"
    assert "call 1 of executor-1" in wrong.what
    assert "again 3.0 s later" in wrong.what


def test_the_end_of_its_executor_explains_it_and_that_of_another_does_not() -> None:
    assert _spending(end=100.2).explained == {"its executor ended": 1}
    assert not _spending(end=100.2).violations
    assert _spending(end=99.9).explained == {"its executor ended": 1}
    assert len(_spending(end=99.0).violations) == 1
    assert len(_spending(end=103.5).violations) == 1


@pytest.mark.parametrize("point", LOSING_POINTS)
def test_who_fails_on_purpose_before_the_row_loses_a_reply(point: str) -> None:
    assert _spending(Harm(what=point, begin=100.0, end=100.1)).explained == {"failed on purpose": 1}
    assert len(_spending(Harm(what="ack.before", begin=100.0, end=100.1)).violations) == 1


def test_an_executor_that_was_kept_longer_than_its_lease_has_lost_it() -> None:
    stall = Harm(what="stall", begin=99.5, end=101.0)
    stop = Harm(what="stop", process="executor-1", begin=101.0, end=101.8)
    assert _spending(stall, stop).explained == {"lost its lease": 1}
    assert len(_spending(stall).violations) == 1
    other = Harm(what="stop", process="executor-2", begin=99.0, end=103.0)
    assert len(_spending(other).violations) == 1


def test_what_overlaps_is_counted_once() -> None:
    harms = [Harm(what="stall", begin=100.0, end=101.2) for _ in range(3)]
    assert len(_spending(*harms).violations) == 1


def test_replies_that_are_broken_or_without_a_waiting_client_are_no_loss_of_an_executor() -> None:
    broken = _spending(events=[_called(1, 100.0, is_whole=False), _called(2, 103.0)])
    assert (broken.paid, broken.lost) == (2, 0)
    left: list[Event] = [_called(1, 100.0), ClientLeft(serial=1, at=100.1), _called(2, 103.0)]
    assert _spending(events=left).explained == {"nobody waited": 1}
    assert _spending(events=left, end=100.1).explained == {"its executor ended": 1}
    refused = _spending(events=[_called(1, 100.0, is_paid=False), _called(2, 103.0)])
    assert (refused.paid, refused.lost) == (1, 0)
