"""Finds and ends servers of ours that outlived the process that started them."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from service.local.processes import ServerError

#: How long each signal may take to work.
SIGNAL_SECONDS = 5.0


#: Returns whether a process is one of our servers. It may raise psutil.Error.
IsOurs = Callable[[psutil.Process], bool]


def end_leftovers(programs: Iterable[str], is_ours: IsOurs, first_signal: int) -> None:
    """Ends the processes that run one of `programs` and are ours.

    Searches all processes: a process id in a file may belong to another one by now.
    Raises ServerError when one does not end.
    """
    names = frozenset(programs)
    found = _find(names, is_ours)
    for number in (first_signal, signal.SIGKILL):
        for one in found:
            # It has ended, its id belongs to another process, or it may not be ended: then it is
            # found again.
            with suppress(psutil.Error):
                one.send_signal(number)
                # A stopped process cannot end before it continues.
                one.resume()
        until = time.monotonic() + SIGNAL_SECONDS
        while (found := _find(names, is_ours)) and time.monotonic() < until:
            time.sleep(0.02)
        if not found:
            return
    pids = ", ".join(str(one.pid) for one in found)
    raise ServerError(f"servers of an earlier run do not end, even when killed: process {pids}")


def _find(programs: frozenset[str], is_ours: IsOurs) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        # Gone meanwhile, a zombie, or closed to this user: not ours.
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if pid != os.getpid() and program_of(process) in programs and is_ours(process):
                found.append(process)
    return found


def arguments_of(process: psutil.Process) -> list[str]:
    """Returns the program and what it was started with, or has put in that place since."""
    return [one for one in process.cmdline() if one]


def program_of(process: psutil.Process) -> str:
    """Returns the file name of the program of a process, for example `postgres`."""
    # macOS knows no path of a program that was deleted.
    return Path(process.exe() or process.name()).name
