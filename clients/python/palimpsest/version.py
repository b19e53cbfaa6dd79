"""The client's version."""

from importlib.metadata import PackageNotFoundError, version

#: The distribution that brings this package.
DISTRIBUTION = "palimpsest-sdk"


def _installed() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        # Imported from a folder of sources.
        return "0"


#: As it is installed; "0" where it is not.
VERSION = _installed()
