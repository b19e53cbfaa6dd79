"""Finds and ends servers of ours that outlived the process that started them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from service.local.processes import ServerError

#: How long each signal may take to work.
SIGNAL_SECONDS = 5.0
_PROC = Path("/proc")
#: What Linux adds to the name of a program that was replaced or removed meanwhile.
_DELETED = " (deleted)"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessInfo:
    """A process, as the system shows it."""

    #: Process id.
    pid: int
    #: The user that it runs as.
    uid: int
    #: File name of its program, for example `postgres`.
    program: str
    #: What it was started with, or has put in that place since; the program first.
    arguments: tuple[str, ...]
    #: Its working folder, without links.
    folder: Path

    def value_of(self, option: str) -> str:
        """What follows `option` among the arguments; empty when it is not there."""
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
            _signal(one, number, is_ours)
        until = time.monotonic() + SIGNAL_SECONDS
        while (found := _find(names, is_ours)) and time.monotonic() < until:
            time.sleep(0.02)
        if not found:
            return
    pids = ", ".join(str(one.pid) for one in found)
    raise ServerError(f"servers of an earlier run do not end, even when killed: process {pids}")


def _find(programs: frozenset[str], is_ours: IsOurs) -> list[ProcessInfo]:
    return [one for one in _look_at_all(programs) if one.pid != os.getpid() and is_ours(one)]


def _signal(one: ProcessInfo, number: int, is_ours: IsOurs) -> None:
    """Signals a process, and also continues it if it was stopped."""
    try:
        if sys.platform != "linux":
            os.kill(one.pid, number)
            os.kill(one.pid, signal.SIGCONT)
            return
        # The id may belong to another process by now. A descriptor pins the process, so that
        # a second look is at the one that is signalled.
        handle = os.pidfd_open(one.pid)
        try:
            again = look(one.pid)
            if again is not None and is_ours(again):
                signal.pidfd_send_signal(handle, number)
                signal.pidfd_send_signal(handle, signal.SIGCONT)
        finally:
            os.close(handle)
    except ProcessLookupError:
        # It has ended by itself.
        return


def all_of_proc(programs: frozenset[str]) -> Iterator[ProcessInfo]:
    """The processes that run one of the programs, by Linux's /proc."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        if _program(entry) in programs:
            found = look(int(entry.name))
            if found is not None:
                yield found


def _program(entry: Path) -> str:
    try:
        return Path(os.readlink(entry / "exe").removesuffix(_DELETED)).name
    except OSError:
        # Gone meanwhile, a zombie, or of a user whom we may not look at: not ours.
        return ""


def look(pid: int) -> ProcessInfo | None:
    """The process in Linux's /proc; None when it is gone or not ours to look at."""
    entry = _PROC / str(pid)
    try:
        return ProcessInfo(
            pid=pid,
            uid=entry.stat().st_uid,
            program=_program(entry),
            arguments=tuple(
                os.fsdecode(one) for one in (entry / "cmdline").read_bytes().split(b"\0") if one
            ),
            folder=Path(os.readlink(entry / "cwd")),
        )
    except OSError:
        return None


def all_of_lsof(programs: frozenset[str]) -> Iterator[ProcessInfo]:
    """The same where there is no /proc, as on macOS."""
    lsof = shutil.which("lsof") or "/usr/sbin/lsof"
    named = [part for program in sorted(programs) for part in ("-c", program)]
    try:
        lines = _output([lsof, "-w", "-a", "-d", "cwd", *named, "-F", "pucn"])
    except FileNotFoundError:
        return
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith("p"):
            fields = {}
        fields[line[:1]] = line[1:]
        # The name comes last of what is asked for.
        if line.startswith("n") and "p" in fields:
            yield _from_lsof(fields, programs)


def _from_lsof(fields: dict[str, str], programs: frozenset[str]) -> ProcessInfo:
    command = " ".join(_output(["ps", "-ww", "-o", "command=", "-p", fields["p"]]))
    # The name is cut to a few letters there, and `-c` looks at its beginning only.
    name = fields.get("c", "")
    program = next((one for one in sorted(programs) if one[:9] == name[:9]), name)
    return ProcessInfo(
        pid=int(fields["p"]),
        uid=int(fields["u"]),
        program=program,
        arguments=tuple(command.split()),
        folder=Path(fields["n"]).resolve(),
    )


def _output(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


_look_at_all = all_of_proc if sys.platform == "linux" else all_of_lsof
