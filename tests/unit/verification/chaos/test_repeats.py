"""Which faults explain a reply that was paid and is not in the ledger, and which do not."""

from verification.chaos.history import ModelCalled
from verification.chaos.repeats import HELD_SECONDS, Repeats, find
from verification.chaos.switches import Action, Firing

EXECUTOR, OTHER = 7, 8


def called(serial: int, at: float, *, is_paid: bool = True) -> ModelCalled:
    return ModelCalled(
        serial=serial, prompt="", outcome="replied", is_paid=is_paid, at=at, asker=str(EXECUTOR)
    )


def fired(point: str, action: Action, at: float, pid: int = EXECUTOR) -> Firing:
    return Firing(point=point, action=action, pid=pid, at=at)


def found(*firings: Firing, lost: int = 1) -> Repeats:
    """Returns so many calls at 10, 10.1, …, whose replies are all lost."""
    calls = [called(number, 10 + number / 10) for number in range(lost)]
    return find(calls, [], firings, sleep_seconds=1.0)


def test_what_is_in_the_ledger_is_no_repeat_and_what_cost_nothing_neither() -> None:
    repeats = find([called(1, 1.0), called(2, 2.0, is_paid=False)], [1], [], 1.0)
    assert (repeats.paid, repeats.count, repeats.unexplained) == (1, 0, ())


def test_a_kill_costs_all_that_the_process_had() -> None:
    repeats = found(fired("calls.renew:committed", Action.KILL, 11), lost=3)
    assert repeats.causes == {"kill at calls.renew:committed": 3}
    assert repeats.unexplained == ()


def test_a_kill_of_another_process_or_at_another_time_explains_nothing() -> None:
    for one in (
        fired("calls.renew:committed", Action.KILL, 11, pid=OTHER),
        fired("calls.renew:committed", Action.KILL, 9 - HELD_SECONDS),
        fired("calls.record:commit", Action.RAISE, 9),
        fired("calls.renew:committed", Action.KILL, 11 + HELD_SECONDS),
    ):
        assert found(one).unexplained == ("call 0 of process 7 was paid, and its reply is lost",)


def test_who_was_killed_before_the_model_server_read_its_request_has_lost_the_reply() -> None:
    killed = fired("calls.record:committed", Action.KILL, 9.99)
    assert found(killed).causes == {"kill at calls.record:committed": 1}


def test_a_process_that_stood_still_may_have_had_it_longer() -> None:
    sleeps = [fired("model:replied", Action.SLEEP, 10 + number / 10) for number in range(2)]
    late = fired("model:replied", Action.KILL, 11 + HELD_SECONDS)
    assert found(*sleeps, late).causes == {"kill at model:replied": 1}


def test_one_that_raises_loses_the_call_that_it_is_at_and_no_other() -> None:
    repeats = found(fired("model:replied", Action.RAISE, 11), lost=2)
    assert repeats.causes == {"raise at model:replied": 1}
    assert len(repeats.unexplained) == 1


def test_one_that_raises_before_the_record_loses_all_that_share_it() -> None:
    repeats = found(fired("calls.record:commit", Action.RAISE, 11), lost=2)
    assert repeats.causes == {"raise at calls.record:commit": 2}


def test_one_that_raises_elsewhere_loses_nothing() -> None:
    for point in ("calls.record:committed", "calls.renew:committed", "model:called"):
        assert len(found(fired(point, Action.RAISE, 11)).unexplained) == 1
