"""Prints the progress of a campaign: a line now and then while it runs."""

import sys
import time
from pathlib import Path

from verification.chaos.deployment import Deployment

#: Between two lines.
PRINT_SECONDS = 30.0
_PAGE_BYTES = 4096


class ProgressPrinter:
    """Prints how far a run is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = self._printed = time.monotonic()
        self._chunks = 0
        #: Highest resident memory of our own process that was seen, in MB.
        self.own_mb = 0

    def look(self, deployment: Deployment) -> None:
        """Prints a line, when one is due."""
        now = time.monotonic()
        if now - self._printed < PRINT_SECONDS:
            return
        progress = deployment.progress()
        if progress is None:
            # PostgreSQL is away: soon.
            return
        mb = sum(resident_mb(pid) for pid in deployment.pids())
        rate = (progress.chunks - self._chunks) / (now - self._printed)
        self._printed, self._chunks = now, progress.chunks
        self.say(
            f"{progress.chunks} chunks ({rate:.0f} a second), {progress.unread} unread,"
            f" {progress.faults} faults, ours {mb} MB"
        )

    def say(self, what: str) -> None:
        """Prints what happens now."""
        own = resident_mb("self")
        self.own_mb = max(self.own_mb, own)
        written = sum(path.stat().st_size for path in self._folder.iterdir()) // 2**20
        at = time.monotonic() - self._started
        line = f"{at:.0f} s: {what}; the campaign {own} MB, written {written} MB"
        print(line, file=sys.stderr, flush=True)


def resident_mb(process: int | str) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * _PAGE_BYTES // 2**20
