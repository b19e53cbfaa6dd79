"""Starting processes that do not outlive us, as a user that they may run as."""

import os
import pwd
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.settings.files import FILE

#: Names the descriptor that closes when this process ends; our Python processes watch it.
PARENT_FD = "PALIMPSEST_PARENT_FD"
#: How long a process of ours may take to end by itself once its parent is gone.
ORPHAN_SECONDS = 10.0
#: How long a tool such as initdb may take, on a slow disk too.
TOOL_SECONDS = 300.0
#: Ports that are chosen from. Linux gives away those from 32768 on, others higher ones.
PORTS = range(15_000, 32_000)
#: How many of them are tried before the kernel chooses one.
PORT_TRIES = 100
#: How much is read of the end of a log.
LOG_BYTES = 64 * 1024
#: Users that servers run as under root, the last one only if the others are missing.
NOBODY = "nobody"
SERVER_USERS = ("postgres", "palimpsest", NOBODY)
_COMPLAINT = re.compile(r"(?:error:|FATAL:|PANIC:|could not ).*")


class ServerError(Exception):
    """A server cannot be started or stopped; the message is one clear line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUser:
    """The user that servers run as. PostgreSQL refuses to run as root."""

    uid: int
    gid: int
    #: Whether it is another one than ours.
    other: bool
    #: Whether other services may run as it too, and so read the data and stop the servers.
    shared: bool = False

    @classmethod
    def current(cls) -> "ServerUser":
        """Returns this process's user; as root the first of SERVER_USERS that exists.

        Raises ServerError.
        """
        if os.geteuid() != 0:
            return cls.ourselves()
        for name in SERVER_USERS:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(uid=entry.pw_uid, gid=entry.pw_gid, other=True, shared=name == NOBODY)
        raise ServerError(f"started as root, and there is no user {' or '.join(SERVER_USERS)}")

    @classmethod
    def ourselves(cls) -> "ServerUser":
        """Returns the user of this process, also if it is root."""
        return cls(uid=os.geteuid(), gid=os.getegid(), other=False)

    def own(self, path: Path) -> None:
        """Gives a file or folder of ours to the user."""
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def can_reach(self, folder: Path) -> bool:
        """Returns whether the user can enter `folder` and all above it."""
        if not self.other:
            return True
        folder = folder.resolve()
        return all(self._can_enter(one) for one in (folder, *folder.parents))

    def _can_enter(self, folder: Path) -> bool:
        found = folder.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & 0o100)
        if found.st_gid == self.gid:
            return bool(found.st_mode & 0o010)
        return bool(found.st_mode & 0o001)


class ServerLog:
    """The open log of a server, so that no process can put another file in its place."""

    def __init__(self, handle: int, older: int) -> None:
        #: Its descriptor for writers: they always append.
        self.handle = handle
        #: The file of the log before the last rotation.
        self._older = older

    def close(self) -> None:
        """Closes it."""
        os.close(self.handle)
        os.close(self._older)

    def rotate(self, max_bytes: int) -> None:
        """Copies the log to its older file and empties it, if it has `max_bytes` or more.

        Writers keep the file open, so it cannot be moved. A line that is written in between is
        lost. Raises OSError.
        """
        if self.size() < max_bytes:
            return
        os.ftruncate(self._older, 0)
        at = 0
        while part := os.pread(self.handle, LOG_BYTES, at):
            at += len(part)
            while part:
                part = part[os.write(self._older, part) :]
        os.ftruncate(self.handle, 0)

    def size(self) -> int:
        """Returns how many bytes it has."""
        return os.fstat(self.handle).st_size

    def text(self, since: int = 0) -> str:
        """Returns the end of what was written after byte `since`, at most LOG_BYTES of it."""
        begin = max(since, self.size() - LOG_BYTES)
        return os.pread(self.handle, LOG_BYTES, begin).decode(errors="replace")

    def last_lines(self, count: int = 3, since: int = 0) -> str:
        """Returns the last lines of what was written after byte `since`, as one."""
        lines = self.text(since).strip().splitlines()
        return " | ".join(lines[-count:]) or "its log is empty"


#: Becomes a server: first the server's user, then tied to its parent, then the program.
#: A process of its own, since a function between fork and exec is not safe in a program
#: with threads (gRPC's fork handlers crash there). The tie comes last, because a change
#: of user undoes it.
_BECOME = """
import ctypes, os, sys
parent, signal, uid, gid = map(int, sys.argv[1:5])
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal)
if os.getppid() != parent:
    sys.exit("the parent is gone")
try:
    os.execv(sys.argv[5], sys.argv[5:])
except OSError as error:
    sys.exit(f"{sys.argv[5]} does not run: {error.strerror}")
"""


def spawn(
    command: Sequence[str],
    *,
    user: ServerUser,
    folder: Path,
    output: int,
    death_signal: int,
) -> "subprocess.Popen[bytes]":
    """Starts a server that gets `death_signal` when we die (on Linux).

    Call it from the main thread: Linux sends the signal when the thread that started
    the process ends. The process leads a group of its own.
    """
    identity = [user.uid, user.gid] if user.other else [os.geteuid(), os.getegid()]
    numbers = [os.getpid(), int(death_signal), *identity]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BECOME, *map(str, numbers), *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
    )


def run_as(command: Sequence[str], *, user: ServerUser, folder: Path) -> str:
    """Runs a tool of a server to its end; returns what it printed.

    It and what it started end when we do. Raises ServerError with its first complaint.
    """
    name = Path(command[0]).name
    process = None
    try:
        with deferred():
            process = spawn(
                command,
                user=user,
                folder=folder,
                output=subprocess.PIPE,
                death_signal=signal.SIGKILL,
            )
        output = process.communicate(timeout=TOOL_SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{name} is not done after {TOOL_SECONDS:.0f} s") from error
    finally:
        if process is not None and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        # The first complaint names the problem; the last lines are about cleaning up.
        found = _COMPLAINT.search(output)
        lines = output.strip().splitlines() or ["no output"]
        raise ServerError(f"{name} failed: {found[0] if found else lines[-1].strip()}")
    return output


def stop(process: "subprocess.Popen[bytes]", signals: Sequence[tuple[int, float]]) -> None:
    """Sends each signal and waits its seconds, until the process has ended."""
    for number, seconds in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        # A process that was stopped (SIGSTOP) cannot end before it continues.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()
        process.wait()


def free_port() -> int:
    """Returns a port of 127.0.0.1 that is free now.

    If possible, one outside the range of ephemeral ports: those the kernel may give to another
    process before the server starts, or starts again.
    """
    for _ in range(PORT_TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", secrets.choice(PORTS)))
            except OSError:
                # The port is taken.
                continue
            return int(probe.getsockname()[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(
    ready: Callable[[], bool],
    process: "subprocess.Popen[bytes]",
    seconds: float,
    log: ServerLog,
    log_begin: int,
) -> None:
    """Waits until a server is ready. Raises ServerError when it ends or time is up."""
    until = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None:
            raise ServerError(
                f"the server ended with {process.returncode}: {log.last_lines(10, log_begin)}"
            )
        if time.monotonic() > until:
            raise ServerError(
                f"the server is not ready after {seconds:.0f} s: {log.last_lines(3, log_begin)}"
            )
        time.sleep(0.005)


def watch_parent() -> None:
    """Ends this process when the one that started it is gone.

    The parent holds the other end of a pipe; whatever ends the parent closes it. Works
    everywhere, unlike Linux's death signal. Does nothing without PARENT_FD.
    """
    name = os.environ.get(PARENT_FD)
    if not name:
        return

    def watch(descriptor: int) -> None:
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, args=(int(name),), name="parent", daemon=True).start()


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns our environment with `changes`, for our own processes.

    They read settings where this process did, so secrets in files stay there.
    """
    # A setting that is changed is not to be looked for elsewhere as well.
    changed = {*changes, *(name + FILE for name in changes)}
    ours = {name: value for name, value in os.environ.items() if name.upper() not in changed}
    return {**ours, **changes}


#: Ctrl-C, what service managers send, and a terminal that was closed.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def deferred() -> Iterator[None]:
    """Delays signals until its block has ended; the first one is then delivered.

    Python runs handlers in the main thread only; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        # What is ignored stays ignored, as under nohup; what is not Python's cannot be put back.
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
