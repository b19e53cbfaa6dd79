"""The switches that processes share, and how a process of the service takes part."""

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.app import faults
from service.domain.values import fault_hook
from service.domain.values.fault_hook import boundary
from verification.chaos.switches import Action, Counts, FailedOnPurpose, Switches, environment

#: A process that was started and has not ended after so long hangs.
HANG_SECONDS = 100.0
STEP, TREE, ACK = "commit.step:committed", "commit.tree:committed", "append:ack"


def reach(point: str) -> None:
    name, _, step = point.partition(":")
    boundary(name, step)


@pytest.fixture
def switches(tmp_path: Path) -> Iterator[Switches]:
    opened = Switches(tmp_path / "switches")
    yield opened
    opened.close()


@pytest.fixture
def acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process fail where the switches say so, as one of the service does."""
    for name, value in environment(tmp_path / "switches").items():
        monkeypatch.setenv(name, value)
    faults.install()
    yield
    fault_hook.install(None)


def test_nothing_happens_without_a_hook() -> None:
    boundary("commit.step", "committed")


@pytest.mark.prove
def test_a_switch_works_once(switches: Switches, acting: None) -> None:
    reach(STEP)
    switches.set(STEP, Action.RAISE)
    assert switches.is_set(STEP)
    reach(TREE)
    with pytest.raises(FailedOnPurpose, match=STEP):
        reach(STEP)
    reach(STEP)
    assert not switches.is_set(STEP)
    assert switches.counts(STEP) == Counts(reached=3, failed=1)
    assert switches.counts(TREE) == Counts(reached=1, failed=0)


def test_a_switch_can_let_some_pass_before_it_works(switches: Switches, acting: None) -> None:
    switches.set(STEP, Action.RAISE, skip=2)
    for _ in range(2):
        reach(STEP)
    with pytest.raises(FailedOnPurpose):
        reach(STEP)
    reach(STEP)
    assert switches.counts(STEP) == Counts(reached=4, failed=1)


def test_a_boundary_that_is_no_point_passes(switches: Switches, acting: None) -> None:
    boundary("doctor", "committed")
    assert switches.firings() == []


@pytest.mark.parametrize(
    "entry",
    [
        "os:abort",
        "",
        "tests",
        "verification.chaos.nowhere:install",
        "verification.chaos.switches:gone",
    ],
)
def test_only_functions_of_the_tests_are_called(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_FAULTS", entry)
    with pytest.raises(ValueError, match=r"PALIMPSEST_FAULTS .*; unset it"):
        faults.install()


def test_two_processes_share_a_switch_and_one_of_them_fails(
    switches: Switches, tmp_path: Path
) -> None:
    switches.set(ACK, Action.RAISE)
    ends = _run(tmp_path / "switches", ACK, processes=2)
    assert Counter(ends) == {0: 1, 1: 1}
    assert switches.counts(ACK) == Counts(reached=2, failed=1)


def test_a_process_is_killed_where_it_is(switches: Switches, tmp_path: Path) -> None:
    switches.set(ACK, Action.KILL)
    (end,) = _run(tmp_path / "switches", ACK, processes=1)
    assert end == -signal.SIGKILL
    assert switches.counts(ACK) == Counts(reached=1, failed=1)
    # What it did it had written down before.
    (fired,) = switches.firings()
    assert (fired.point, fired.action) == (ACK, Action.KILL)
    assert fired.pid != os.getpid()


def test_firings_are_listed_in_their_order(switches: Switches, acting: None) -> None:
    points = (STEP, TREE, STEP)
    for point in points:
        switches.set(point, Action.RAISE)
        with pytest.raises(FailedOnPurpose):
            reach(point)
        reach(point)
    fired = switches.firings()
    assert [one.point for one in fired] == list(points)
    assert [one.pid for one in fired] == [os.getpid()] * 3
    assert sorted(one.at for one in fired) == [one.at for one in fired]
    assert switches.firings(2) == fired[2:]


def test_a_process_stands_still_as_long_as_the_switch_says(
    switches: Switches, tmp_path: Path
) -> None:
    switches.set(ACK, Action.SLEEP, seconds=HANG_SECONDS * 2)
    process = _start(tmp_path / "switches", ACK)
    until = time.monotonic() + HANG_SECONDS
    while switches.is_set(ACK):
        assert time.monotonic() < until, "nobody came to the point"
        time.sleep(0.01)
    # It came there, and would have ended by itself only after twice the time to hang.
    assert process.is_alive()
    process.kill()
    process.join()
    assert switches.counts(ACK) == Counts(reached=1, failed=1)


def _run(path: Path, point: str, *, processes: int) -> list[int | None]:
    """Returns how processes end that reach a point, at about the same time."""
    started = [_start(path, point) for _ in range(processes)]
    for process in started:
        process.join(HANG_SECONDS)
        assert not process.is_alive(), "it hangs"
    return [process.exitcode for process in started]


def _start(path: Path, point: str) -> multiprocessing.process.BaseProcess:
    # Of its own, not forked: the tests' process has threads.
    process = multiprocessing.get_context("spawn").Process(target=_reach, args=(path, point))
    process.start()
    return process


def _reach(path: Path, point: str) -> None:
    fault_hook.install(Switches(path).act)
    try:
        reach(point)
    except FailedOnPurpose:
        raise SystemExit(1) from None
