"""Measures a start, and its parts, until the first chunk is applied.

- `up`: `palimpsest up` on data that is there already, with a server's model (`far`) and with
  the offline one (`near`): until it says where it listens, and until a chunk that is appended
  at once is in a memory.
- `parts`: `serve` and `work`, started together beside servers that run, with a server's model.
- `help`: `palimpsest --help`.

Seconds, the median of `--times`. With `--against FOLDER`, where another release's code is, both
are measured alternately; `value` is then this one's time from start to first chunk, `up` with a
server's model, divided by the other's, and each of the others' times has its ratio too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from palimpsest import sync
from tests import ROOT
from tests.support.harness import Process, Servers
from verification.benchmarks.load_meters import load_average
from verification.benchmarks.load_stack import MODEL, NOTES, SCHEMA, UPDATE
from verification.benchmarks.slow_model import slow_server

#: Nothing takes so long, unless something is wrong.
MAX_SECONDS = 120.0
#: What each of ours is started with.
QUIET = {"PALIMPSEST_LOG_LEVEL": "error"}
OURS = ROOT

Times = dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for how often, and against what."""
    parser.add_argument("--times", type=int, default=3, help="starts of each")
    parser.add_argument("--against", type=Path, help="a folder with another release's code")


def run(seconds: float, *, times: int, against: Path | None) -> dict[str, Any]:
    """Measures; see the module. Takes as long as it takes."""
    folders = {"now": OURS, **({"before": against.absolute()} if against else {})}
    found: dict[str, Times] = {name: {} for name in folders}
    with (
        ThreadPoolExecutor() as threads,
        slow_server(0.0, UPDATE, ()) as model,
        Servers.started() as servers,
        ExitStack() as held,
    ):
        far = {
            **QUIET,
            "PALIMPSEST_MODEL": MODEL,
            "PALIMPSEST_MODEL_BASE_URL": model,
            "PALIMPSEST_MODEL_API_KEY": "none",
        }
        data = {(name, kind): held.enter_context(_folder()) for name in folders for kind in _KINDS}
        databases = {name: servers.new_database() for name in folders}
        # The first of each makes the data, and does not count.
        for turn in range(times + 1):
            for name, folder in folders.items():
                took = _help(folder)
                for kind in _KINDS:
                    environment = far if kind == "far" else QUIET
                    took |= _up(folder, data[name, kind], environment, kind)
                environment = {**far, "PALIMPSEST_DATABASE_URL": databases[name]}
                environment |= servers.redis_settings()
                took |= _parts(folder, environment, threads)
                for what, one in took.items():
                    found[name].setdefault(what, []).extend([one] if turn else [])
    medians = {
        name: {what: statistics.median(each) for what, each in one.items()}
        for name, one in found.items()
    }
    result = {
        name: {what: round(each, 2) for what, each in one.items()} for name, one in medians.items()
    }
    if not against:
        return {"value": result["now"][_MAIN], "unit": "s", **result, "load": load_average()}
    ratios = {
        what: round(each / medians["before"][what], 3) for what, each in medians["now"].items()
    }
    return {"value": ratios[_MAIN], "ratios": ratios, **result, "load": load_average()}


_KINDS = ("far", "near")
_MAIN = "up_far_first_chunk"


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-start-") as name:
        # The servers may run as another user, who must be able to get there.
        Path(name).chmod(0o755)
        yield Path(name) / "data"


def _help(folder: Path) -> dict[str, float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "service.cli", "--help"]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return {"help": time.monotonic() - began}


def _up(folder: Path, data: Path, environment: dict[str, str], kind: str) -> dict[str, float]:
    began = time.monotonic()
    command = f"up --data-dir {data} --listen 127.0.0.1:0"
    with closing(Process(command, environment, "Palimpsest listens", folder=folder)) as process:
        ready = time.monotonic()
        _apply_one(process.ready_line.split()[3].rstrip(";"))
        applied = time.monotonic()
        process.stop()
    return {f"up_{kind}_ready": ready - began, f"up_{kind}_first_chunk": applied - began}


def _parts(
    folder: Path, environment: dict[str, str], threads: ThreadPoolExecutor
) -> dict[str, float]:
    began = time.monotonic()
    environment = {**environment, "PALIMPSEST_LISTEN": "127.0.0.1:0"}

    def start(command: str, ready: str) -> tuple[Process, float]:
        process = Process(command, environment, ready, folder=folder)
        return process, time.monotonic() - began

    working = threads.submit(start, "work", "working")
    server, listens = start("serve", "listening on")
    worker, works = working.result()
    with closing(server), closing(worker):
        _apply_one(server.ready_line.removeprefix("listening on "))
        applied = time.monotonic() - began
        worker.stop()
        server.stop()
    return {"serve_ready": listens, "work_ready": works, "parts_first_chunk": applied}


def _apply_one(address: str) -> None:
    """Appends a chunk, and waits until a memory has it."""
    with sync.Client(address) as client:
        session = client.create_session("start", exist_ok=True)
        memory = session.create_memory(NOTES, schema_source=SCHEMA, exist_ok=True)
        ack = session.append(f"The ship lies in harbour {os.urandom(4).hex()}.")
        memory.get(after=ack.read_token, timeout=MAX_SECONDS)
