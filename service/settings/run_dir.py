"""The folder of the sockets by which processes are asked whether they are well."""

import os
import stat
import tempfile
from pathlib import Path


def default_run_dir() -> Path:
    """Returns the folder of the sockets where PALIMPSEST_RUN_DIR names none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "palimpsest"
    return Path(tempfile.gettempdir()) / f"palimpsest-{os.geteuid()}"


def is_ours(folder: Path) -> bool:
    """Returns whether a folder belongs to our user, and to no other: not even by a link."""
    found = folder.lstat()
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and private
