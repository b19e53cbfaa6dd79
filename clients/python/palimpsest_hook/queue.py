"""The queue on disk: one file for each turn, until the service has acked it."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Turns that may wait, and their bytes.
MAX_WAITING = 10_000
MAX_WAITING_BYTES = 256 * 1024 * 1024


class QueueFull(Exception):
    """No more turns may wait."""


class Entry(NamedTuple):
    """A turn that waits."""

    session: str
    thread: str
    source: str
    role: str
    text: str
    request_id: str
    #: When it was said, in seconds since 1970.
    said_at: float
    #: Instead of role and text: messages as OpenAI's clients have them.
    messages: Sequence[Mapping[str, Any]] = ()


class Queue:
    """A folder that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        """The folder is made by the first turn."""
        self._folder = folder
        self._waiting = folder / "waiting"
        self._refused = folder / "refused"

    def add(self, entry: Entry) -> None:
        """Writes a turn: it survives a crash of the machine when this returns.

        Raises QueueFull and OSError.
        """
        self._waiting.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes = [file.stat().st_size for file in os.scandir(self._waiting)]
        if len(sizes) >= MAX_WAITING or sum(sizes) >= MAX_WAITING_BYTES:
            raise QueueFull(
                f"{len(sizes)} turns wait in {self._waiting}: start the service, or look with"
                " `palimpsest-hook status` why it takes none"
            )
        name = f"{time.time_ns():020}-{entry.request_id}.json"
        new = self._waiting / f"{name}.new"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(entry._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._waiting / name)
        _sync_folder(self._waiting)

    def waiting(self) -> list[Path]:
        """Returns the turns that wait, oldest first."""
        return sorted(self._waiting.glob("*.json"))

    def refused(self) -> list[Path]:
        """Returns the turns that the service refused for good."""
        return sorted(self._refused.glob("*.json"))

    def read(self, path: Path) -> Entry:
        """Reads a turn. Raises OSError, and ValueError when it is none."""
        try:
            return Entry(**json.loads(path.read_bytes()))
        except TypeError as error:
            raise ValueError("the file is not a turn") from error

    def done(self, path: Path) -> None:
        """Removes a turn that is stored."""
        path.unlink(missing_ok=True)

    def refuse(self, path: Path, why: str) -> None:
        """Keeps a turn apart that the service will never take, with the reason."""
        self._refused.mkdir(mode=0o700, exist_ok=True)
        reason = self._refused / f"{path.name}.reason"
        reason.write_text(f"{why}\n")
        path.rename(self._refused / path.name)

    def retry_refused(self) -> int:
        """Lets all refused turns wait again, and returns how many there are."""
        paths = self.refused()
        for path in paths:
            path.rename(self._waiting / path.name)
            (self._refused / f"{path.name}.reason").unlink(missing_ok=True)
        return len(paths)

    def reason(self, path: Path) -> str:
        """Returns why a turn was refused."""
        try:
            return (path.parent / f"{path.name}.reason").read_text().strip()
        except OSError:
            return "unknown"

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[bool]:
        """Yields whether this process may deliver: only one may. With `wait` it may next."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
