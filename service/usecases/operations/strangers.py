"""Finds distributions of other projects that write over our files (docs/decisions/0068)."""

from importlib.metadata import PackageNotFoundError, version

#: By name on PyPI, what of ours each of them replaces.
_REPLACED = {
    "palimpsest": "the Python package `palimpsest`",
    "palimpsest-client": "the command `palimpsest`",
}


def strangers() -> str:
    """Returns what those that are installed replace; empty when none is."""
    found = []
    for name, replaced in _REPLACED.items():
        try:
            found.append(f"{name} {version(name)} is another project, and replaces {replaced}")
        except PackageNotFoundError:
            continue
    return "; ".join(found)


#: What to do about them.
ADVICE = "make an environment for palimpsest-server or palimpsest-sdk without it"
