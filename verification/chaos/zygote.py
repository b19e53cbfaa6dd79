"""A process that has imported everything, and forks the processes of the service on order.

So a start takes milliseconds and not the five seconds of the imports: processes can be killed
by the hundred. Each leads a process group of its own, writes to a log of its own and ends when
the zygote does. One that ends is started again after a pause, unless it was stopped on request.
The commands are those of `palimpsest`
(`serve`, `work`, `executor --socket PATH`), and `run MODULE:FUNCTION ARGUMENT…` for what a
test has itself.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import ROOT

#: How long the imports may take, on a busy machine too.
READY_SECONDS = 300.0
#: How long the threads that the imports started may take to end.
THREADS_SECONDS = 60.0
#: How often the zygote looks for children that have ended.
LOOK_SECONDS = 0.02
#: Before one that ended is started again.
RESTART_SECONDS = 0.3
#: What a process of ours prints when it is ready, by command.
READY_LINES = {"serve": "listening on ", "work": "working", "executor": "calling", "run": "ready"}
#: The placeholder for the process's own id in its environment.
PID = "{pid}"
#: Where no model listens.
NOBODY = "http://127.0.0.1:1/v1"
_NO_MODEL = "openai/nobody"
#: What children need, some of it only once they have begun to work.
_MODULES = (
    "palimpsest",
    "service.app.serve",
    "service.app.work",
    "service.app.executor",
    "service.cli.run",
    "service.llm.embeddings.litellm_embedder",
    "service.telemetry.logs",
    "verification.chaos.switches",
    "uvloop",
)
_SET_DEATH_SIGNAL = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What has become of a process."""

    #: None while it does not run.
    pid: int | None
    #: How often it was started.
    starts: int
    #: How the runs ended that are over, as `os.waitstatus_to_exitcode` says.
    exits: tuple[int, ...]
    #: When each of these was found to be over, of `time.monotonic()`.
    ends: tuple[float, ...]
    #: It has ended, and is not started again.
    is_over: bool


class Zygote:
    """The way to a zygote; not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        """Starts one; logs of its children go to `folder`. Takes seconds."""
        self.folder = folder
        self._commands: dict[str, str] = {}
        ours, theirs = socket.socketpair()
        self._log = (folder / "zygote.log").open("ab")
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "verification.chaos.zygote", str(theirs.fileno()), str(folder)],
            cwd=ROOT,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Ctrl-C is for its parent, which may still need its children.
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._lines = ours.makefile("rw", encoding="utf-8")
        ours.settimeout(READY_SECONDS)
        self._read()

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator["Zygote"]:
        """Yields one that is ended with all its children."""
        zygote = cls(folder)
        try:
            yield zygote
        finally:
            zygote.close()

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        restart_seconds: float | None = RESTART_SECONDS,
    ) -> int:
        """Starts a process, and again whenever it ends; its id. None: once."""
        self._commands[name] = command[0]
        said = self._order(
            order="start",
            name=name,
            command=list(command),
            environment=dict(environment),
            restart_seconds=restart_seconds,
        )
        return int(said["pid"])

    def forget(self, name: str) -> None:
        """Does not start it again; it runs until it ends."""
        self._order(order="forget", name=name)

    def status(self, name: str) -> Status:
        """Returns what has become of it."""
        said = self._order(order="status", name=name)
        return Status(
            pid=said["pid"],
            starts=said["starts"],
            exits=tuple(said["exits"]),
            ends=tuple(said["ends"]),
            is_over=said["is_over"],
        )

    def signal(self, name: str, number: int) -> bool:
        """Sends a signal to a process; False when it does not run now."""
        return bool(self._order(order="signal", name=name, number=int(number))["done"])

    def log(self, name: str) -> str:
        """Returns what all runs of a process wrote so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_ready(self, name: str, seconds: float = READY_SECONDS) -> str:
        """Waits until its newest run is ready; the line that says so. Raises RuntimeError."""
        until = time.monotonic() + seconds
        ready = READY_LINES[self._commands[name]]
        while time.monotonic() < until:
            ended = self.status(name).is_over
            newest = self.log(name).rpartition(_RUN_LINE)[2]
            for line in newest.splitlines(keepends=True):
                if line.startswith(ready) and line.endswith("\n"):
                    return line.strip()
            if ended:
                break
            time.sleep(LOOK_SECONDS)
        raise RuntimeError(f"{name} is not ready in {seconds:.0f} s:\n{self.log(name)[-4000:]}")

    def wait_ended(self, name: str, seconds: float) -> tuple[int, ...]:
        """Waits until it does not run; how its runs ended. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while (status := self.status(name)).pid is not None:
            if time.monotonic() > until:
                raise TimeoutError(f"{name} still runs after {seconds:.0f} s")
            time.sleep(LOOK_SECONDS)
        return status.exits

    def close(self) -> None:
        """Ends it and all its children, at once."""
        self._lines.close()
        self._socket.close()
        self._popen.wait()
        self._log.close()

    def _order(self, **order: Any) -> dict[str, Any]:
        self._lines.write(json.dumps(order) + "\n")
        self._lines.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"the zygote is gone; see {self.folder / 'zygote.log'}")
        said: dict[str, Any] = json.loads(line)
        return said


#: Divides the runs of a process in its log.
_RUN_LINE = "-- run "


@dataclass(slots=True)
class _Child:
    """A process as the zygote knows it."""

    command: list[str]
    environment: dict[str, str]
    restart_seconds: float | None
    pid: int | None = None
    starts: int = 0
    exits: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    #: When it is started again, of `time.monotonic()`.
    due: float | None = None


class _Server:
    """The zygote itself."""

    def __init__(self, orders: socket.socket, folder: Path) -> None:
        self._orders = orders
        self._folder = folder
        self._children: dict[str, _Child] = {}

    def run(self) -> None:
        self._say({})
        rest = b""
        while True:
            self._reap()
            self._start_due()
            if not select.select([self._orders], [], [], LOOK_SECONDS)[0]:
                continue
            more = self._orders.recv(65_536)
            if not more:
                self._end()
                return
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._say(self._take(json.loads(line)))

    def _take(self, order: dict[str, Any]) -> dict[str, Any]:
        name = order["name"]
        if order["order"] == "start":
            old = self._children.get(name)
            assert old is None or old.pid is None, f"{name} runs already"
            child = _Child(order["command"], order["environment"], order["restart_seconds"])
            self._children[name] = child
            self._start(name, child)
            return {"pid": child.pid}
        self._reap()
        child = self._children[name]
        match order["order"]:
            case "status":
                return {
                    "pid": child.pid,
                    "starts": child.starts,
                    "exits": child.exits,
                    "ends": child.ends,
                    "is_over": child.pid is None and child.due is None,
                }
            case "signal":
                # Only what has not been waited for: its id cannot be another's by now.
                if child.pid is not None:
                    os.kill(child.pid, order["number"])
                return {"done": child.pid is not None}
            case "forget":
                child.restart_seconds = child.due = None
        return {}

    def _say(self, said: dict[str, Any]) -> None:
        self._orders.sendall(json.dumps(said).encode() + b"\n")

    def _start_due(self) -> None:
        for name, child in self._children.items():
            if child.due is not None and time.monotonic() >= child.due:
                self._start(name, child)

    def _start(self, name: str, child: _Child) -> None:
        child.due = None
        child.starts += 1
        sys.stdout.flush()
        zygote = os.getpid()
        log = os.open(self._folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(log, f"{_RUN_LINE}{child.starts} of {child.command}\n".encode())
        child.pid = os.fork()
        if child.pid:
            os.close(log)
            return
        # Nothing may come back from here into the loop of the zygote.
        status = 1
        try:
            self._orders.close()
            status = _become(log, child, zygote)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        for child in self._children.values():
            if child.pid is None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.pid = None
                child.exits.append(os.waitstatus_to_exitcode(status))
                child.ends.append(time.monotonic())
                if child.restart_seconds is not None:
                    child.due = time.monotonic() + child.restart_seconds

    def _end(self) -> None:
        running = [child.pid for child in self._children.values() if child.pid is not None]
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        for pid in running:
            os.waitpid(pid, 0)


def _become(log: int, child: _Child, zygote: int) -> int:
    """Is the child from now on; its exit code."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != zygote:
        return 1
    os.setpgid(0, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    pid = str(os.getpid())
    os.environ.update({key: one.replace(PID, pid) for key, one in child.environment.items()})
    try:
        run_command(child.command)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def run_command(command: Sequence[str]) -> None:
    """Is one of our processes until that ends."""
    from service.cli import run

    match command:
        case ["serve"]:
            run.serve()
        case ["work"]:
            run.work()
        case ["executor", "--socket", path]:
            run.executor(Path(path))
        case ["run", target, *arguments]:
            module, _, function = target.partition(":")
            getattr(importlib.import_module(module), function)(*arguments)
        case _:
            raise ValueError(f"no command of ours: {command}")


def import_all() -> None:
    """What the children have then. None of it may start a thread: only one is forked."""
    for name in _MODULES:
        importlib.import_module(name)
    litellm = importlib.import_module("service.llm.providers.library").litellm_library()
    asyncio.run(_call_nobody(litellm))
    # A list of thousands of models, which is read once.
    importlib.import_module("service.llm.providers.model_map").entry_of(_NO_MODEL)
    until = time.monotonic() + THREADS_SECONDS
    # One that resolved a name has been joined, and may be on its way out still.
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            raise RuntimeError(f"the imports started threads: {threading.enumerate()}")
        time.sleep(LOOK_SECONDS)
    # What is there now is not looked through by any child, and stays shared.
    gc.collect()
    gc.freeze()


async def _call_nobody(litellm: Any) -> None:
    """The first calls import hundreds of modules; their clients belong to this loop."""
    nobody = {"model": _NO_MODEL, "api_base": NOBODY, "api_key": "none", "max_retries": 0}
    with suppress(litellm.exceptions.openai.OpenAIError):
        await litellm.acompletion(messages=[{"role": "user", "content": "?"}], **nobody)
    with suppress(litellm.exceptions.openai.OpenAIError):
        await litellm.aembedding(input=["?"], **nobody)
    litellm.in_memory_llm_clients_cache.flush_cache()


def main() -> None:
    """Is a zygote: `python -m verification.chaos.zygote DESCRIPTOR FOLDER`."""
    import_all()
    orders = socket.socket(fileno=int(sys.argv[1]))
    _Server(orders, Path(sys.argv[2])).run()


if __name__ == "__main__":
    main()
