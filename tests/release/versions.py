"""One version: where it is written down, whether it is the same there, and how it changes."""

import re
from collections.abc import Iterator
from pathlib import Path

_SDK = r'"palimpsest-sdk==(.+)"'
_PROTO = r'"palimpsest-proto==(.+)"'
_SERVER = r'"palimpsest-server==(.+)"'
_EVALUATION = r'"palimpsest-evaluation==(.+)"'
_VERSION = r'^version = "(.+)"$'
_PARENT = r"<artifactId>palimpsest-parent</artifactId>\s+<version>(.+)</version>"
#: The files, and the expressions whose group is the version.
PLACES = {
    "pyproject.toml": (_VERSION, _PROTO, _SDK, _EVALUATION),
    "clients/python/pyproject.toml": (_VERSION, _PROTO),
    "proto/pyproject.toml": (_VERSION,),
    "evaluation/pyproject.toml": (_VERSION, _SERVER),
    "clients/java/pom.xml": (_PARENT,),
    "clients/java/proto/pom.xml": (_PARENT,),
    "clients/java/sdk/pom.xml": (_PARENT,),
    "clients/java/README.md": (r"<version>(.+)</version>",),
    "deploy/chart/palimpsest/Chart.yaml": (r"^version: (.+)$", r'^appVersion: "(.+)"$'),
}
#: The image, wherever it is named below deploy/.
_IMAGE = r"\bpalimpsest:(\d+\.\d+\.\d+)"


def current(root: Path) -> str:
    """Returns the version of the server's package."""
    found = re.search(_VERSION, (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None, "a package has a version"
    return found[1]


def strayed(root: Path) -> Iterator[str]:
    """Yields the places with another version than the server's package, or none."""
    wanted = current(root)
    for path, expressions in _places(root):
        text = path.read_text()
        for expression in expressions:
            versions = re.findall(expression, text, re.MULTILINE)
            if any(one != wanted for one in versions) or not (versions or expression == _IMAGE):
                yield f"{path.relative_to(root)} says {versions}, pyproject.toml {wanted}"


def write(root: Path, version: str) -> None:
    """Writes another version to all places."""
    for path, expressions in _places(root):
        old = text = path.read_text()
        for expression in expressions:
            text = re.sub(
                expression,
                lambda one: one[0].replace(one[1], version),
                text,
                flags=re.MULTILINE,
            )
        if text != old:
            path.write_text(text)


def _places(root: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for name, expressions in PLACES.items():
        if (root / name).exists():
            yield root / name, expressions
    for path in sorted((root / "deploy").rglob("*")):
        if path.is_file() and re.search(_IMAGE, path.read_text(errors="replace")):
            yield path, (_IMAGE,)
