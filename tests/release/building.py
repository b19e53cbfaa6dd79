"""Wheels and sdists of the four packages, the same bytes wherever they are built."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: The folders of the packages, each after those that it depends on.
FOLDERS = ("proto", "clients/python", ".", "evaluation")


def commit_time(tree: Path) -> int:
    """Returns when the last commit of a tree was made: the time of all that is built of it."""
    said = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=tree, capture_output=True, text=True, check=True
    )
    return int(said.stdout)


def build(tree: Path, target: Path, seconds: int) -> list[Path]:
    """Builds the wheels and sdists of a tree, as of a time, in place of those in `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for old in packages(target):
        old.unlink()
    for folder in FOLDERS:
        _hatchling(tree / folder, target, seconds)
    return packages(target)


def packages(folder: Path) -> list[Path]:
    """Returns the wheels and sdists in a folder."""
    return sorted(one for kind in ("whl", "tar.gz") for one in folder.glob(f"palimpsest_*.{kind}"))


def differing(tree: Path, built: Path, seconds: int) -> Iterator[str]:
    """Yields which packages differ when they are built once more, and of their sdists."""
    with tempfile.TemporaryDirectory() as name:
        again = Path(name)
        build(tree, again / "again", seconds)
        for sdist in built.glob("*.tar.gz"):
            subprocess.run(["tar", "-xf", str(sdist), "-C", str(again)], check=True)
            unpacked = again / sdist.name.removesuffix(".tar.gz")
            _hatchling(unpacked, again / "unpacked", seconds, "-t", "wheel")
        for one in packages(built):
            if (again / "again" / one.name).read_bytes() != one.read_bytes():
                yield f"{one.name} is another one when it is built again"
        for one in built.glob("*.whl"):
            if (again / "unpacked" / one.name).read_bytes() != one.read_bytes():
                yield f"{one.name} is another one when it is built of its sdist"


def _hatchling(folder: Path, target: Path, seconds: int, *options: str) -> None:
    # Without an environment of its own: the backend is the one that dev.lock pins.
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options],
        cwd=folder,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(seconds)},
        capture_output=True,
        check=True,
    )
