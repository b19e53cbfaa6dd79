"""The folders of embedded servers and of logs, and how files are written there.

As root the servers run as another user, which could replace by a link whatever it may write. So
root writes only in folders that no other user may write in; what a server reads or writes there is
given to its user.
"""

import fcntl
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.local.processes import ServerError, ServerLog, ServerUser

#: Bytes read of a file that a server wrote; such files have a few lines.
READ_BYTES = 64 * 1024
#: The file whose lock says that a folder is in use.
_LOCK = "owner.lock"


@contextmanager
def in_one_line(folder: Path) -> Iterator[None]:
    """Turns an OSError into a ServerError of one clear line."""
    try:
        yield
    except OSError as error:
        # The second of two names is the target.
        name = error.filename2 or error.filename
        place = folder / os.fsdecode(name) if isinstance(name, str | bytes | Path) else folder
        reason = error.strerror or str(error)
        raise ServerError(f"cannot use {place}: {reason[:1].lower()}{reason[1:]}") from error


class OwnFolder:
    """A folder that this process's user alone writes in. `user` is the user of the servers.

    Its methods raise OSError when the system refuses (see in_one_line).
    """

    def __init__(self, path: Path, user: ServerUser) -> None:
        self.path = path
        self._user = user

    @classmethod
    def make(cls, path: Path, user: ServerUser) -> "OwnFolder":
        """Makes a folder where it is missing, and checks that it is ours. Raises ServerError.

        Folders above it that do not exist are made too; those that exist are left as they
        are, so one that the servers' user cannot enter is an error.
        """
        make_folders(path, _mode(user))
        with in_one_line(path):
            _check_ours(path)
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod((mode | _mode(user)) & ~0o022)
        if not user.can_reach(path):
            raise ServerError(
                f"started as root, and the servers' user cannot enter {path};"
                " choose a data folder outside closed homes"
            )
        return cls(path, user)

    def secret(self, name: str) -> str:
        """Returns a random password kept in a file of mode 0600, made when it is missing.

        Raises ServerError when the file is empty.
        """
        try:
            value = (self.path / name).read_text(errors="replace").strip()
        except FileNotFoundError:
            value = secrets.token_urlsafe(32)
            self.write(name, value + "\n", durable=True)
        if not value:
            raise ServerError(f"{self.path / name} is empty; it held a password of the server's")
        return value

    def write(
        self, name: str, text: str, *, for_server: bool = False, durable: bool = False
    ) -> None:
        """Writes a file of mode 0600, whole or not at all; `for_server` gives it away."""
        part = self.path / f"{name}.part"
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(handle)
        if for_server:
            self._user.own(part)
        part.replace(self.path / name)
        if durable:
            self._sync()

    def log(self, name: str) -> ServerLog:
        """Opens a log of a server's, which gets it open. The caller closes it.

        Its older file has the same name, followed by `.1`.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        handle = os.open(self.path / name, flags, 0o600)
        try:
            return ServerLog(handle, os.open(self.path / f"{name}.1", flags, 0o600))
        except BaseException:
            os.close(handle)
            raise

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        (self.path / name).unlink(missing_ok=True)

    def remove_tree(self, name: str) -> None:
        """Removes a folder with all that is in it, if there is one."""
        shutil.rmtree(self.path / name, onerror=_unless_gone)

    def make_servers(self, name: str) -> None:
        """Makes a fresh folder of the server's, mode 0700."""
        self.remove_tree(name)
        (self.path / name).mkdir(0o700)
        self._user.own(self.path / name)

    def give(self, name: str) -> None:
        """Gives a folder with all that is in it to the servers' user."""
        for path in (self.path / name, *(self.path / name).rglob("*")):
            self._user.own(path)

    def rename(self, old: str, new: str) -> None:
        """Renames what is there; it has happened when this returns, whatever comes then."""
        (self.path / old).rename(self.path / new)
        self._sync()

    def _sync(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Gives a folder one owner. Raises ServerError when another process has it."""
    with in_one_line(folder):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(folder / _LOCK, flags, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerError(
                f"another process uses the data folder {folder}: stop it (is it another"
                " `palimpsest up`?), or choose another folder with --data-dir"
            ) from error
        try:
            yield
        finally:
            # Closing is not enough: a process forked meanwhile has the same lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def make_folders(path: Path, mode: int) -> None:
    """Makes a folder and those above it, where they are missing. Raises ServerError."""
    with in_one_line(path):
        for folder in (*reversed(path.parents), path):
            wanted = mode if folder == path else 0o755
            try:
                folder.mkdir(wanted)
            except OSError:
                if folder.is_dir():
                    continue
                raise
            if os.geteuid() == 0:
                # The servers' user has to pass, whatever root's umask is.
                folder.chmod(wanted)


def read_servers(path: Path) -> str:
    """Returns the beginning of a file that a server wrote; empty when there is no plain file."""
    if not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            return file.read(READ_BYTES).decode(errors="replace")
    except FileNotFoundError:
        # The server has removed it meanwhile.
        return ""


def _check_ours(path: Path) -> None:
    """Raises ServerError for a folder of another user, or as root for a link."""
    ours = os.geteuid()
    if ours == 0 and path.is_symlink():
        raise ServerError(f"{path} is a link, and root follows none; choose another data folder")
    owner = path.stat().st_uid
    if owner != ours:
        raise ServerError(
            f"{path} belongs to {_name_of(owner)}, and this is {_name_of(ours)};"
            f" run it as {_name_of(owner)} or choose another data folder"
        )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _mode(user: ServerUser) -> int:
    """Closed to others; as root the servers' user may pass through to what is its own."""
    return 0o711 if user.other else 0o700


def _unless_gone(_: object, __: object, raised: tuple[object, BaseException, object]) -> None:
    """Raises what hindered a removal, unless the file is gone: a server removes its own."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]
