"""An embedded PostgreSQL server."""

import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psycopg
from psycopg import sql

from service.embedded import binaries, processes
from service.embedded.processes import ServerError, ServerUser

#: Crash recovery replays what was not checkpointed, up to max_wal_size and more.
READY_SECONDS = 120.0
#: A fast shutdown writes a checkpoint.
STOP_SECONDS = 60.0
#: How long it is tried to start a server that ends at once for a passing reason.
LAUNCH_SECONDS = 15.0
_PASSING = ("Address already in use", "still in use", "could not bind")
#: The login role and the database that everything of ours lives in.
NAME = "palimpsest"

#: Durability is not negotiable; the sizes suit a machine that does other things too.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_wal_size": "1GB",
    "password_encryption": "scram-sha-256",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
}


class PostgresServer:
    """A PostgreSQL server with its data below `folder`.

    `start` finds the data again, however the last run ended. Raises ServerError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cluster = folder / "data"
        self._log = folder / "postgres.log"
        self._user = ServerUser.current()
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()
        self._programs = Path()
        self._password = ""
        self._login_password = ""

    @property
    def url(self) -> str:
        """postgresql:// URL of our database for our login role, no superuser."""
        return self._url(NAME, self._login_password, NAME)

    @property
    def superuser_url(self) -> str:
        """postgresql:// URL of our database for the superuser."""
        return self._url("postgres", self._password, NAME)

    @property
    def version(self) -> int:
        """Major version."""
        return binaries.major_version(self._programs)

    def _url(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        """Starts the server, on a fresh folder or one with data."""
        processes.make_folder(self._folder, self._user)
        self._held.enter_context(processes.owner_lock(self._folder))
        try:
            self._programs = binaries.reachable(
                binaries.find_postgres(), self._folder / "programs", self._user
            )
            self._password = processes.secret(self._folder / "superuser.password")
            self._login_password = processes.secret(self._folder / "login.password")
            processes.end_leftovers(self._cluster)
            if not self._cluster.exists():
                self._make_cluster()
            self._launch()
            self._make_database()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the server: fast and clean, and hard if that takes too long."""
        if self._process is not None:
            processes.stop(self._process, ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0)))
            self._process = None
        self._held.close()

    def is_running(self) -> bool:
        """Whether the server lives."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Starts a server that died again, on the same port. From the main thread."""
        processes.end_leftovers(self._cluster)
        self._launch(keep_port=True)

    def __enter__(self) -> "PostgresServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _make_cluster(self) -> None:
        """Makes the cluster elsewhere and moves it in place: there is no half of one."""
        part = self._folder / "data.part"
        shutil.rmtree(part, ignore_errors=True)
        password = self._folder / "initdb.password"
        processes.write_private(password, self._password + "\n")
        self._user.own(password)
        newer = binaries.major_version(self._programs) >= 17
        locale = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
            if newer
            else ["--locale=C"]
        )
        try:
            processes.run_as(
                [
                    str(self._programs / "initdb"),
                    f"--pgdata={part}",
                    "--username=postgres",
                    f"--pwfile={password}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--data-checksums",
                    "--no-instructions",
                    *locale,
                ],
                user=self._user,
                folder=self._folder,
            )
        finally:
            password.unlink()
        part.rename(self._cluster)

    def _launch(self, *, keep_port: bool = False) -> None:
        until = time.monotonic() + LAUNCH_SECONDS
        while True:
            self._port = self._port or processes.free_port()
            try:
                self._launch_once()
            except ServerError as error:
                # A backend of a server that was killed is still on its way out, or
                # somebody took the port between our look and the server's.
                passing = any(reason in str(error) for reason in _PASSING)
                if not passing or time.monotonic() > until:
                    raise
                if not keep_port:
                    self._port = 0
                time.sleep(0.1)
            else:
                return

    def _launch_once(self) -> None:
        # Nobody works in the folder, so whatever the file says is old.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)
        settings = {**_SETTINGS, "port": str(self._port)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._log.touch()
        before = self._log.stat().st_size
        self._process = processes.spawn(
            [str(self._programs / "postgres"), "-D", str(self._cluster), *options],
            user=self._user,
            folder=self._cluster,
            log=self._log,
            death_signal=signal.SIGQUIT,
        )
        processes.wait_until(self._is_ready, self._process, READY_SECONDS, self._log, before)

    def _is_ready(self) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _make_database(self) -> None:
        with psycopg.connect(
            self._url("postgres", self._password, "postgres"), autocommit=True
        ) as connection:
            known = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (NAME,))
            if known.fetchone() is None:
                connection.execute(
                    sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}").format(
                        sql.Identifier(NAME), sql.Literal(self._login_password)
                    )
                )
            known = connection.execute("SELECT FROM pg_database WHERE datname = %s", (NAME,))
            if known.fetchone() is None:
                connection.execute(
                    sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(NAME))
                )
