"""What an honest client meets, and what the server holds, while another client attacks."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import palimpsest

#: Below this the time of a call is what the machine's other work makes of it, in seconds.
NOISE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """How an honest client fared."""

    #: In seconds, 95 of 100 calls took no longer.
    p95: float
    #: Calls that were answered with an error, after the client's own tries.
    failed: int

    def said(self) -> str:
        """Returns both in words."""
        return f"p95 {self.p95 * 1000:.1f} ms, {self.failed} failed"


async def met(address: str, calls: int) -> Met:
    """Returns what `calls` calls over a new connection met, one after the other."""
    took: list[float] = []
    failed = 0
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        for _ in range(calls):
            began = time.perf_counter()
            try:
                await session.info()
            except palimpsest.PalimpsestError:
                failed += 1
            took.append(time.perf_counter() - began)
            # Calls that follow each other at once would be a load themselves.
            await asyncio.sleep(0.005)
    return Met(p95=sorted(took)[int(len(took) * 0.95)], failed=failed)


def is_unhurt(before: Met, during: Met, times: float) -> bool:
    """Returns whether no call failed, and none took more than so many times as long as before."""
    return during.failed == 0 and during.p95 <= times * max(before.p95, NOISE_SECONDS)


class Memory:
    """The resident memory of a process, in MiB, watched by a thread."""

    def __init__(self, pid: int) -> None:
        self._statm = Path(f"/proc/{pid}/statm")
        self.first = self.peak = self.now()

    def now(self) -> int:
        """Returns what it is."""
        return int(self._statm.read_text().split()[1]) * 4096 // 2**20

    @contextmanager
    def watched(self) -> Iterator["Memory"]:
        """Notes its peak meanwhile."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.02):
                self.peak = max(self.peak, self.now())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    @property
    def growth(self) -> int:
        """By how much it grew at its peak."""
        return self.peak - self.first


@contextmanager
def attacked(
    address: str, what: str, *numbers: int, module: str = "tests.support.raw_http2"
) -> Iterator[None]:
    """Runs a module meanwhile; `numbers`: of its streams, and of its connections."""
    with subprocess.Popen(
        [sys.executable, "-m", module, address, what, *map(str, numbers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            if process.stdout.readline() != "attacking\n":
                raise RuntimeError("the attacker did not begin")
            yield
        finally:
            process.communicate()
