"""Which faults explain a reply that was paid and is not in the ledger, and which do not."""

from service.domain.fail_points import FailPoint
from service.fail_points import Action, Firing
from tests.chaos.history import ModelCalled
from tests.chaos.repeats import HELD_SECONDS, Repeats, find

CALLER, OTHER = 7, 8


def called(serial: int, at: float, *, is_paid: bool = True) -> ModelCalled:
    return ModelCalled(
        serial=serial, prompt="", outcome="replied", is_paid=is_paid, at=at, asker=str(CALLER)
    )


def fired(point: FailPoint, action: Action, at: float, pid: int = CALLER) -> Firing:
    return Firing(point=point, action=action, pid=pid, at=at)


def found(*firings: Firing, lost: int = 1) -> Repeats:
    """So many calls at 10, 10.1, …, whose replies are all lost."""
    calls = [called(number, 10 + number / 10) for number in range(lost)]
    return find(calls, [], firings, sleep_seconds=1.0)


def test_what_is_in_the_ledger_is_no_repeat_and_what_cost_nothing_neither() -> None:
    repeats = find([called(1, 1.0), called(2, 2.0, is_paid=False)], [1], [], 1.0)
    assert (repeats.paid, repeats.count, repeats.unexplained) == (1, 0, ())


def test_a_kill_costs_all_that_the_process_had() -> None:
    repeats = found(fired(FailPoint.RENEWED, Action.KILL, 11), lost=3)
    assert repeats.causes == {"kill at renewal.committed": 3}
    assert repeats.unexplained == ()


def test_a_kill_of_another_process_or_at_another_time_explains_nothing() -> None:
    for one in (
        fired(FailPoint.RENEWED, Action.KILL, 11, pid=OTHER),
        fired(FailPoint.RENEWED, Action.KILL, 9 - HELD_SECONDS),
        fired(FailPoint.RECORD_BEFORE, Action.RAISE, 9),
        fired(FailPoint.RENEWED, Action.KILL, 11 + HELD_SECONDS),
    ):
        assert found(one).unexplained == ("call 0 of process 7 was paid, and its reply is lost",)


def test_who_was_killed_before_the_model_server_read_its_request_has_lost_the_reply() -> None:
    killed = fired(FailPoint.RECORD_WRITTEN, Action.KILL, 9.99)
    assert found(killed).causes == {"kill at record.written": 1}


def test_a_process_that_stood_still_may_have_had_it_longer() -> None:
    sleeps = [fired(FailPoint.CALL_MADE, Action.SLEEP, 10 + number / 10) for number in range(2)]
    late = fired(FailPoint.CALL_MADE, Action.KILL, 11 + HELD_SECONDS)
    assert found(*sleeps, late).causes == {"kill at call.made": 1}


def test_one_that_raises_loses_the_call_that_it_is_at_and_no_other() -> None:
    repeats = found(fired(FailPoint.MODEL_REPLIED, Action.RAISE, 11), lost=2)
    assert repeats.causes == {"raise at model.replied": 1}
    assert len(repeats.unexplained) == 1


def test_one_that_raises_before_the_record_loses_all_that_share_it() -> None:
    repeats = found(fired(FailPoint.RECORD_BEFORE, Action.RAISE, 11), lost=2)
    assert repeats.causes == {"raise at record.before": 2}


def test_one_that_raises_elsewhere_loses_nothing() -> None:
    for point in (FailPoint.CALL_RECORDED, FailPoint.RENEWED, FailPoint.MODEL_BEFORE):
        assert len(found(fired(point, Action.RAISE, 11)).unexplained) == 1
