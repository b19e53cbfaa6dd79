"""Starting an executor. It loads for longer than its worker does, so it is started first,
by a worker that has loaded nothing yet: this module imports nothing of ours."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

#: Names the descriptor that closes when `up` ends: the executor belongs to it, as the worker
#: does, and not to the worker. Without `up` it belongs to no process.
PARENT_FD = "PALIMPSEST_PARENT_FD"


@dataclass(frozen=True, slots=True)
class Spawned:
    """An executor, and our end of the socket to it."""

    process: subprocess.Popen[bytes]
    end: socket.socket


def near_model(model: str) -> bool:
    """Whether a model is asked in the worker itself: one that runs there and costs nothing."""
    return model.startswith("offline/")


def spawn(metrics_listen: str | None) -> Spawned:
    """Starts an executor, which ends when our end of the socket is closed.

    `metrics_listen`: HOST:PORT where it serves its metrics, if it does.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        parent = os.environ.get(PARENT_FD)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "service.cli", "executor", "--fd", str(theirs.fileno())),
                # Also where there is none: the variable is its worker's.
                *("--metrics-listen", metrics_listen or ""),
            ],
            pass_fds=[theirs.fileno(), *([int(parent)] if parent else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # What ends the worker's process group does not end its calls.
            start_new_session=True,
        )
    ours.setblocking(False)
    return Spawned(process, ours)
