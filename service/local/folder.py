"""Folders that we alone write in, and how files are written there.

As root the servers run as another user, and whatever that user may write, it may also
replace by a link while we look away. So what root writes lies in folders of root's; only
the files inside that a server has to read or write are its user's. A folder is opened
once, and everything in it is named relative to that: renaming its path, or putting a link
in its place, leads no write of ours elsewhere.
"""

import errno
import fcntl
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from service.local.processes import ServerError, ServerLog, ServerUser

#: What is read of a file that a server wrote, in bytes; such files have a few lines.
READ_BYTES = 64 * 1024
#: How much is copied at once.
COPY_BYTES = 1024 * 1024
#: A link, a pipe that nobody reads, a folder.
_NO_PLAIN_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def in_one_line(folder: Path) -> Iterator[None]:
    """Makes one clear line of what the system refuses. Raises ServerError for OSError."""
    try:
        yield
    except OSError as error:
        # Names are relative to the folder; of two names the second is where it goes.
        name = error.filename2 or error.filename
        place = folder / os.fsdecode(name) if isinstance(name, str | bytes | Path) else folder
        reason = error.strerror or str(error)
        raise ServerError(f"cannot use {place}: {reason[:1].lower()}{reason[1:]}") from error


class OwnFolder:
    """A folder of ours, open. `user` is who the servers run as.

    Its methods raise ServerError for what lies there and should not, and OSError when
    the system refuses (see in_one_line).
    """

    def __init__(self, path: Path, handle: int, user: ServerUser) -> None:
        self.path = path
        self._handle = handle
        self._user = user

    @classmethod
    def make(cls, path: Path, user: ServerUser) -> "OwnFolder":
        """Opens a folder and makes it when it is missing. Raises ServerError.

        Folders above that do not exist are made too; those that exist are left as they
        are, so one that the servers' user cannot enter is an error.
        """
        make_folders(path, _mode(user))
        with in_one_line(path):
            handle = _open_folder(path, path, user)
        if not user.can_reach(path):
            os.close(handle)
            raise ServerError(
                f"started as root, and the servers' user cannot enter {path};"
                " choose a data folder outside closed homes"
            )
        return cls(path, handle, user)

    def inside(self, name: str) -> "OwnFolder":
        """A folder of ours in this one."""
        _make_folder(Path(name), _mode(self._user), self._handle)
        handle = _open_folder(Path(name), self.path / name, self._user, self._handle)
        return OwnFolder(self.path / name, handle, self._user)

    def close(self) -> None:
        """Closes it."""
        os.close(self._handle)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One owner per folder. Raises ServerError when another process has it."""
        handle = self._open("owner.lock", os.O_RDWR | os.O_CREAT)
        with _locked(handle, self.path):
            yield

    def secret(self, name: str) -> str:
        """A random password that is kept in a file of mode 0600, made when it is missing."""
        try:
            handle = self._open(name, os.O_RDONLY)
        except FileNotFoundError:
            value = secrets.token_urlsafe(32)
            self.write(name, value + "\n", durable=True)
            return value
        with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
            value = file.read(READ_BYTES).strip()
        if not value:
            raise ServerError(f"{self.path / name} is empty; it held a password of the server's")
        return value

    def write(
        self, name: str, text: str, *, for_server: bool = False, durable: bool = False
    ) -> None:
        """Writes a file of mode 0600, whole or not at all; `for_server` gives it away."""
        part = name + ".part"
        self.remove(part)
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        with os.fdopen(os.open(part, new, 0o600, dir_fd=self._handle), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            if for_server:
                self._user.own(file.fileno())
            if durable:
                os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        if durable:
            os.fsync(self._handle)

    def log(self, name: str) -> ServerLog:
        """A log of a server's, to be closed. The server gets it open.

        What was put aside of it is called as it is, with `.1` behind.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        handle = self._open(name, flags)
        try:
            return ServerLog(handle, self._open(f"{name}.1", flags))
        except BaseException:
            os.close(handle)
            raise

    def remove(self, name: str) -> None:
        """Removes a file, or the link in its place, if there is one."""
        try:
            os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return

    def remove_tree(self, name: str) -> None:
        """Removes a folder with all that is in it, if there is one."""
        try:
            found = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            # A server that is about to end removes files of its own.
            shutil.rmtree(name, dir_fd=self._handle, onerror=_unless_gone)
        else:
            self.remove(name)

    def make_servers(self, name: str) -> None:
        """Makes a fresh folder of the server's, mode 0700."""
        os.mkdir(name, 0o700, dir_fd=self._handle)
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=self._handle)
        try:
            os.fchmod(handle, 0o700)
            self._user.own(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Renames what is there; it has happened when this returns, whatever comes then."""
        os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        os.fsync(self._handle)

    def names(self) -> list[str]:
        """What is there."""
        return sorted(os.listdir(self._handle))

    def copy(self, source: Path, place: str) -> None:
        """Copies a file or a folder to a place here; everybody may read the copy."""
        name, _, rest = place.partition("/")
        if rest:
            with closing(self.inside(name)) as folder:
                folder.copy(source, rest)
        elif source.is_symlink():
            os.symlink(os.readlink(source), name, dir_fd=self._handle)
        elif source.is_dir():
            with closing(self.inside(name)) as folder:
                # Listed too: PostgreSQL looks for its extensions and time zones.
                os.fchmod(folder._handle, 0o755)
                for entry in os.listdir(source):
                    folder.copy(source / entry, entry)
        else:
            self._copy_file(source, name)

    def _copy_file(self, source: Path, name: str) -> None:
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        with (
            source.open("rb") as old,
            os.fdopen(os.open(name, new, 0o600, dir_fd=self._handle), "wb") as file,
        ):
            shutil.copyfileobj(old, file, COPY_BYTES)
            os.fchmod(file.fileno(), 0o755 if os.fstat(old.fileno()).st_mode & 0o100 else 0o644)

    @contextmanager
    def servers(self, name: str) -> Iterator["ServersFolder"]:
        """A folder of the server's here, open. A link to another disk is followed.

        Raises FileNotFoundError, and ServerError when it is somebody else's.
        """
        # Following is harmless: only a folder of the servers' user is gone into.
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._handle)
        try:
            owner = os.fstat(handle).st_uid
            if owner != self._user.uid:
                raise ServerError(
                    f"{self.path / name} belongs to {name_of(owner)}, and the server would run"
                    f" as {name_of(self._user.uid)}; choose another data folder"
                )
            yield ServersFolder(handle)
        finally:
            os.close(handle)

    def _open(self, name: str, flags: int) -> int:
        return _open_file(name, flags, self.path / name, self._handle)


def _unless_gone(_: object, __: object, raised: tuple[object, BaseException, object]) -> None:
    """Raises what hindered a removal, unless somebody else has removed it."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


class ServersFolder:
    """A folder that the server writes in, open. It may put anything there."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def is_empty(self) -> bool:
        """Whether nothing is there."""
        return not os.listdir(self._handle)

    def read(self, name: str) -> str:
        """The beginning of a file; empty when it is missing or no plain file."""
        try:
            handle = os.open(name, os.O_RDONLY | _OPEN, dir_fd=self._handle)
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno in _NO_PLAIN_FILE:
                return ""
            raise
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return ""
            return os.read(handle, READ_BYTES).decode(errors="replace")
        finally:
            os.close(handle)

    def remove(self, name: str) -> None:
        """Removes a file, or the link in its place, if there is one."""
        try:
            os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One owner per folder, for one that need not be ours. Raises ServerError."""
    with in_one_line(folder):
        path = folder / "owner.lock"
        handle = _open_file(str(path), os.O_RDWR | os.O_CREAT, path, None)
    with _locked(handle, folder):
        yield


def make_folders(path: Path, mode: int) -> None:
    """Makes a folder and those above it, where they are missing. Raises ServerError."""
    with in_one_line(path):
        for parent in reversed(path.parents):
            _make_folder(parent, 0o755)
        _make_folder(path, mode)


def name_of(uid: int) -> str:
    """A user's name, or its number when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@contextmanager
def _locked(handle: int, folder: Path) -> Iterator[None]:
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerError(f"another process uses the data folder {folder}") from error
        try:
            yield
        finally:
            # Closing is not enough: a process forked meanwhile has the same lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _make_folder(path: Path, mode: int, above: int | None = None) -> None:
    """Makes one folder when it is missing. As root, its mode is not left to the umask."""
    try:
        os.stat(path, dir_fd=above)
        return
    except FileNotFoundError:
        pass
    try:
        os.mkdir(path, mode, dir_fd=above)
    except FileExistsError:
        # Somebody else was quicker, or it is a link that leads nowhere.
        return
    if os.geteuid() == 0:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=above)
        try:
            os.fchmod(handle, mode)
        finally:
            os.close(handle)


def _open_folder(name: Path, shown: Path, user: ServerUser, above: int | None = None) -> int:
    """Opens a folder of ours, and takes it back from the servers' user if need be."""
    ours = os.geteuid()
    # Only root has something to lose to a link.
    follow = 0 if ours else os.O_NOFOLLOW
    if ours == 0 and stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        raise ServerError(f"{shown} is a link, and root follows none; choose another data folder")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow
    try:
        handle = os.open(name, flags, dir_fd=above)
    except PermissionError as error:
        owner = os.stat(name, dir_fd=above).st_uid
        if owner == ours:
            raise
        raise ServerError(_somebody_elses(shown, owner)) from error
    try:
        found = os.fstat(handle)
        if found.st_uid == user.uid and user.other:
            # Our first releases gave it away.
            os.fchown(handle, ours, os.getegid())
        elif found.st_uid != ours:
            raise ServerError(_somebody_elses(shown, found.st_uid))
        mode = stat.S_IMODE(found.st_mode)
        wanted = (mode | _mode(user)) & ~0o022
        if mode != wanted:
            os.fchmod(handle, wanted)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _mode(user: ServerUser) -> int:
    """Closed to others; as root the servers' user may pass through to what is its own."""
    return 0o711 if user.other else 0o700


def _open_file(name: str, flags: int, shown: Path, above: int | None) -> int:
    """Opens a file of ours. Raises ServerError for anything else in its place."""
    try:
        handle = os.open(name, flags | _OPEN, 0o600, dir_fd=above)
    except OSError as error:
        if error.errno in _NO_PLAIN_FILE:
            raise ServerError(f"{shown} is no plain file, and so not used; remove it") from error
        raise
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid():
        return handle
    os.close(handle)
    if found.st_uid != os.geteuid():
        raise ServerError(_somebody_elses(shown, found.st_uid))
    raise ServerError(f"{shown} is no plain file with one name, and so not used; remove it")


def _somebody_elses(shown: Path, owner: int) -> str:
    return (
        f"{shown} belongs to {name_of(owner)}, and this is {name_of(os.geteuid())};"
        f" run it as {name_of(owner)} or choose another data folder"
    )
