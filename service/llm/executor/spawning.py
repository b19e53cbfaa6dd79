"""Starts executors. They load longer than their workers, so a worker starts its executor before it
loads anything: this module imports nothing of ours."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

#: The variable with the descriptor that closes when `up` ends: the executor ends with it, not with
#: its worker.
PARENT_FD = "PALIMPSEST_PARENT_FD"


@dataclass(frozen=True, slots=True)
class Spawned:
    """An executor, and our end of the socket to it."""

    process: subprocess.Popen[bytes]
    end: socket.socket


def near_model(model: str) -> bool:
    """Returns whether a model runs in the worker itself, and costs nothing."""
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
            # A signal to the worker's process group must not end its calls.
            start_new_session=True,
        )
    ours.setblocking(False)
    return Spawned(process, ours)
