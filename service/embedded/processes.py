"""Starting processes that do not outlive us, as a user that they may run as."""

import fcntl
import os
import pwd
import secrets
import shutil
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

#: Names the descriptor whose closing tells our Python processes that we are gone.
PARENT_FD = "PALIMPSEST_PARENT_FD"
#: How long a process of ours may take to end by itself once its parent is gone.
ORPHAN_SECONDS = 10.0


class ServerError(Exception):
    """A server cannot be started or stopped; the message is one clear line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUser:
    """The user that servers run as. PostgreSQL refuses to run as root."""

    uid: int
    gid: int
    #: Whether it is another one than ours.
    other: bool

    @classmethod
    def current(cls) -> "ServerUser":
        """Ourselves; as root the user `postgres`, else `nobody`."""
        if os.geteuid() != 0:
            return cls(uid=os.geteuid(), gid=os.getegid(), other=False)
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(uid=entry.pw_uid, gid=entry.pw_gid, other=True)
        raise ServerError("started as root, and there is no user `nobody` for the servers")

    def own(self, path: Path) -> None:
        """Gives a file or folder of ours to the user."""
        if self.other:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, folder: Path) -> bool:
        """Whether the user can enter `folder` and all above it."""
        if not self.other:
            return True
        return all(self._can_enter(one) for one in (folder, *folder.parents))

    def _can_enter(self, folder: Path) -> bool:
        found = folder.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & 0o100)
        if found.st_gid == self.gid:
            return bool(found.st_mode & 0o010)
        return bool(found.st_mode & 0o001)


def make_folder(folder: Path, user: ServerUser) -> None:
    """Makes a folder for a server, 0700 and the user's. Raises ServerError.

    Folders above that do not exist are made too; those that exist are left as they
    are, so a closed one is an error.
    """
    try:
        for parent in reversed(folder.parents):
            if not parent.exists():
                parent.mkdir(mode=0o755)
        folder.mkdir(mode=0o700, exist_ok=True)
        user.own(folder)
    except OSError as error:
        raise ServerError(f"cannot make the folder {folder}: {error.strerror}") from error
    if not user.can_reach(folder):
        raise ServerError(
            f"started as root, and the servers' user cannot enter {folder};"
            " choose a data folder outside closed homes"
        )


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
os.execv(sys.argv[5], sys.argv[5:])
"""


def spawn(
    command: Sequence[str],
    *,
    user: ServerUser,
    folder: Path,
    log: Path,
    death_signal: int,
) -> "subprocess.Popen[bytes]":
    """Starts a server that gets `death_signal` when we die (on Linux).

    Call it from the main thread: Linux sends the signal when the thread that started
    the process ends.
    """
    identity = [user.uid, user.gid] if user.other else [os.geteuid(), os.getegid()]
    numbers = [os.getpid(), int(death_signal), *identity]
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BECOME, *map(str, numbers), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
        )


def run_as(command: Sequence[str], *, user: ServerUser, folder: Path) -> None:
    """Runs a tool of a server to its end. Raises ServerError with its last line."""
    identity = {"user": user.uid, "group": user.gid, "extra_groups": []} if user.other else {}
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
        **identity,  # type: ignore[call-overload]
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise ServerError(f"{Path(command[0]).name} failed: {lines[-1]}")


def stop(process: "subprocess.Popen[bytes]", signals: Sequence[tuple[int, float]]) -> None:
    """Sends each signal and waits its seconds, until the process has ended."""
    for number, seconds in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()
        process.wait()


def end_leftovers(folder: Path) -> None:
    """Ends processes that work in `folder`: servers whose parent was killed.

    They are found by their working folder, since a process id in a file may be
    somebody else's by now.
    """
    pids = _working_in(folder)
    for number, seconds in ((signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        for pid in pids:
            _signal(pid, number)
        until = time.monotonic() + seconds
        while (pids := _working_in(folder)) and time.monotonic() < until:
            time.sleep(0.02)
        if not pids:
            return
    raise ServerError(f"processes still work in {folder}: {', '.join(map(str, pids))}")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise ServerError(f"process {pid} of another user works in the data folder") from error


def _working_in(folder: Path) -> list[int]:
    folder = folder.resolve()
    proc = Path("/proc")
    if not (proc / "self" / "cwd").exists():
        return _working_in_by_lsof(folder)
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            here = Path(os.readlink(entry / "cwd"))
        except OSError:
            # Gone meanwhile, a zombie, or not ours to look at.
            continue
        if here == folder or folder in here.parents:
            found.append(int(entry.name))
    return found


def _working_in_by_lsof(folder: Path) -> list[int]:
    lsof = shutil.which("lsof")
    if lsof is None:
        return []
    done = subprocess.run(
        [lsof, "-t", "-a", "-d", "cwd", "+D", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line) for line in done.stdout.split() if int(line) != os.getpid()]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def owner_lock(folder: Path) -> Iterator[None]:
    """One owner per folder. Raises ServerError when another process has it."""
    handle = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerError(f"another process uses the data folder {folder}") from error
        yield
    finally:
        os.close(handle)


def secret(path: Path) -> str:
    """A random password that is kept in a file of mode 0600, made when it is missing."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    value = secrets.token_urlsafe(32)
    write_private(path, value + "\n")
    return value


def write_private(path: Path, text: str) -> None:
    """Writes a file of mode 0600, whole or not at all."""
    part = path.with_name(path.name + ".part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    part.replace(path)


def last_lines(log: Path, count: int = 3, since: int = 0) -> str:
    """The end of a log, or of what came behind byte `since`, on one line."""
    try:
        lines = log.read_bytes()[since:].decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return " | ".join(lines[-count:]) or "its log is empty"


def wait_until(
    ready: Callable[[], bool],
    process: "subprocess.Popen[bytes]",
    seconds: float,
    log: Path,
    log_begin: int = 0,
) -> None:
    """Waits until a server is ready. Raises ServerError when it ends or time is up."""
    until = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None:
            raise ServerError(
                f"the server ended with {process.returncode}: {last_lines(log, 10, log_begin)}"
            )
        if time.monotonic() > until:
            raise ServerError(f"the server is not ready after {seconds} s: {last_lines(log)}")
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
    """Our environment with `changes`, for our own processes."""
    return {**os.environ, **changes}
