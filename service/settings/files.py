"""Files of settings and secrets, which are bounded, and the folder of health sockets.

This module imports the standard library only, since health probes load it every few seconds.
"""

import os
import stat
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Bytes of a file, at most.
MAX_BYTES = 1024 * 1024
#: The variable that names the file of settings.
CONFIG = "PALIMPSEST_CONFIG"
#: Ends the variables that name a file with the value of a setting.
FILE = "_FILE"


class UnusableFile(Exception):
    """A file cannot be used; the message is one clear line, without anything that stands in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsFile:
    """What a TOML file holds."""

    path: str
    table: dict[str, Any]
    #: Whether more users may read it than necessary.
    is_open: bool


def read_value(path: str, name: str) -> str:
    """Returns what a file holds, without a final newline; `name` stands in errors.

    Raises UnusableFile.
    """
    text = _read(path, f"{name} ({path})")[0].removesuffix("\n").removesuffix("\r")
    if not text:
        raise UnusableFile(f"{name} ({path}): is empty: write the value into it")
    return text


def read_table(path: str) -> SettingsFile:
    """Returns what a TOML file holds. Raises UnusableFile."""
    text, found = _read(path, path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnusableFile(f"{path}: is no TOML: {error}") from None
    except ValueError:
        raise UnusableFile(f"{path}: has a number with too many digits") from None
    except RecursionError:
        raise UnusableFile(f"{path}: has brackets in brackets, too deep to be read") from None
    # Another user, such as root, may have given our group the right to read a file.
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    return SettingsFile(path=path, table=table, is_open=bool(found.st_mode & others))


def _read(path: str, place: str) -> tuple[str, os.stat_result]:
    try:
        # Opening a pipe would block until a process writes to it.
        with open(path, "rb", opener=lambda path, how: os.open(path, how | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UnusableFile(f"{place}: is no regular file: name one")
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnusableFile(f"{place}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise UnusableFile(f"{place}: has more than {MAX_BYTES:,} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise UnusableFile(f"{place}: is not UTF-8 text") from None
    if "\0" in text:
        raise UnusableFile(f"{place}: has a NUL byte, and is no text")
    return text, found


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
