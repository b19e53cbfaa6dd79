"""The Python client's blocking face: `python -m tests.blocking` writes it from the awaited one.

unasync takes `async` and `await` away; `_runtime.py` of either folder is written by hand and
has what differs: channels, pauses, locks, tasks or threads.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

from tests import ROOT

CLIENT = ROOT / "clients/python/palimpsest"
#: Written by hand in both folders.
BY_HAND = {"__init__.py", "_runtime.py"}
#: Names that differ, beyond those that unasync knows.
NAMES = {
    "_async": "_sync",
    "aclose": "close",
    "aiter": "iter",
    "anext": "next",
    "Awaitable": "Callable",
}
HEADER = "# Generated from palimpsest/_async by `make sync`; do not edit.\n"


def sources() -> list[Path]:
    """Returns the modules that the blocking face is made from."""
    return sorted(path for path in (CLIENT / "_async").glob("*.py") if path.name not in BY_HAND)


def generate(target: Path) -> None:
    """Writes the modules of the blocking face into `target`."""
    rule = unasync.Rule(f"{CLIENT}/_async/", f"{target}/", NAMES)
    unasync.unasync_files([str(path) for path in sources()], [rule])
    written = [target / path.name for path in sources()]
    for path in written:
        path.write_text(HEADER + _plain(path.read_text()))
    for command in (["check", "--select", "I,F401", "--fix"], ["format"]):
        ruff = [str(Path(sys.executable).parent / "ruff"), *command, "--quiet"]
        subprocess.run([*ruff, "--config", str(ROOT / "pyproject.toml"), *written], check=True)


def _plain(source: str) -> str:
    """Returns the source with what unasync leaves: types of functions, words of docstrings."""
    source = re.sub(r"Callable\[\[(.*?)\], Callable\[(.*?)\]\]", r"Callable[[\1], \2]", source)
    source = re.sub(r"\basync (with|for|def)\b", r"\1", source)
    return source.replace("await ", "")


def stale() -> list[str]:
    """Returns the modules that are not what is made from the awaited face now."""
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        generate(target)
        fresh = {path.name: path.read_text() for path in target.glob("*.py")}
    kept = {
        path.name: path.read_text()
        for path in (CLIENT / "_sync").glob("*.py")
        if path.name not in BY_HAND
    }
    return sorted(name for name in {*fresh, *kept} if fresh.get(name) != kept.get(name))


if __name__ == "__main__":
    generate(CLIENT / "_sync")
