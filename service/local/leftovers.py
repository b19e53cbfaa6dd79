"""Finds and ends servers of ours that outlived the process that started them."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from service.local.processes import ServerError

#: How long each signal may take to work.
SIGNAL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessInfo:
    """A process, as the system shows it."""

    #: The user that it runs as.
    uid: int
    #: File name of its program, for example `postgres`.
    program: str
    #: What it was started with, or has put in that place since; the program first.
    arguments: tuple[str, ...]
    #: Its working folder, without links.
    folder: Path

    def value_of(self, option: str) -> str:
        """Returns the argument after `option`; empty when it is not there."""
        follows = dict(zip(self.arguments, self.arguments[1:], strict=False))
        return follows.get(option, "")


#: Returns whether a process is one of our servers.
IsOurs = Callable[[ProcessInfo], bool]


def end_leftovers(programs: Iterable[str], is_ours: IsOurs, first_signal: int) -> None:
    """Ends the processes that run one of `programs` and are ours.

    Searches all processes: a process id in a file may belong to another one by now.
    Raises ServerError when one does not end.
    """
    names = frozenset(programs)
    found = _find(names, is_ours)
    for number in (first_signal, signal.SIGKILL):
        for one in found:
            # It has ended by itself, its id belongs to another process by now, or it may not be
            # ended: then it is found again.
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
            if pid != os.getpid() and _program(process) in programs and is_ours(look(process)):
                found.append(process)
    return found


def look(process: psutil.Process) -> ProcessInfo:
    """Returns what the system shows of a process. Raises psutil.Error."""
    return ProcessInfo(
        uid=process.uids().effective,
        program=_program(process),
        arguments=tuple(one for one in process.cmdline() if one),
        folder=Path(process.cwd()),
    )


def _program(process: psutil.Process) -> str:
    # macOS knows no path of a program that was deleted.
    return Path(process.exe() or process.name()).name
