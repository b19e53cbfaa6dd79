"""A sweep gives a point up after so many sessions that do not reach it, never by time."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from verification.chaos.switches import Action, Switches
from verification.sweep.book import Book
from verification.sweep.running import _Site

POINT = "commit.step:committed"
MOST_SESSIONS = 3


@pytest.fixture
def switches(tmp_path: Path) -> Iterator[Switches]:
    opened = Switches(tmp_path / "switches")
    yield opened
    opened.close()


@pytest.fixture
def site(switches: Switches) -> _Site:
    """Returns a site with switches of its own, and traffic that only counts."""
    deployment = SimpleNamespace(switches=switches, sleep_seconds=0.0)
    book, traffic = Book([(POINT, Action.RAISE)], 1), SimpleNamespace(done=0)
    return _Site(cast(Any, deployment), book, cast(Any, traffic), 1, MOST_SESSIONS)


def test_a_point_is_waited_for_as_long_as_sessions_take(site: _Site, switches: Switches) -> None:
    site.look()
    with mock.patch.object(time, "monotonic", return_value=1e9):
        site.traffic.done = MOST_SESSIONS
        site.look()
    assert switches.is_set(POINT)
    assert site.wrong == []


def test_a_point_that_sessions_do_not_come_to_is_given_up(site: _Site, switches: Switches) -> None:
    site.look()
    site.traffic.done = MOST_SESSIONS + 1
    site.look()
    assert not switches.is_set(POINT)
    (told,) = site.wrong
    assert told.startswith(f"nobody came to {POINT} (raise) in {MOST_SESSIONS + 1} sessions")
