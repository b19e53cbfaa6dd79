"""The file of the erasure journal: append-only, on disk before an erasure is called complete."""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from service.domain.log.journal_lines import (
    MAX_LINE_BYTES,
    NO_MAC,
    JournalBroken,
    JournalEntry,
    JournalFull,
    from_line,
    mac_of,
    to_line,
)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class JournalFile:
    """A journal at a path; several processes, also of several machines, may append to it.

    Its methods block, and raise JournalBroken, also when the system refuses.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        self._key = key

    def exists(self) -> bool:
        """Returns whether there is a file, be it empty."""
        return self.path.exists()

    def read(self) -> Iterator[JournalEntry]:
        """Yields the entries in order.

        A line without its end is not an entry: its writer died, and nothing relied on it.
        """
        mac, number = NO_MAC, 0
        if not self.exists():
            return
        with _refusing(), self.path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise JournalBroken(f"line {number} is too long")
                if not line.endswith(b"\n"):
                    return
                try:
                    entry, mac = from_line(line, self._key, mac)
                except JournalBroken as error:
                    raise JournalBroken(f"line {number} {error}") from error
                yield entry

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Appends entries; they are on disk when it returns."""
        is_new = not self.exists()
        with _refusing(), self._locked() as file:
            size, before = _end(file)
            lines = []
            for entry in entries:
                line, before = to_line(entry, self._key, before)
                lines.append(line)
            # What a writer has left that died within its line.
            file.truncate(size)
            file.seek(size)
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
            if is_new:
                _sync_folder(self.path.parent)

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "r+b") as file:
            # By record, which file systems of networks support as well. Closing releases it.
            fcntl.lockf(handle, fcntl.LOCK_EX)
            yield file


@contextmanager
def _refusing() -> Iterator[None]:
    """Raises JournalBroken when the system refuses."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        broken = JournalFull if error.errno in _NO_ROOM else JournalBroken
        raise broken(f"cannot be used: {said[:1].lower()}{said[1:]}") from error


def _end(file: BinaryIO) -> tuple[int, str]:
    """Returns where the last whole line ends, and its mac."""
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - 2 * MAX_LINE_BYTES)
    file.seek(begin)
    tail = file.read(size - begin)
    whole = tail[: tail.rfind(b"\n") + 1]
    if not whole:
        if begin:
            raise JournalBroken("its last line is too long")
        return 0, NO_MAC
    return begin + len(whole), mac_of(whole[:-1].rpartition(b"\n")[2])


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
