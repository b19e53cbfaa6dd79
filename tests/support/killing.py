"""Kills a process of the service by SIGKILL when it reaches a boundary for the n-th time.

For boundaries that no sweep has; `verification.chaos.switches` does so for those that it has.
"""

import os
import signal
from collections.abc import Mapping

from service.domain.values import fault_hook
from service.usecases.access import sources

_BOUNDARY, _TIMES = "KILL_AT", "KILL_TIMES"


def killed_at(boundary: str, times: int) -> Mapping[str, str]:
    """Returns the environment of a process that dies at a boundary, `name:step`."""
    return {"PALIMPSEST_FAULTS": f"{__name__}:install", _BOUNDARY: boundary, _TIMES: str(times)}


def install() -> None:
    """Makes this process die where its environment says."""
    boundary, left = os.environ[_BOUNDARY], int(os.environ[_TIMES])

    def count(reached: str) -> None:
        nonlocal left
        left -= reached == boundary
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_hook.install(count)


def quarantines_are_large() -> Mapping[str, str]:
    """Returns the environment of an API server that leaves each quarantine to workers."""
    return {"PALIMPSEST_FAULTS": f"{__name__}:leave_to_workers"}


def leave_to_workers() -> None:
    """Makes this process take no memory for small."""
    sources.AT_ONCE_REVISIONS = 0
