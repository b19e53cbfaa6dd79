"""Measures processes: memory, connections, CPU; and summarizes durations."""

import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from verification.benchmarks.calls import cpu_seconds

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The state of an open connection in /proc/net/tcp.
_ESTABLISHED = "01"

_BY_NAME = """
SELECT split_part(application_name, '@', 1), count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() GROUP BY 1 ORDER BY 1
"""


def resident_bytes(pid: int) -> int:
    """Returns what a process has in memory; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Returns resident bytes, but only a share of shared memory: for PostgreSQL."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def family(root: int) -> list[int]:
    """Returns a process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            # It has just ended.
            continue
        parents.setdefault(parent, []).append(int(path.parent.name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += parents.get(pid, ())
    return found


def connections_by_name(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Connections to a database, by what its clients call themselves."""
    return {name or "other": number for name, number in connection.execute(_BY_NAME).fetchall()}


def connections_of(pid: int, url: str) -> int:
    """Connections of a process to the server of a database; 0 when it has ended."""
    port = int(str(conninfo_to_dict(url)["port"]))
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        there = {
            f"socket:[{row[9]}]"
            for row in rows
            if row[3] == _ESTABLISHED and int(row[2].rpartition(":")[2], 16) == port
        }
        return sum(_leads_to(each, there) for each in Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _leads_to(descriptor: Path, wanted: set[str]) -> bool:
    try:
        return os.readlink(descriptor) in wanted
    except OSError:
        # Closed meanwhile.
        return False


class Sizes:
    """The memory of processes over time."""

    def __init__(self) -> None:
        #: By name: (seconds by time.monotonic(), bytes).
        self.of: dict[str, list[tuple[float, int]]] = {}

    def look(self, processes: Mapping[str, int], postmaster: int | None = None) -> None:
        """Notes how much they have now."""
        at = time.monotonic()
        for name, pid in processes.items():
            size = resident_bytes(pid)
            if size:
                self.of.setdefault(name, []).append((at, size))
        if postmaster is not None:
            size = sum(map(proportional_bytes, family(postmaster)))
            self.of.setdefault("postgres", []).append((at, size))

    def figures(self) -> dict[str, dict[str, float]]:
        """Megabytes of each: at the end, and at most."""
        return {
            name: {
                "rss_mb": round(seen[-1][1] / 1e6, 1),
                "max_mb": round(max(size for _, size in seen) / 1e6, 1),
            }
            for name, seen in self.of.items()
        }


@contextmanager
def sampled(
    processes: Mapping[str, int], postmaster: int | None, seconds: float
) -> Iterator[Sizes]:
    """Looks at the memory of processes every so many seconds, and at both ends."""
    sizes, ended = Sizes(), threading.Event()

    def look() -> None:
        while not ended.wait(seconds):
            sizes.look(processes, postmaster)

    sizes.look(processes, postmaster)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        ended.set()
        thread.join()
        sizes.look(processes, postmaster)


@contextmanager
def cpu_by_kind(processes: Mapping[str, int]) -> Iterator[dict[str, float]]:
    """CPU seconds that they and all below them take meanwhile, by what they are.

    There when it is left. A worker's executor, which is below it, counts by itself.
    """
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    kinds: dict[str, float] = {}
    yield kinds
    for name, pid in processes.items():
        kind = name.partition("-")[0]
        kinds[kind] = kinds.get(kind, 0.0) + cpu_seconds(pid) - before[name]
    if "executor" in kinds:
        kinds["worker"] -= kinds["executor"]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds, the largest, and how many there are."""
    if not seconds:
        return {"count": 0}
    ordered = sorted(seconds)
    if len(ordered) == 1:
        ordered *= 2
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    return {
        "p50_ms": round(cuts[49] * 1000, 1),
        "p95_ms": round(cuts[94] * 1000, 1),
        "p99_ms": round(cuts[98] * 1000, 1),
        "max_ms": round(ordered[-1] * 1000, 1),
        "count": len(seconds),
    }


def slope(seen: Sequence[tuple[float, float]]) -> float:
    """Returns the median slope between all pairs of points (Theil-Sen), robust to outliers."""
    slopes = [
        (late - soon) / (to - since)
        for number, (since, soon) in enumerate(seen)
        for to, late in seen[number + 1 :]
        if to > since
    ]
    return statistics.median(slopes) if slopes else 0.0


def load_average() -> list[float]:
    """Returns the machine's load over 1, 5 and 15 minutes, which says how quiet it was."""
    return [round(each, 1) for each in os.getloadavg()]
