"""`python -m verification.benchmarks NAME`."""

import argparse
import importlib
import json
import signal
import sys
from types import FrameType

NAMES = (
    "append",
    "apply",
    "authentication",
    "backlog",
    "budget",
    "calls",
    "context",
    "defaults",
    "fairness",
    "growth",
    "history",
    "index",
    "isolation",
    "kv",
    "leases",
    "load",
    "long-session",
    "message",
    "pickup",
    "policy",
    "prompts",
    "proxy",
    "quotas",
    "read",
    "recall",
    "recovery",
    "retention",
    "search",
    "session-search",
    "soak",
    "start",
    "step",
    "stream",
    "table",
    "transfer",
    "tree",
    "waiters",
    "words",
    "workers",
)


def main() -> None:
    """Runs one benchmark and prints its result as the last line.

    A benchmark with options of its own adds them in `add_arguments`; `run` gets them.
    """
    parser = argparse.ArgumentParser(
        prog="python -m verification.benchmarks", description=__doc__, add_help=False
    )
    parser.add_argument("name", choices=NAMES, help="what to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long it may take")
    known, _ = parser.parse_known_args()
    module = importlib.import_module(f"verification.benchmarks.{known.name.replace('-', '_')}")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    parser.add_argument("-h", "--help", action="help", help="show this and do nothing else")
    options = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, _end)
    name = options.pop("name")
    print(json.dumps({"name": name, **module.run(options.pop("seconds"), **options)}))


def _end(number: int, _: FrameType | None) -> None:
    """Ends as if by itself, so that servers are stopped, and is not kept from that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
