"""Whether the locks hold what pyproject.toml asks for; `make lock` makes them so."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

OURS = "palimpsest-"


def pins(lock: Path) -> dict[str, set[Version]]:
    """Returns the versions in a lock, by name: several where they depend on Python's."""
    found: dict[str, set[Version]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


def strayed(root: Path) -> Iterator[str]:
    """Yields what is wrong with the locks, a line each."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    base, embedded, local = project["dependencies"], extras["embedded"], extras["local"]
    lines = {
        "server": _missing(root, "server", base),
        "dev": _missing(root, "dev", [*base, *embedded]),
        "embedded": _missing(root, "embedded", embedded),
        "local": _missing(root, "local", local),
    }
    for name, missing in lines.items():
        if missing:
            yield f"{name}.lock: run `make lock`; it lacks {', '.join(missing)}"
    server = pins(root / "requirements/server.lock")
    if carried := [one for one in embedded if Requirement(one).name in server]:
        yield f"server.lock is for production, and holds {', '.join(carried)}"


def _missing(root: Path, name: str, wanted: Iterable[str]) -> list[str]:
    locked = pins(root / f"requirements/{name}.lock")
    return [
        one
        for one in wanted
        if not (required := Requirement(one)).name.startswith(OURS)
        and not any(
            required.specifier.contains(version, prereleases=True)
            for version in locked.get(canonicalize_name(required.name), ())
        )
    ]
