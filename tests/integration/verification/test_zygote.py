"""The zygote of the chaos runs: forks what is ordered, and again what was ended."""

import signal
from pathlib import Path

import pytest

from tests.support.harness import eventually
from verification.chaos.zygote import Zygote


@pytest.mark.prove
def test_it_starts_again_what_was_killed_and_leaves_what_was_forgotten(tmp_path: Path) -> None:
    with Zygote.started(tmp_path) as zygote:
        first = zygote.start(
            "one", ["run", "tests.integration.verification.test_zygote:_stay", "a"], {"B": "b"}
        )
        assert zygote.wait_ready("one") == "ready a b"

        zygote.signal("one", signal.SIGKILL)
        eventually("it runs again", lambda: zygote.status("one").starts == 2)
        assert zygote.wait_ready("one") == "ready a b"
        assert zygote.status("one").exits == (-signal.SIGKILL,)
        assert zygote.status("one").pid not in (None, first)

        zygote.forget("one")
        zygote.signal("one", signal.SIGTERM)
        assert zygote.wait_ended("one", 60.0) == (-signal.SIGKILL, -signal.SIGTERM)
        assert not zygote.signal("one", signal.SIGKILL)


def _stay(argument: str) -> None:
    """Runs in the child."""
    import os
    import time

    print("ready", argument, os.environ["B"], flush=True)
    time.sleep(600)
