"""A short run of the schedule that kills workers; `make chaos KILLS=1000` is the long one."""

import json
import subprocess
import sys

import pytest

from tests.chaos.points import Point

#: Each point three times.
KILLS = 3 * (len(Point) - 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_call_is_paid_twice_wherever_workers_are_killed() -> None:
    # In a process of its own: it forks, which a process with threads must not.
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "replay", "--kills", str(KILLS), "--seed", "7"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == []
    # A machine that stands still takes leases away, and each of those may cost a call.
    assert 0 <= result["paid"] - result["calls"] <= result["leases_lost"]
    assert set(result["kills_by_point"].values()) == {3}
