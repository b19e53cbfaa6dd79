"""All benchmarks one after the other, and their values against their goals.

Those that can run for long run with their small sizes. The last line but those of the table
is each benchmark's own; figures are no tests, so nothing fails when a goal is missed. One that
breaks is in the table with its error, and the others still run.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

#: In this order, with the options that keep each within a few minutes.
SIZES: dict[str, Sequence[str]] = {
    "append": (),
    "apply": (),
    "authentication": (),
    "budget": ("--rows", "300000"),
    "calls": (),
    "context": (),
    "defaults": ("--turns", "200"),
    "growth": ("--seconds", "60"),
    "history": (),
    "index": (),
    "kv": (),
    "leases": (),
    "policy": ("--synthetic", "50"),
    "prompts": (),
    "proxy": (),
    "quotas": (),
    "read": (),
    "recall": ("--chunks", "50000", "--large", "0"),
    "search": (),
    "session-search": ("--large", "100000", "--behind", "20000"),
    "step": (),
    "transfer": ("--chunks", "20000"),
    "stream": (),
    "tree": (),
    "waiters": (),
    "words": (),
    "long-session": ("--tail", "30", "--chunks", "200000", "--calls", "100000"),
    "load": ("--sessions", "200", "--chunks", "10000"),
    "message": ("--sessions", "100", "--rounds", "2"),
    "workers": (),
    "start": ("--times", "2"),
    "pickup": ("--seconds", "60"),
    "backlog": (
        *("--sessions", "4000", "--behind", "1000", "--runnable", "2000"),
        *("--asks", "100", "--seconds", "10"),
    ),
    "recovery": ("--hints", "10", "--restarts", "5"),
    "fairness": ("--seconds", "20"),
    "retention": ("--rows", "30000", "--seconds", "12"),
    "isolation": ("--pairs", "2"),
    "soak": ("--minutes", "5"),
}
#: No benchmark takes so long with these sizes, in seconds.
MAX_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for which benchmarks run."""
    parser.add_argument("--only", default=",".join(SIZES), help="names, with commas between")


def run(seconds: float, *, only: str) -> dict[str, Any]:
    """Runs them, each in a process of its own; the table goes to standard error."""
    found = [_result(name, SIZES[name]) for name in only.split(",")]
    print("\n".join(rows(found)), file=sys.stderr, flush=True)
    return {"value": len(found), "goal": f"{len(SIZES)} benchmarks", "results": found}


def _result(name: str, options: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "verification.benchmarks", name, *options]
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=MAX_SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"name": name, "error": str(error)}
    line = ended.stdout.strip().splitlines()[-1]
    print(line, flush=True)
    result: dict[str, Any] = json.loads(line)
    return result


def rows(found: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a line for each result: its name, its value, its goal."""
    cells = [("benchmark", "value", "goal")]
    for each in found:
        value = "broke" if "error" in each else str(each["value"])
        cells.append((each["name"], value, str(each.get("goal", each.get("error", "")))))
    widths = [max(len(row[column]) for row in cells) for column in range(2)]
    return [f"{name:<{widths[0]}}  {value:>{widths[1]}}  {goal}" for name, value, goal in cells]
