"""Kills each process of Palimpsest that hangs; systemd starts it again (Restart=on-failure).

Hangs: it does not answer at its health socket, several times in a row. A process that answers and
cannot reach its database is left alone: starting it again would not help. Nothing is lost by it:
docs/guides/running.md#when-something-dies.
"""

import os
import signal
import time
from pathlib import Path

from service.app import health

#: Looks, each of which waits up to `health.ANSWER_SECONDS` for every process.
LOOKS = 3
PAUSE_SECONDS = 5.0


def hung() -> set[tuple[str, int]]:
    """Returns kind and id of those that do not answer now."""
    found = health.ask(Path(os.environ["PALIMPSEST_RUN_DIR"]))
    return {(one.kind, one.pid) for one in found if not one.live}


def main() -> None:
    """Looks, and kills those that did not answer at any look."""
    suspects = hung()
    for _ in range(LOOKS - 1):
        if not suspects:
            return
        time.sleep(PAUSE_SECONDS)
        suspects &= hung()
    for kind, pid in sorted(suspects):
        print(f"{kind} {pid} did not answer {LOOKS} times in a row: it is killed")
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
