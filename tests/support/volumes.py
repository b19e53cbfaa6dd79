"""Small file systems that can be filled, where this machine lets us mount one."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from service.local.postgres import PostgresServer

#: PostgreSQL's data takes 50 MB, its write-ahead log a few files of 16 MB each.
DATA_BYTES = 320 * 1024 * 1024
LOG_BYTES = 112 * 1024 * 1024
_BALLAST = "ballast"


class CannotMount(Exception):
    """This machine does not let us mount a file system."""


class Volume:
    """A file system of its own at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextmanager
    def mounted(cls, folder: Path, size: int) -> Iterator["Volume"]:
        """Mounts one of so many bytes over a folder. Raises CannotMount."""
        if os.geteuid() != 0 or shutil.which("mount") is None:
            raise CannotMount("only root can mount a file system")
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotMount(done.stderr.strip())
        try:
            yield cls(folder)
        finally:
            # Whatever still has a file open there: it goes when that is closed.
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    def fill(self) -> None:
        """Takes all the room that there is."""
        handle = os.open(self.folder / _BALLAST, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            for size in (1024 * 1024, 4096):
                while _fits(handle, size):
                    pass
        finally:
            os.close(handle)

    def make_room(self) -> None:
        """Gives it back."""
        (self.folder / _BALLAST).unlink()


def _fits(handle: int, size: int) -> bool:
    try:
        os.write(handle, bytes(size))
    except OSError:
        # Full.
        return False
    return True


@contextmanager
def data_and_log() -> Iterator[tuple[Volume, Volume]]:
    """Yields a data folder for `up` with PostgreSQL's data, and its write-ahead log, each on a
    file system of its own. Raises CannotMount."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name, ExitStack() as stack:
        data = stack.enter_context(Volume.mounted(Path(name), DATA_BYTES))
        with PostgresServer(data.folder / "postgres"):
            pass
        place = data.folder / "postgres" / "data" / "pg_wal"
        kept, owner = data.folder / "log-before", place.stat()
        shutil.move(place, kept)
        place.mkdir()
        log = stack.enter_context(Volume.mounted(place, LOG_BYTES))
        shutil.copytree(kept, place, dirs_exist_ok=True)
        shutil.rmtree(kept)
        for one in (place, *place.rglob("*")):
            os.chown(one, owner.st_uid, owner.st_gid)
        place.chmod(0o700)
        yield data, log
