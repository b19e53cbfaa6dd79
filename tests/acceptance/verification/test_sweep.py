"""A short sweep: every point fires once; `make sweep` does it a hundred times."""

import json
import subprocess
import sys

import pytest

from verification.chaos.points import points

#: Chooses the order, and what each point does.
SEED = 7


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_done_twice_wherever_processes_fail() -> None:
    # In a process of its own: what it forks must not have the threads of this one.
    command = [sys.executable, "-m", "verification.chaos", "sweep", "--one-each", "--times", "1"]
    done = subprocess.run(
        # On a busy machine a process without a processor for longer than its leases loses them.
        [
            *(*command, "--seed", str(SEED)),
            *("--deployments", "1", "--at-once", "16", "--slowness", "2"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == []
    assert result["fired"] == result["points"] == len(points())
    assert result["chunks_acked"] > 0
