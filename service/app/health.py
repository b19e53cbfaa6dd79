"""Asks the processes of this machine whether they are well: `python -m service.app.health`.

Each process of the service answers at a Unix socket in one folder of its user. This module
loads the standard library only, because probes run it every few seconds.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from service.settings.files import (
    CONFIG,
    FILE,
    UnusableFile,
    default_run_dir,
    is_ours,
    read_table,
    read_value,
)

#: How long a process may take to answer, in seconds; one that takes longer hangs.
ANSWER_SECONDS = 5.0
#: Kinds of processes: `serve`, `work` and `executor`.
KINDS = ("serve", "work", "executor")
_MAX_ANSWER_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The health that one process reports."""

    #: One of KINDS.
    kind: str
    pid: int
    #: It answers: its event loop runs. False: it hangs.
    live: bool
    #: It can do its work.
    ready: bool
    #: Why it is not ready; empty when it is.
    cause: str


def ask(run_dir: Path, kind: str | None = None) -> list[Health]:
    """Returns the health of each process that runs, by kind and id; or those of one kind.

    Removes the sockets of processes that are gone. A folder that another user may have made
    has no processes of ours; the superuser may ask in any.
    """
    if not run_dir.is_dir() or (os.geteuid() != 0 and not is_ours(run_dir)):
        return []
    found = []
    for path in sorted(run_dir.glob(f"{kind or '*'}-*.sock")):
        name, _, pid = path.stem.rpartition("-")
        if name not in KINDS or not pid.isdecimal():
            continue
        one = _ask(path, name, int(pid))
        if one is None:
            path.unlink(missing_ok=True)
        else:
            found.append(one)
    return found


def _ask(path: Path, kind: str, pid: int) -> Health | None:
    """Returns what the process says; None when it is gone."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_SECONDS)
        try:
            asking.connect(str(path))
            said = b""
            while len(said) < _MAX_ANSWER_BYTES and (part := asking.recv(_MAX_ANSWER_BYTES)):
                said += part
            answer = json.loads(said)
            cause = str(answer["cause"])
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            cause = f"it does not answer: {error or type(error).__name__}"
            return Health(kind=kind, pid=pid, live=False, ready=False, cause=cause)
    return Health(kind=kind, pid=pid, live=True, ready=not cause, cause=cause)


def report(run_dir: Path, kind: str | None, *, live: bool, as_json: bool) -> tuple[bool, str]:
    """Returns whether all is well, and one line about it.

    `live` asks no more than that every process answers. Where none runs, nothing is well.
    """
    found = ask(run_dir, kind)
    well = bool(found) and all(one.live if live else one.ready for one in found)
    if as_json:
        return well, json.dumps({"healthy": well, "processes": [asdict(one) for one in found]})
    if not found:
        return well, f"no process of Palimpsest answers in {run_dir}"
    said = (f"{one.kind} {one.pid} {_word(one)}" for one in found)
    return well, " ".join("; ".join(said).split())


def _word(one: Health) -> str:
    return "is ready" if one.ready else f"is not ready: {one.cause}"


def _run_dir(config: str | None) -> Path:
    """Returns the folder of the sockets, as `service.settings` finds it. Raises UnusableFile."""
    name = "PALIMPSEST_RUN_DIR"
    # Empty is as not set.
    named = os.environ.get(name) or None
    if named is None and name + FILE in os.environ:
        named = read_value(os.environ[name + FILE], name + FILE)
    if named is None and config is not None:
        named = read_table(config).table.get("run_dir")
    return Path(str(named)) if named else default_run_dir()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line; returns 0 when all is well, else 1."""
    parser = argparse.ArgumentParser(prog="python -m service.app.health", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, help="ask processes of this kind only")
    parser.add_argument("--live", action="store_true", help="ask only whether they answer")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", metavar="PATH", help=f"a TOML file of settings ({CONFIG})")
    chosen = parser.parse_args(arguments)
    try:
        run_dir = _run_dir(chosen.config or os.environ.get(CONFIG) or None)
    except UnusableFile as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    well, line = report(run_dir, chosen.kind, live=chosen.live, as_json=chosen.json)
    print(line)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
