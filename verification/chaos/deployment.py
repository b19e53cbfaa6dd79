"""What a campaign breaks: all processes of a deployment, each within reach of a fault."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from service.local.processes import free_port
from tests.support.harness import Servers
from verification.chaos.orders import Orders
from verification.chaos.paid_calls import AGAIN_SECONDS, Harm
from verification.chaos.points import Point, points
from verification.chaos.schedule import PROCESSES, Fault, Kind
from verification.chaos.switches import Action, Switches, environment
from verification.chaos.zygote import Zygote

#: Leases short enough that a process which is stopped for seconds has lost them, and a
#: campaign sees thousands of them; models that fail are asked again soon.
QUICK = {
    "PALIMPSEST_DEFAULT_MEMORY": "none",
    "PALIMPSEST_HEARTBEAT_SECONDS": "0.5",
    "PALIMPSEST_DEAD_AFTER_SECONDS": "2",
    "PALIMPSEST_SWEEP_SECONDS": "0.5",
    "PALIMPSEST_RECONCILE_SECONDS": "0.5",
    "PALIMPSEST_CALL_LEASE_SECONDS": "2",
    "PALIMPSEST_STEP_BACKOFF_SECONDS": "0.2",
    "PALIMPSEST_MODEL_TIMEOUT_SECONDS": "10",
    "PALIMPSEST_DRAIN_SECONDS": "5",
    "PALIMPSEST_STOP_SECONDS": "3",
    "PALIMPSEST_POOL_SIZE": "5",
    # Producers are refused before more is left than is read in a minute when all is over.
    "PALIMPSEST_LIMIT_BACKLOG_CHUNKS": "30000",
    "PALIMPSEST_LOG_LEVEL": "warning",
    "PALIMPSEST_MODEL": "openai/chaos",
    "PALIMPSEST_MODEL_WINDOW_TOKENS": "400000",
}
#: How long PostgreSQL may take to be ours again, and our processes to be ready, in the end.
HEALTHY_SECONDS = 60.0
#: What keeps executors, or all of ours, for a while.
_KEEPING = (Kind.STOP, Kind.STALL, Kind.DELAY, Kind.BACKENDS, Kind.CUT, Kind.SWALLOW)
#: A machine that lets no process run for so long delays all of them.
STILL_SECONDS = 0.3
_ACTIONS = {Kind.RAISE: Action.RAISE, Kind.SLEEP: Action.SLEEP, Kind.POINT_KILL: Action.KILL}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is."""

    #: That are stored.
    chunks: int
    #: That a memory has not read, of all memories together.
    unread: int
    faults: int


class Deployment:
    """The processes of a run, in `folder`."""

    def __init__(
        self,
        servers: Servers,
        zygote: Zygote,
        keeper: Executor,
        folder: Path,
        seed: int,
    ) -> None:
        self._servers = servers
        self._zygote = zygote
        self._keeper = keeper
        #: The start of PostgreSQL that is under way.
        self._returning: Future[None] | None = None
        self.folder = folder
        self.url = servers.new_database()
        self.superuser_url = servers.as_superuser(self.url)
        self.switches = Switches(folder / "switches")
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        #: What was done, and what found nothing to do it to.
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        #: How long PostgreSQL was away, each time.
        self.postgres_seconds: list[float] = []
        #: What kept executors from their work, or from the database.
        self.harms: list[Harm] = []
        #: Points where a process is to fail, with how long it pauses there.
        self._armed: dict[Point, float] = {}
        self._looked_at = time.monotonic()
        #: Processes that were asked to end, with how often they had been started then.
        self._told_to_end: dict[str, int] = {}
        self._start_helpers(seed)
        for name in PROCESSES:
            self._start(name)
        for name in PROCESSES:
            zygote.wait_ready(name)

    @classmethod
    @contextmanager
    def started(cls, folder: Path, seed: int) -> Iterator["Deployment"]:
        """Yields one that is ended with everything in it."""
        with ExitStack() as stack:
            # One thread for all restarts: PostgreSQL ends with the thread that started it.
            keeper = stack.enter_context(ThreadPoolExecutor(max_workers=1))
            servers = stack.enter_context(Servers.started())
            zygote = stack.enter_context(Zygote.started(folder))
            yield cls(servers, zygote, keeper, folder, seed)

    def _start_helpers(self, seed: int) -> None:
        """Returns the proxy and the model server, which are never killed."""
        model_port = free_port()
        ports = {"postgres": _port(self.url), "valkey": _port(self._servers.valkey.url)}
        ways = {name: free_port() for name in ports}
        self._environment = {
            **QUICK,
            "PALIMPSEST_DATABASE_URL": _through(self.url, ways["postgres"]),
            "PALIMPSEST_REDIS_URL": _through(self._servers.valkey.url, ways["valkey"]),
            "PALIMPSEST_MODEL_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
            **environment(self.folder / "switches"),
        }
        arguments = [f"{name}={ways[name]}:{ports[name]}" for name in ports]
        history = str(self.folder / "history-model.jsonl")
        self._proxy = self._helper("proxy", str(seed), *arguments)
        self._model = self._helper("model_server", str(model_port), history)

    def _helper(self, module: str, first: str, *rest: str) -> Orders:
        control = self.folder / f"{module}.sock"
        command = ["run", f"verification.chaos.{module}:main", str(control), first, *rest]
        self._zygote.start(module, command, {}, restart_seconds=None)
        self._zygote.wait_ready(module)
        return Orders(control)

    def _start(self, name: str) -> None:
        kind, _, number = name.partition("-")
        sockets = [self.folder / f"executor-{one}.sock" for one in (1, 2)]
        match kind:
            case "api":
                command = ["serve"]
                more = {"PALIMPSEST_LISTEN": self.addresses[int(number) - 1]}
            case "worker":
                # Two of them share an executor.
                command = ["work"]
                more = {"PALIMPSEST_CALLER_SOCKET": str(sockets[int(number) % 2])}
            case _:
                command = ["executor", "--socket", str(sockets[int(number) - 1])]
                more = {}
        # The model server knows the caller by its key.
        more["PALIMPSEST_MODEL_API_KEY"] = name
        self._zygote.start(name, command, {**self._environment, **more})

    def start_client(self, name: str, plan: str) -> None:
        """Starts a process of clients, and again when it is killed."""
        self._zygote.start(name, ["run", "verification.chaos.clients:main", plan], {})

    def end_client(self, name: str) -> None:
        """Lets it end by itself, and does not start it again."""
        self._zygote.forget(name)

    def is_running(self, name: str) -> bool:
        """Returns whether a process runs now."""
        return self._zygote.status(name).pid is not None

    def do(self, fault: Fault) -> None:
        """Makes it happen, and counts it."""
        at = time.monotonic()
        try:
            is_done = self._do(fault)
        except psycopg.OperationalError:
            # There is no PostgreSQL to ask, or it has just gone.
            is_done = False
        counted = self.done if is_done else self.missed
        counted[fault.kind.value] += 1
        if is_done and fault.kind in _KEEPING and fault.target != "valkey":
            end = time.monotonic() + max(fault.seconds, AGAIN_SECONDS)
            process = fault.target if fault.kind is Kind.STOP else ""
            self.harms.append(Harm(what=fault.kind.value, process=process, begin=at, end=end))

    def rest(self, seconds: float) -> None:
        """Waits; what the machine lets us wait beyond that keeps executors as well."""
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        if end - begin > seconds + STILL_SECONDS:
            self.harms.append(Harm(what="machine", begin=begin, end=end))

    def look_at_points(self) -> None:
        """Notes the points at which a process has failed since the last look."""
        now = time.monotonic()
        for point, seconds in list(self._armed.items()):
            if not self.switches.is_set(point):
                del self._armed[point]
                end = now + seconds
                self.harms.append(Harm(what=point, begin=self._looked_at, end=end))
        self._looked_at = now

    def go_on(self, name: str) -> None:
        """Ends a stop."""
        self._zygote.signal(name, signal.SIGCONT)

    def _do(self, fault: Fault) -> bool:
        match fault.kind:
            case Kind.KILL | Kind.CLIENT_KILL:
                return self._zygote.signal(fault.target, signal.SIGKILL)
            case Kind.TERMINATE:
                self._told_to_end[fault.target] = self._zygote.status(fault.target).starts
                return self._zygote.signal(fault.target, signal.SIGTERM)
            case Kind.STOP:
                return self._zygote.signal(fault.target, signal.SIGSTOP)
            case Kind.POSTGRES_KILL:
                return self._lose_postgres(signal.SIGKILL)
            case Kind.POSTGRES_IMMEDIATE:
                return self._lose_postgres(signal.SIGQUIT)
            case Kind.VALKEY_KILL:
                self._servers.valkey.kill()
                self._servers.valkey.restart()
            case Kind.BACKENDS:
                return self._end_backends(fault.amount)
            case Kind.CUT:
                said = self._proxy.give(do="cut", way=fault.target, share=fault.amount)
                return bool(said["links"])
            case Kind.STALL:
                self._proxy.give(do="stall", way=fault.target, seconds=fault.seconds)
            case Kind.DELAY:
                self._proxy.give(
                    do="delay",
                    way=fault.target,
                    seconds=fault.seconds,
                    each_seconds=fault.amount,
                )
            case Kind.SWALLOW:
                self._proxy.give(do="swallow", way=fault.target)
            case Kind.MODEL:
                self._model.give(do="fault", fault=fault.target, count=int(fault.amount))
            case Kind.RAISE | Kind.SLEEP | Kind.POINT_KILL:
                action = _ACTIONS[fault.kind]
                self.switches.set(
                    fault.target, action, seconds=fault.seconds, skip=int(fault.amount)
                )
                self._armed[fault.target] = fault.seconds
        return True

    def _lose_postgres(self, number: int) -> bool:
        """Stops PostgreSQL while everything else continues: it takes seconds to return."""
        if self._is_postgres_away():
            return False
        folder = self._asked("SHOW data_directory")[0]
        pid = int((Path(folder) / "postmaster.pid").read_text().splitlines()[0])
        lost_at = time.monotonic()
        os.kill(pid, number)
        self._returning = self._keeper.submit(self._bring_postgres_back, lost_at)
        return True

    def _bring_postgres_back(self, lost_at: float) -> None:
        until = time.monotonic() + HEALTHY_SECONDS
        while self._servers.postgres.is_running():
            if time.monotonic() > until:
                raise RuntimeError("PostgreSQL does not end")
            time.sleep(0.01)
        self._servers.postgres.restart()
        now = time.monotonic()
        self.postgres_seconds.append(round(now - lost_at, 1))
        self.harms.append(Harm(what="postgres", begin=lost_at, end=now + AGAIN_SECONDS))

    def _is_postgres_away(self) -> bool:
        if self._returning is not None and self._returning.done():
            self._returning.result()
            self._returning = None
        return self._returning is not None

    def _end_backends(self, share: float) -> bool:
        if self._is_postgres_away():
            return False
        ended = self._asked(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND usename = 'palimpsest' AND random() < %s",
            share,
        )
        return bool(ended[0])

    def _asked(self, query: str, *values: object) -> tuple[Any, ...]:
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            row = connection.execute(query.encode(), values).fetchone()
        assert row is not None, "it has one"
        return row

    def progress(self) -> Progress | None:
        """Returns how far it is; None while PostgreSQL is away."""
        if self._is_postgres_away():
            return None
        try:
            chunks = self._asked("SELECT coalesce(sum(head), 0) FROM session")[0]
            unread = self._asked(
                "SELECT coalesce(sum(head - applied_position), 0) FROM memory"
                " JOIN session USING (session_key) WHERE memory.status <> 'sealed'"
            )[0]
        except psycopg.OperationalError:
            return None
        return Progress(chunks=int(chunks), unread=int(unread), faults=self.done.total())

    def heal(self) -> dict[str, dict[str, int]]:
        """Ends all faults and waits until everything is ready; what became of some."""
        if self._returning is not None:
            self._returning.result()
        swallowed = self._proxy.give(do="heal")["swallowed"]
        outcomes = self._model.give(do="heal")["outcomes"]
        for point in points():
            self.switches.set(point, Action.NOTHING)
        for name in PROCESSES:
            self.go_on(name)
        until = time.monotonic() + HEALTHY_SECONDS
        for name in PROCESSES:
            while not self._is_back(name):
                if time.monotonic() > until:
                    raise RuntimeError(f"{name} does not come back")
                time.sleep(0.05)
            self._zygote.wait_ready(name)
        return {"swallowed": swallowed, "model_outcomes": outcomes}

    def _is_back(self, name: str) -> bool:
        """Returns whether it runs, and is not about to end."""
        status = self._zygote.status(name)
        return status.pid is not None and status.starts > self._told_to_end.get(name, 0)

    def pids(self) -> list[int]:
        """Returns the processes of ours that run now."""
        statuses = [self._zygote.status(name) for name in PROCESSES]
        return [status.pid for status in statuses if status.pid is not None]

    def kill(self, name: str) -> None:
        """Ends a process that does not end."""
        self._zygote.signal(name, signal.SIGKILL)

    def ends(self) -> dict[str, tuple[float, ...]]:
        """Returns when the runs of each process ended."""
        return {name: self._zygote.status(name).ends for name in PROCESSES}

    def exits(self) -> dict[str, tuple[int, ...]]:
        """Returns how the runs of each process ended."""
        return {name: self._zygote.status(name).exits for name in PROCESSES}


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def _through(url: str, port: int) -> str:
    """Returns the same server behind the port of a proxy."""
    head, _, tail = url.rpartition(":")
    return f"{head}:{port}/{tail.partition('/')[2]}"
