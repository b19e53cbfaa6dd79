"""The processes of a sweep: deployments side by side, each with switches of its own.

They share a PostgreSQL, a Valkey and a zygote, and nothing else: when one hangs,
or recovers from a kill, the others continue.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from service.local.processes import free_port
from tests.support.harness import Servers
from verification.chaos.switches import Switches, environment
from verification.chaos.zygote import PID, Zygote

#: Leases so short that a process that pauses for SLEEP_SECONDS has lost all of them;
#: on a machine that is slower so many times, times as long.
LEASES = {
    "PALIMPSEST_HEARTBEAT_SECONDS": 0.2,
    "PALIMPSEST_DEAD_AFTER_SECONDS": 0.8,
    "PALIMPSEST_SWEEP_SECONDS": 0.25,
    "PALIMPSEST_RECONCILE_SECONDS": 0.25,
    "PALIMPSEST_CALL_LEASE_SECONDS": 0.4,
}
SLEEP_SECONDS = 1.0
QUICK = {
    "PALIMPSEST_DEFAULT_MEMORY": "none",
    "PALIMPSEST_STEP_BACKOFF_SECONDS": "0.05",
    "PALIMPSEST_STEP_TRIES": "1000",
    "PALIMPSEST_MODEL_TRIES": "1",
    "PALIMPSEST_STOP_SECONDS": "2",
    "PALIMPSEST_POOL_SIZE": "4",
    "PALIMPSEST_LOG_LEVEL": "warning",
    "PALIMPSEST_MODEL": "openai/chaos",
    "PALIMPSEST_MODELS": "openai/*",
    "PALIMPSEST_MODEL_PROBE_SECONDS": "0.2",
    "PALIMPSEST_EMBEDDING_MODEL": "openai/words",
    "PALIMPSEST_EMBEDDING_DIMENSIONS": "8",
}
#: Before one that died is started again.
RESTART_SECONDS = 0.02

_PROCESSES = ("api", "worker-1", "worker-2", "executor")


class Deployment:
    """An API, two workers, the executor that they share, and their model server."""

    def __init__(
        self, servers: Servers, zygote: Zygote, folder: Path, name: str, slowness: float
    ) -> None:
        self.name = name
        self.sleep_seconds = SLEEP_SECONDS * slowness
        self._zygote = zygote
        self.folder = folder / name
        self.folder.mkdir()
        self.url = servers.new_database()
        self.superuser_url = servers.as_superuser(self.url)
        self.switches = Switches(self.folder / "switches")
        self.paid = self.folder / "paid"
        self.history = self.folder / "history"
        self.address = f"127.0.0.1:{free_port()}"
        port = free_port()
        model = f"http://127.0.0.1:{port}/v1"
        command = ["run", "verification.sweep.model:main", str(port), str(self.paid)]
        zygote.start(self._of("model"), command, {}, restart_seconds=None)
        zygote.wait_ready(self._of("model"))
        self._environment = {
            **QUICK,
            **{key: str(seconds * slowness) for key, seconds in LEASES.items()},
            "PALIMPSEST_DATABASE_URL": self.url,
            "PALIMPSEST_REDIS_URL": servers.valkey.url,
            "PALIMPSEST_LISTEN": self.address,
            "PALIMPSEST_MODEL_BASE_URL": model,
            # So the model server knows which executor had a lost reply.
            "PALIMPSEST_MODEL_API_KEY": PID,
            "PALIMPSEST_EMBEDDING_BASE_URL": model,
            "PALIMPSEST_EMBEDDING_API_KEY": "none",
            "PALIMPSEST_CALLER_SOCKET": str(self.folder / "executor"),
            **environment(self.folder / "switches"),
        }
        self._start()

    def _start(self) -> None:
        listen = ["executor", "--socket", self._environment["PALIMPSEST_CALLER_SOCKET"]]
        commands = (["serve"], ["work"], ["work"], listen)
        for name, words in zip(_PROCESSES, commands, strict=True):
            self._zygote.start(
                self._of(name), words, self._environment, restart_seconds=RESTART_SECONDS
            )
        for name in _PROCESSES:
            self._zygote.wait_ready(self._of(name))

    def _of(self, name: str) -> str:
        return f"{self.name}-{name}"

    def exits(self) -> Counter[str]:
        """Returns how often the processes ended: by the kill that was meant, or otherwise."""
        found: Counter[str] = Counter()
        for name in _PROCESSES:
            for code in self._zygote.status(self._of(name)).exits:
                found["killed" if code == -9 else f"{self._of(name)} ended with {code}"] += 1
        return found


@contextmanager
def deployments(count: int, slowness: float, keep: Path | None) -> Iterator[list[Deployment]]:
    """Yields so many, ended with everything in them; logs stay in the folder `keep`."""
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="sweep-"))
        folder = keep or Path(temporary)
        servers = stack.enter_context(Servers.started())
        zygote = stack.enter_context(Zygote.started(folder))
        yield [
            Deployment(servers, zygote, folder, f"d{number}", slowness)
            for number in range(1, count + 1)
        ]
