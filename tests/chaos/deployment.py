"""What a campaign breaks: all processes of a deployment, each within reach of a fault."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from service.domain.fail_points import FailPoint
from service.embedded.processes import free_port
from service.fail_points import Action, Switches
from tests.chaos.orders import Orders
from tests.chaos.schedule import PROCESSES, Fault, Kind
from tests.chaos.zygote import Zygote
from tests.harness import Servers

#: Leases short enough that a process which is stopped for seconds has lost them, and a
#: campaign sees thousands of them; models that fail are asked again soon.
QUICK = {
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
    "PALIMPSEST_LOG_LEVEL": "warning",
    "PALIMPSEST_MODEL": "openai/chaos",
    "PALIMPSEST_MODEL_WINDOW_TOKENS": "400000",
}
#: How long PostgreSQL may take to be ours again, and our processes to be ready, in the end.
HEALTHY_SECONDS = 60.0
_ACTIONS = {Kind.RAISE: Action.RAISE, Kind.SLEEP: Action.SLEEP, Kind.POINT_KILL: Action.KILL}


class Deployment:
    """The processes of a run, in `folder`."""

    def __init__(self, servers: Servers, zygote: Zygote, folder: Path, seed: int) -> None:
        self._servers = servers
        self._zygote = zygote
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
        self._start_helpers(seed)
        for name in PROCESSES:
            self._start(name)
        for name in PROCESSES:
            zygote.wait_ready(name)

    @classmethod
    @contextmanager
    def started(cls, folder: Path, seed: int) -> Iterator["Deployment"]:
        """One that is ended with everything in it."""
        with ExitStack() as stack:
            servers = stack.enter_context(Servers.started())
            zygote = stack.enter_context(Zygote.started(folder))
            yield cls(servers, zygote, folder, seed)

    def _start_helpers(self, seed: int) -> None:
        """The proxy and the model server; nobody kills these."""
        model_port = free_port()
        ports = {"postgres": _port(self.url), "valkey": _port(self._servers.valkey.url)}
        ways = {name: free_port() for name in ports}
        self._environment = {
            **QUICK,
            "PALIMPSEST_DATABASE_URL": _through(self.url, ways["postgres"]),
            "PALIMPSEST_REDIS_URL": _through(self._servers.valkey.url, ways["valkey"]),
            "PALIMPSEST_MODEL_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
            "PALIMPSEST_FAIL_POINTS": str(self.folder / "switches"),
        }
        arguments = [f"{name}={ways[name]}:{ports[name]}" for name in ports]
        history = str(self.folder / "history-model.jsonl")
        self._proxy = self._helper("proxy", str(seed), *arguments)
        self._model = self._helper("model_server", str(model_port), history)

    def _helper(self, module: str, first: str, *rest: str) -> Orders:
        control = self.folder / f"{module}.sock"
        command = ["run", f"tests.chaos.{module}:main", str(control), first, *rest]
        self._zygote.start(module, command, {}, restart_seconds=None)
        self._zygote.wait_ready(module)
        return Orders(control)

    def _start(self, name: str) -> None:
        kind, _, number = name.partition("-")
        sockets = [self.folder / f"caller-{one}.sock" for one in (1, 2)]
        match kind:
            case "api":
                command = ["serve"]
                more = {"PALIMPSEST_LISTEN": self.addresses[int(number) - 1]}
            case "worker":
                # Two of them share a caller.
                command = ["work"]
                more = {"PALIMPSEST_CALLER_SOCKET": str(sockets[int(number) % 2])}
            case _:
                command = ["caller", "--socket", str(sockets[int(number) - 1])]
                more = {}
        self._zygote.start(name, command, {**self._environment, **more})

    def start_client(self, name: str, plan: str) -> None:
        """Starts a process of clients, which ends by itself."""
        self._zygote.start(
            name, ["run", "tests.chaos.clients:main", plan], {}, restart_seconds=None
        )

    def is_running(self, name: str) -> bool:
        """Whether a process runs now."""
        return self._zygote.status(name).pid is not None

    def do(self, fault: Fault) -> None:
        """Makes it happen, and counts it."""
        counted = self.done if self._do(fault) else self.missed
        counted[fault.kind.value] += 1

    def go_on(self, name: str) -> None:
        """Ends a stop."""
        self._zygote.signal(name, signal.SIGCONT)

    def _do(self, fault: Fault) -> bool:
        match fault.kind:
            case Kind.KILL:
                return self._zygote.signal(fault.target, signal.SIGKILL)
            case Kind.TERMINATE:
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
                self.switches.set(FailPoint(fault.target), action, seconds=fault.seconds)
        return True

    def _lose_postgres(self, number: int) -> bool:
        with psycopg.connect(self.superuser_url) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None, "it has one"
        pid = int((Path(row[0]) / "postmaster.pid").read_text().splitlines()[0])
        lost_at = time.monotonic()
        os.kill(pid, number)
        until = time.monotonic() + HEALTHY_SECONDS
        while self._servers.postgres.is_running():
            if time.monotonic() > until:
                raise RuntimeError("PostgreSQL does not end")
            time.sleep(0.01)
        self._servers.postgres.restart()
        self.postgres_seconds.append(round(time.monotonic() - lost_at, 1))
        return True

    def _end_backends(self, share: float) -> bool:
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND usename = 'palimpsest' AND random() < %s",
                (share,),
            ).fetchall()
        return bool(rows)

    def heal(self) -> dict[str, dict[str, int]]:
        """Ends all faults and waits until everything is ready; what became of some."""
        swallowed = self._proxy.give(do="heal")["swallowed"]
        outcomes = self._model.give(do="heal")["outcomes"]
        for point in FailPoint:
            self.switches.set(point, Action.NOTHING)
        for name in PROCESSES:
            self.go_on(name)
        until = time.monotonic() + HEALTHY_SECONDS
        for name in PROCESSES:
            while not self.is_running(name):
                if time.monotonic() > until:
                    raise RuntimeError(f"{name} does not come back")
                time.sleep(0.05)
            self._zygote.wait_ready(name)
        return {"swallowed": swallowed, "model_outcomes": outcomes}

    def exits(self) -> dict[str, tuple[int, ...]]:
        """How the runs of each process ended."""
        return {name: self._zygote.status(name).exits for name in PROCESSES}


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def _through(url: str, port: int) -> str:
    """The same server behind the port of a proxy."""
    head, _, tail = url.rpartition(":")
    return f"{head}:{port}/{tail.partition('/')[2]}"
