"""What embedded servers have in common: their folder, their process, starting and stopping."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

from service.local import processes
from service.local.folder import OwnFolder, in_one_line, lock_folder
from service.local.processes import ServerError, ServerUser

#: How long to restart a server that ends at once for a temporary reason.
LAUNCH_SECONDS = 15.0


class EmbeddedServer(ABC):
    """A server with its files below `folder`. Its methods raise ServerError."""

    #: Its name, and the file of its log.
    name: ClassVar[str]
    log_name: ClassVar[str]
    #: Words of its log for temporary reasons not to start.
    passing: ClassVar[Sequence[str]]
    #: The signals that stop it, each with the seconds that it may take.
    stop_signals: ClassVar[Sequence[tuple[int, float]]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._user = ServerUser.current()
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()

    def start(self) -> None:
        """Starts the server, however its last run ended. From the main thread."""
        if self.is_running():
            raise ServerError(f"{self.name} is running already")
        try:
            self._home = OwnFolder.make(self._folder, self._user)
            self._held.enter_context(lock_folder(self._folder))
            with in_one_line(self._folder):
                self._log = self._home.log(self.log_name)
                self._held.callback(self._log.close)
                self._end_leftovers()
                self._prepare()
                self._launch()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Starts a server that died again, on the same port. From the main thread."""
        with in_one_line(self._folder):
            self._end_leftovers()
            self._launch(keep_port=True)

    def stop(self) -> None:
        """Stops the server: fast and clean, and hard if that takes too long."""
        if self._process is not None:
            processes.stop(self._process, self.stop_signals)
            self._process = None
        self._held.close()

    def is_running(self) -> bool:
        """Returns whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def rotate_log(self, max_bytes: int) -> None:
        """Rotates the log when it has `max_bytes` or more. Raises OSError."""
        self._log.rotate(max_bytes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _end_leftovers(self) -> None:
        """Ends servers of an earlier run that work on this folder."""

    @abstractmethod
    def _prepare(self) -> None:
        """Finds the programs, and makes what the server needs in its folder."""

    @abstractmethod
    def _launch_once(self, log_begin: int) -> None:
        """Starts the process, and waits until it is ready."""

    def _launch(self, *, keep_port: bool = False) -> None:
        until = time.monotonic() + LAUNCH_SECONDS
        while True:
            self._port = self._port or processes.free_port()
            before = self._log.size()
            try:
                self._launch_once(before)
            except ServerError:
                said = self._log.text(before)
                passes = any(reason in said for reason in self.passing)
                if not passes or time.monotonic() > until:
                    raise
                if not keep_port:
                    self._port = 0
                time.sleep(0.1)
            else:
                return
