"""An embedded Valkey (or Redis) server, for the prefix cache's index."""

import os
import signal
from pathlib import Path
from urllib.parse import quote

import psutil

from service.local import binaries, leftovers, processes
from service.local.leftovers import arguments_of
from service.local.processes import deferred
from service.local.server import EmbeddedServer

READY_SECONDS = 20.0
STOP_SECONDS = 10.0
#: The index is advice; what does not fit is forgotten, the oldest first.
MAX_MEMORY = "256mb"
_READY = "Ready to accept connections"
_SETTINGS = "valkey.conf"
_RUN = "run"
_SOCKET = f"{_RUN}/valkey.sock"
#: Bytes of a socket's path that the system takes.
MAX_SOCKET_BYTES = 107


def url_of(password: str, place: Path | int) -> str:
    """Returns the URL of a server that listens at a socket, or at a port of 127.0.0.1."""
    if isinstance(place, int):
        return f"redis://:{password}@127.0.0.1:{place}/0"
    return f"unix://:{password}@{quote(os.fsencode(place))}?db=0"


class ValkeyServer(EmbeddedServer):
    """A Valkey server in memory, empty at each start.

    With `by_socket` it listens at a socket in a folder of the servers' user, where no other
    process can take its place while it is down; at a port of 127.0.0.1 where that path is too long.
    """

    name = "Valkey"
    log_name = "valkey.log"
    # Another process took the port between our look and the server's.
    passing = ("Address already in use",)
    stop_signals = ((signal.SIGTERM, STOP_SECONDS),)

    def __init__(self, folder: Path, *, by_socket: bool = False) -> None:
        super().__init__(folder)
        path = self._folder / _SOCKET
        is_short = len(os.fsencode(path)) <= MAX_SOCKET_BYTES
        self._socket = path if by_socket and is_short else None
        self._password = ""

    @property
    def url(self) -> str:
        """redis:// or unix:// URL, with the password."""
        return url_of(self._password, self.place)

    @property
    def place(self) -> Path | int:
        """Where it listens, once it is started: a socket, or a port of 127.0.0.1."""
        return self._socket or self._port

    def _end_leftovers(self) -> None:
        found = binaries.find_valkey()
        names = {"valkey-server", "redis-server", found.name, found.resolve().name}
        leftovers.end_leftovers(names, self._is_ours, signal.SIGTERM)

    def _prepare(self) -> None:
        self._password = self._home.secret("valkey.password")
        self._program = binaries.reachable_valkey(binaries.find_valkey(), self._home, self._user)
        if self._socket is not None:
            self._home.make_servers(_RUN)

    def kill(self) -> None:
        """Kills the server, for tests of what follows."""
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def _is_ours(self, one: psutil.Process) -> bool:
        """Returns whether a process with the name of a server was started with our settings."""
        return (
            self._user.uid == one.uids().effective
            and os.path.realpath(self._folder) == one.cwd()
            and arguments_of(one)[-1:] == [str(self._folder / _SETTINGS)]
        )

    def _launch_once(self, log_begin: int) -> None:
        # The folder is where it works; no path is written, so any letters may be in it.
        by_port = ("bind 127.0.0.1", f"port {self._port}")
        by_socket = ("port 0", f"unixsocket {_SOCKET}", "unixsocketperm 700")
        lines = (
            *(by_port if self._socket is None else by_socket),
            "protected-mode yes",
            f"requirepass {self._password}",
            'save ""',
            "appendonly no",
            f"maxmemory {MAX_MEMORY}",
            "maxmemory-policy allkeys-lru",
            # Its arguments are what a leftover is known by.
            "set-proc-title no",
        )
        self._home.write(_SETTINGS, "\n".join(lines) + "\n", for_server=True)
        # An exception in between would leave a server without an owner.
        with deferred():
            self._process = processes.spawn(
                [str(self._program), str(self._folder / _SETTINGS)],
                user=self._user,
                folder=self._folder,
                output=self._log.handle,
                death_signal=signal.SIGKILL,
            )
        # Waits for its log line, not for a reply at the port: another process may listen
        # there, and would receive the password.
        processes.wait_until(
            lambda: _READY in self._log.text(log_begin),
            self._process,
            READY_SECONDS,
            self._log,
            log_begin,
        )
