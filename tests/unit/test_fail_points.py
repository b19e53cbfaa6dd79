"""The registry of fail points, and the switches that processes share."""

import ast
import multiprocessing
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain import fail_points
from service.domain.fail_points import FailPoint, reach
from service.fail_points import Action, Counts, FailedOnPurpose, Switches, install

ROOT = Path(__file__).parents[2]
#: DURABILITY.md asks for 40; a boundary that is taken away is to be noticed.
LEAST_POINTS = 128
#: A process that was forked and has not ended after so long hangs.
HANG_SECONDS = 100.0


@pytest.fixture
def switches(tmp_path: Path) -> Iterator[Switches]:
    opened = Switches(tmp_path / "switches")
    yield opened
    opened.close()


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[None]:
    """This process fails where the switches say so."""
    install(tmp_path / "switches")
    yield
    fail_points.act(None)


def test_every_point_is_reached_from_one_place_in_the_source() -> None:
    names = Counter(name for file in _sources() for name in _reached(file))
    assert set(names) == {point.name for point in FailPoint}
    # One name, one boundary: else a schedule would not know where a process fails.
    assert {name: times for name, times in names.items() if times > 1} == {}
    assert len(names) >= LEAST_POINTS


def _sources() -> list[Path]:
    folders = (ROOT / "service", ROOT / "storage")
    own = ROOT / "service" / "domain" / "fail_points.py"
    return [file for folder in folders for file in folder.rglob("*.py") if file != own]


def _reached(file: Path) -> list[str]:
    """The points that a file reaches; each call names one as it stands."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id != "reach":
                continue
            (point,) = node.args
            assert isinstance(point, ast.Attribute), ast.dump(node)
            assert ast.unparse(point.value) == "FailPoint", ast.dump(node)
            found.append(point.attr)
    return found


def test_names_of_points_are_words_with_a_dot_and_said_once() -> None:
    values = [point.value for point in FailPoint]
    assert len(values) == len(set(values))
    assert [one for one in values if not re.fullmatch(r"[a-z_]+\.[a-z_]+", one)] == []


def test_nothing_happens_where_nobody_was_told_to_act() -> None:
    reach(FailPoint.COMMITTED)


def test_a_switch_works_once(switches: Switches, acting: None) -> None:
    reach(FailPoint.COMMITTED)
    switches.set(FailPoint.COMMITTED, Action.RAISE)
    assert switches.is_set(FailPoint.COMMITTED)
    reach(FailPoint.STORED)
    with pytest.raises(FailedOnPurpose, match=r"commit\.committed"):
        reach(FailPoint.COMMITTED)
    reach(FailPoint.COMMITTED)
    assert not switches.is_set(FailPoint.COMMITTED)
    assert switches.counts(FailPoint.COMMITTED) == Counts(reached=3, failed=1)
    assert switches.counts(FailPoint.STORED) == Counts(reached=1, failed=0)


def test_two_processes_share_a_switch_and_one_of_them_fails(
    switches: Switches, tmp_path: Path
) -> None:
    switches.set(FailPoint.ACK_BEFORE, Action.RAISE)
    ends = _run(tmp_path / "switches", FailPoint.ACK_BEFORE, processes=2)
    assert Counter(ends) == {0: 1, 1: 1}
    assert switches.counts(FailPoint.ACK_BEFORE) == Counts(reached=2, failed=1)


def test_a_process_is_killed_where_it_is(switches: Switches, tmp_path: Path) -> None:
    switches.set(FailPoint.ACK_BEFORE, Action.KILL)
    (end,) = _run(tmp_path / "switches", FailPoint.ACK_BEFORE, processes=1)
    assert end == -signal.SIGKILL
    assert switches.counts(FailPoint.ACK_BEFORE) == Counts(reached=1, failed=1)
    # What it did it had written down before.
    (fired,) = switches.firings()
    assert (fired.point, fired.action) == (FailPoint.ACK_BEFORE, Action.KILL)
    assert fired.pid != os.getpid()


def test_what_fired_is_told_in_its_order(switches: Switches, acting: None) -> None:
    points = (FailPoint.COMMITTED, FailPoint.STORED, FailPoint.COMMITTED)
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
    switches.set(FailPoint.ACK_BEFORE, Action.SLEEP, seconds=HANG_SECONDS * 2)
    process = _start(tmp_path / "switches", FailPoint.ACK_BEFORE)
    until = time.monotonic() + HANG_SECONDS
    while switches.is_set(FailPoint.ACK_BEFORE):
        assert time.monotonic() < until, "nobody came to the point"
        time.sleep(0.01)
    # It came there, and would have ended by itself only after twice the time to hang.
    assert process.is_alive()
    process.kill()
    process.join()
    assert switches.counts(FailPoint.ACK_BEFORE) == Counts(reached=1, failed=1)


def _run(path: Path, point: FailPoint, *, processes: int) -> list[int | None]:
    """How processes end that reach a point, at about the same time."""
    started = [_start(path, point) for _ in range(processes)]
    for process in started:
        process.join(HANG_SECONDS)
        assert not process.is_alive(), "it hangs"
    return [process.exitcode for process in started]


def _start(path: Path, point: FailPoint) -> multiprocessing.process.BaseProcess:
    # Of its own, not forked: the tests' process has threads.
    process = multiprocessing.get_context("spawn").Process(target=_reach, args=(path, point))
    process.start()
    return process


def _reach(path: Path, point: FailPoint) -> None:
    fail_points.act(Switches(path).act)
    try:
        reach(point)
    except FailedOnPurpose:
        raise SystemExit(1) from None
