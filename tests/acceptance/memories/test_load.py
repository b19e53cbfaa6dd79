"""The benchmarks of load, as small as they can be: what they count, not how long it takes."""

import asyncio
from collections.abc import Iterator

import pytest

from verification.benchmarks import isolation, load, recovery, soak
from verification.benchmarks.load_stack import Stack, count_behind, one, stack

# The first one starts servers, an API, a worker and its executor.
pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]

#: Times that the slow session's model is slower.
SLOWER = 10


@pytest.fixture(scope="module")
def made() -> Iterator[Stack]:
    habits = (*isolation.habits(SLOWER), *soak.HABITS)
    with stack(1, model_seconds=0.1, habits=habits) as made:
        yield made


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_load_acks_and_applies_all(made: Stack, runner: asyncio.Runner) -> None:
    found = load.measure(made, runner, sessions=3, chunks=60, concurrency=16)
    assert found["chunks"] == 60
    assert found["ack"]["count"] == 6
    assert found["ask"]["failed"] == {}
    assert found["calls"] >= 3
    assert set(found["memory"]) == {"api", "worker-1", "executor-1", "postgres"}
    assert found["connections"]["by_process"]["api"] > 0
    assert "palimpsest-work" in found["connections"]["by_name"]
    with made.connect() as connection:
        assert count_behind(connection) == 0
        applied = "SELECT sum(applied_position)::int FROM memory"
        # One chunk more woke the worker.
        assert one(connection, applied) == 61


def test_a_round_of_isolation_has_both_kinds(made: Stack, runner: asyncio.Runner) -> None:
    found = isolation.measure(made, runner, sessions=2, pairs=1, round_seconds=2, slower=SLOWER)
    assert len(found["pairs"]) == 1
    assert found["without"]["count"] >= 2
    assert found["with"]["count"] >= 2


def test_a_soak_does_all_kinds_of_work(made: Stack, runner: asyncio.Runner) -> None:
    found = soak.measure(made, runner, minutes=0.1, sessions=2, pause_seconds=0.1)
    often = {"append", "context", "read"}
    assert often <= set(found["done"])
    # What failed would be there by its reason.
    assert set(found["done"]) <= often | {
        *("ask", "read_fresh", "read_log", "search", "watch_anew", "watched")
    }
    assert set(found["growth_mb_a_minute"]) == {"api", "worker-1", "executor-1"}


def test_acks_come_again_after_a_restart(made: Stack) -> None:
    took, starts = recovery.restart_postgres(made, 1)
    assert (len(took), len(starts)) == (1, 1)
