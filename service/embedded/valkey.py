"""An embedded Valkey (or Redis) server, for the prefix cache's index."""

import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from service.embedded import binaries, processes
from service.embedded.processes import ServerUser

READY_SECONDS = 20.0
STOP_SECONDS = 10.0
#: The index is advice; what does not fit is forgotten, the oldest first.
MAX_MEMORY = "256mb"


class ValkeyServer:
    """A Valkey server in memory. `start` raises ServerError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "valkey.log"
        self._user = ServerUser.current()
        self._port = 0
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()

    @property
    def url(self) -> str:
        """redis:// URL, with the password."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Starts the server, empty."""
        processes.make_folder(self._folder, self._user)
        self._held.enter_context(processes.owner_lock(self._folder))
        try:
            self._password = processes.secret(self._folder / "valkey.password")
            processes.end_leftovers(self._folder)
            self._launch()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Starts a server that died again, on the same port."""
        self._launch()

    def stop(self) -> None:
        """Stops the server."""
        if self._process is not None:
            processes.stop(self._process, ((signal.SIGTERM, STOP_SECONDS),))
            self._process = None
        self._held.close()

    def kill(self) -> None:
        """SIGKILL, for tests of what comes after."""
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        """Whether the server lives."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> "ValkeyServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self) -> None:
        self._port = self._port or processes.free_port()
        program = binaries.find_valkey().resolve()
        user = self._user
        if not user.can_reach(program.parent):
            # It is a plain network server and may run as we do; PostgreSQL may not.
            user = ServerUser(uid=user.uid, gid=user.gid, other=False)
        config = self._folder / "valkey.conf"
        lines = (
            "bind 127.0.0.1",
            f"port {self._port}",
            "protected-mode yes",
            f"requirepass {self._password}",
            'save ""',
            "appendonly no",
            f"maxmemory {MAX_MEMORY}",
            "maxmemory-policy allkeys-lru",
            f'dir "{self._folder}"',
        )
        processes.write_private(config, "\n".join(lines) + "\n")
        user.own(config)
        self._process = processes.spawn(
            [str(program), str(config)],
            user=user,
            folder=self._folder,
            log=self._log,
            death_signal=signal.SIGKILL,
        )
        processes.wait_until(self._is_ready, self._process, READY_SECONDS, self._log)

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                reply = b""
                while reply.count(b"\r\n") < 2:
                    part = connection.recv(256)
                    if not part:
                        return False
                    reply += part
        except OSError:
            return False
        return reply == b"+OK\r\n+PONG\r\n"
