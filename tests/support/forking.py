"""Starts processes of the service by forking one that has loaded it.

A start takes milliseconds that way; the imports of one process take up to five seconds, and the
tests start hundreds. `enable` switches this on for a run of the tests. Benchmarks and attacks
start their processes as users do.
"""

import atexit
import fcntl
import importlib
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
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

from tests import ROOT

#: Limits the imports, on a busy machine too.
READY_SECONDS = 300.0
#: Limits an order: the environment is most of it.
ORDER_BYTES = 1 << 17
#: Limits the descriptors of one.
MAX_HANDLES = 100
#: From here on a child has descriptors of its own; what it was given is below.
OWN_HANDLES = 200
LAUNCHER = Path(__file__).with_name("launcher.py")
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
        self._folder = tempfile.TemporaryDirectory(prefix="palimpsest-forker-")
        #: Where `palimpsest` and `python` are that have their processes forked.
        self.programs = Path(self._folder.name)
        self.programs.chmod(0o755)
        for name in ("python", "palimpsest"):
            program = self.programs / name
            program.write_text(f"#!{sys.executable} -IS\n{LAUNCHER.read_text()}")
            program.chmod(0o755)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = str(theirs.fileno()), str(self.programs)
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", *arguments],
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
        order = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(ROOT),
            "handles": [0, 1, 2],
        }
        ours, theirs = os.pipe()
        try:
            with open(os.devnull, "rb") as nothing:
                pid = self._ask(order, nothing.fileno(), theirs, stderr)
        finally:
            os.close(theirs)
        forked = Forked(self, arguments, pid)
        forked.stdout = os.fdopen(ours)
        return forked

    def exit_code(self, pid: int) -> int:
        """Returns the exit code of a child that has ended."""
        return self._ask({"reap": pid})

    def close(self) -> None:
        """Ends it, and with it all its children."""
        self._orders.close()
        self._popen.wait()
        self._folder.cleanup()

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


def python() -> str:
    """Returns the interpreter for commands of the service: where this run forks, one by which
    `-m service.cli` forks, and so does what that starts."""
    return str(forker().programs / "python") if _enabled else sys.executable


def run(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
    folder: Path = ROOT,
    stdin: bytes | IO[bytes] = b"",
) -> "subprocess.CompletedProcess[str]":
    """Runs a command of `palimpsest` to its end. Raises TimeoutExpired after `seconds`."""
    command = [python(), "-m", "service.cli", *arguments]
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        timeout=seconds,
        **given,
    )
    said = (done.stdout.decode(), done.stderr.decode())
    return subprocess.CompletedProcess(list(arguments), done.returncode, *said)


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


class _Server:
    """The forker's side: forks to order until the tests have ended."""

    def __init__(self, orders: socket.socket, programs: Path) -> None:
        self._orders = orders
        self._python = str(programs / "python")
        self._launchers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._launchers.bind(str(programs / "orders"))
        self._launchers.listen(100)
        #: The launcher that waits for the end of a child, and the child's id, by its handle.
        self._waiting: dict[int, tuple[socket.socket, int]] = {}

    def serve(self) -> None:
        """Forks. Raises _Become in each child."""
        self._orders.send(b"0")
        while True:
            own = self._orders.fileno(), self._launchers.fileno()
            readable, _, _ = select.select([*own, *self._waiting], [], [])
            for one in readable:
                if one == self._orders.fileno():
                    if not self._follow():
                        return
                elif one == self._launchers.fileno():
                    self._launch()
                else:
                    launcher, pid = self._waiting.pop(one)
                    os.close(one)
                    with launcher, suppress(ConnectionError):
                        launcher.send(_reap(pid))

    def _follow(self) -> bool:
        """Follows an order of the tests; False when they have ended."""
        said, handles, _, _ = socket.recv_fds(self._orders, ORDER_BYTES, 3)
        if not said:
            return False
        order = json.loads(said)
        self._orders.send(
            _reap(order["reap"]) if "reap" in order else str(self._fork(order, handles)).encode()
        )
        return True

    def _launch(self) -> None:
        launcher, _ = self._launchers.accept()
        said, handles, _, _ = socket.recv_fds(launcher, ORDER_BYTES, MAX_HANDLES)
        if not said:
            launcher.close()
            return
        pid = self._fork(json.loads(said), handles, launcher)
        self._waiting[os.pidfd_open(pid)] = launcher, pid
        # A launcher may be killed at any moment; its child ends by itself then.
        with suppress(ConnectionError):
            launcher.send(str(pid).encode())

    def _fork(
        self, order: dict[str, Any], handles: list[int], launcher: socket.socket | None = None
    ) -> int:
        pid = os.fork()
        if pid:
            for one in handles:
                os.close(one)
            return pid
        _die_with_parent()
        self._orders.close()
        self._launchers.close()
        for handle, (other, _) in self._waiting.items():
            os.close(handle)
            other.close()
        if launcher is not None:
            os.setsid()
            tie = os.fdopen(_out_of_the_way(launcher.detach()), "rb", buffering=0)
            threading.Thread(target=_end_with, args=(tie,), daemon=True).start()
        moved = [_out_of_the_way(one) for one in handles]
        for number, handle in zip(order["handles"], moved, strict=True):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        _set_width()
        # What it starts of ours is forked as well.
        sys.executable = self._python
        raise _Become(*order["arguments"])


def _reap(pid: int) -> bytes:
    _, status = os.waitpid(pid, 0)
    return str(os.waitstatus_to_exitcode(status)).encode()


def _set_width() -> None:
    """Sets what the command line read from the environment when it was loaded."""
    from service.cli import output

    if (columns := os.environ.get("COLUMNS", "")).isdigit():
        output.out.width = output.err.width = int(columns)


def _out_of_the_way(handle: int) -> int:
    """Moves a descriptor to a number that no order has."""
    moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, OWN_HANDLES)
    os.close(handle)
    return moved


def _end_with(launcher: IO[bytes]) -> None:
    launcher.read(1)
    os.kill(os.getpid(), signal.SIGKILL)


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


def _end(code: object) -> NoReturn:
    """Ends a child as `sys.exit(code)` would, but without taking the interpreter apart: that
    copies each page that the forker has loaded, which takes longer than most commands run."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Forks to order: `python -m tests.support.forking DESCRIPTOR FOLDER`."""
    from service.cli import main as palimpsest
    from service.cli import run
    from verification.chaos.zygote import import_all

    # What the commands of a client need as well.
    importlib.import_module("service.cli.commands")
    import_all()
    vars(run)["spawn"] = _spawn
    todo: Callable[[], None] = _Server(
        socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    ).serve
    while True:
        try:
            todo()
        except _Become as child:
            sys.argv = ["palimpsest", *child.arguments]
            todo = palimpsest
        except SystemExit as ended:
            _end(ended.code)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            _end(1)
        else:
            _end(0)


if __name__ == "__main__":
    main()
