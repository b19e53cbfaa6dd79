"""Starts processes of the service by forking one that has loaded it.

A start takes milliseconds that way; the imports of one process take up to five seconds, and the
tests start hundreds. `enable` switches this on for a run of the tests. Benchmarks and attacks
start their processes as users do.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

from tests import ROOT

#: Limits the imports, on a busy machine too.
READY_SECONDS = 300.0
#: Limits an order: the environment is most of it.
ORDER_BYTES = 1 << 17
_SET_DEATH_SIGNAL = 1
#: Whether this run forks. Only Linux has what it takes.
_enabled = False


def enable() -> None:
    """Forks the processes that this run starts from now on."""
    global _enabled
    _enabled = sys.platform == "linux"


def is_enabled() -> bool:
    """Returns whether processes are forked."""
    return _enabled


class Forked:
    """A forked process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, forker: "Forker", arguments: Sequence[str], pid: int) -> None:
        self._forker = forker
        self.args = arguments
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        # The id stays its own until the forker has been asked for the exit code.
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended and returns the exit code. Raises TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            assert timeout is not None, "without one it waits to the end"
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._handle, select.POLLIN)
            if waiting.poll(None if seconds is None else seconds * 1000):
                self.returncode = self._forker.exit_code(self.pid)
                os.close(self._handle)
        return self.returncode


class Forker:
    """A process that has loaded the service. Its children end with it, and it ends with us."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the tests, which may still want its children.
                start_new_session=True,
            )
        self._orders.settimeout(READY_SECONDS)
        self._answer()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], stderr: int
    ) -> Forked:
        """Starts `palimpsest` with these arguments; its standard output is `stdout`."""
        ours, theirs = os.pipe()
        try:
            with open(os.devnull, "rb") as nothing:
                forked = self.begin(arguments, environment, (nothing.fileno(), theirs, stderr))
        finally:
            os.close(theirs)
        forked.stdout = os.fdopen(ours)
        return forked

    def begin(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
        folder: Path = ROOT,
    ) -> Forked:
        """Starts `palimpsest` in a folder, with these for its three standard streams."""
        order = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
        }
        return Forked(self, arguments, self._ask(order, *streams))

    def exit_code(self, pid: int) -> int:
        """Returns the exit code of a child that has ended."""
        return self._ask({"reap": pid})

    def close(self) -> None:
        """Ends it, and with it all its children."""
        self._orders.close()
        self._popen.wait()

    def _ask(self, order: dict[str, Any], *handles: int) -> int:
        with self._lock:
            socket.send_fds(self._orders, [json.dumps(order).encode()], list(handles))
            return self._answer()

    def _answer(self) -> int:
        said = self._orders.recv(ORDER_BYTES)
        if not said:
            raise RuntimeError("the process that forks others has ended")
        return int(said)


@lru_cache(maxsize=1)
def forker() -> Forker:
    """Returns the forker of this process, started at the first call."""
    return Forker()


def close() -> None:
    """Ends the forker of this process, if there is one."""
    if forker.cache_info().currsize:
        forker().close()
        forker.cache_clear()


def run(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
    folder: Path = ROOT,
    stdin: bytes | IO[bytes] = b"",
) -> "subprocess.CompletedProcess[str]":
    """Runs a command of `palimpsest` to its end, forked where this run forks.

    Raises TimeoutExpired after `seconds`, and ends it.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        if isinstance(stdin, bytes):
            given.write(stdin)
            given.seek(0)
        source = given if isinstance(stdin, bytes) else stdin
        started: Forked | subprocess.Popen[bytes]
        if _enabled:
            streams = (source.fileno(), out.fileno(), err.fileno())
            started = forker().begin(arguments, environment, streams, folder)
        else:
            command = [sys.executable, "-m", "service.cli", *arguments]
            started = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=source, stdout=out, stderr=err
            )
        try:
            code = started.wait(seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
            raise
        said = [_all_of(one) for one in (out, err)]
    return subprocess.CompletedProcess(list(arguments), code, *said)


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


class _Become(BaseException):
    """Unwinds a forked child to `main`, where it runs its command."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*arguments)
        self.arguments = arguments


class _Child(subprocess.Popen[bytes]):
    """A child of this process that was forked, and is waited for like any other."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.args = []
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()


def _serve(orders: socket.socket) -> None:
    """Forks to order until the tests have ended. Raises _Become in each child."""
    orders.send(b"0")
    while True:
        said, handles, _, _ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not said:
            return
        order = json.loads(said)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            orders.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if not pid:
            orders.close()
            _die_with_parent()
            for number, handle in enumerate(handles):
                os.dup2(handle, number)
            os.chdir(order["folder"])
            os.environ.clear()
            os.environ.update(order["environment"])
        for handle in handles:
            os.close(handle)
        if not pid:
            raise _Become(*order["arguments"])
        orders.send(str(pid).encode())


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _spawn(metrics_listen: str | None) -> Any:
    """Starts an executor as `service.llm.executor.spawning.spawn` does, by forking."""
    from service.llm.executor.spawning import Spawned

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        handle = str(theirs.detach())
        raise _Become("executor", "--fd", handle, "--metrics-listen", metrics_listen or "")
    theirs.close()
    ours.setblocking(False)
    return Spawned(_Child(pid), ours)


def main() -> None:
    """Forks to order: `python -m tests.support.forking DESCRIPTOR`.

    A child returns from here, so that it ends as a process that was started does.
    """
    from service.cli import main as palimpsest
    from service.cli import run
    from verification.chaos.zygote import import_all

    import_all()
    vars(run)["spawn"] = _spawn
    todo: Callable[[], None] = partial(_serve, socket.socket(fileno=int(sys.argv[1])))
    while True:
        try:
            todo()
        except _Become as child:
            sys.argv = ["palimpsest", *child.arguments]
            todo = palimpsest
        else:
            return


if __name__ == "__main__":
    main()
