"""An embedded PostgreSQL server."""

import os
import signal
from itertools import pairwise
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from service.local import binaries, disk, leftovers, processes
from service.local.folder import read_servers
from service.local.leftovers import arguments_of, program_of
from service.local.processes import ServerError, deferred
from service.local.server import EmbeddedServer

#: Crash recovery replays what was not checkpointed, up to max_wal_size and more.
READY_SECONDS = 120.0
#: A fast shutdown writes a checkpoint.
STOP_SECONDS = 60.0
#: A server that is ready answers at once; this is for a machine that does not.
CONNECT_SECONDS = 30
_CLUSTER = "data"
_PART = "data.part"
_INITDB_PASSWORD = "initdb.password"
_PID_FILE = "postmaster.pid"
#: The first libpq that can insist on how a password is asked for.
_REQUIRES_AUTH = 160_000
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
    # A segment that is used again has its old content until it is written over: what was erased
    # would stay there for long.
    "wal_recycle": "off",
    "password_encryption": "scram-sha-256",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    # What goes wrong is logged, but neither statements nor the rows and values in details:
    # they are texts of users.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_parameter_max_length_on_error": "0",
    "log_parameter_max_length": "0",
    "log_min_duration_statement": "-1",
    "log_min_duration_sample": "-1",
    "log_transaction_sample_rate": "0",
    "log_statement": "none",
    "log_duration": "off",
}


def url_of(user: str, password: str, port: int | str, database: str) -> str:
    """Returns the postgresql:// URL of a server of ours.

    While it is down, another process may listen at its port and ask for the password. Where
    libpq can, it insists on SCRAM, which never sends it.
    """
    only = "?require_auth=scram-sha-256" if psycopg.pq.version() >= _REQUIRES_AUTH else ""
    return f"postgresql://{user}:{password}@127.0.0.1:{port}/{database}{only}"


class PostgresServer(EmbeddedServer):
    """A PostgreSQL server with its data below `folder`.

    `start` finds the data again, however the last run ended.
    """

    name = "PostgreSQL"
    log_name = "postgres.log"
    # A backend of a server that was killed is still on its way out, or the port was taken
    # between our look and the server's.
    passing = ("Address already in use", "still in use", "could not bind")
    stop_signals = ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster = self._folder / _CLUSTER
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

    def _url(self, user: str, password: str, database: str) -> str:
        return url_of(user, password, self._port, database)

    def start(self) -> None:
        """Starts the server, with our login role and our database."""
        super().start()
        try:
            self._make_database()
        except psycopg.Error as error:
            self.stop()
            reason = " ".join(str(error).split())
            raise ServerError(f"cannot prepare the database: {reason}") from error
        except BaseException:
            self.stop()
            raise

    def _prepare(self) -> None:
        self._programs = binaries.reachable_postgres(
            binaries.find_postgres(), self._home, self._user
        )
        self._password = self._home.secret("superuser.password")
        self._login_password = self._home.secret("login.password")
        if not self._has_cluster():
            self._make_cluster()

    def _end_leftovers(self) -> None:
        leftovers.end_leftovers(("postgres", "initdb"), self._is_ours, signal.SIGQUIT)

    def _is_ours(self, one: psutil.Process) -> bool:
        """Returns whether a process with the name of one of PostgreSQL's programs uses our data."""
        ours = {os.path.realpath(self._cluster), os.path.realpath(self._folder / _PART)}
        if one.uids().effective != self._user.uid:
            return False
        arguments = arguments_of(one)
        if program_of(one) == "initdb":
            return f"--pgdata={self._folder / _PART}" in arguments
        named = dict(pairwise(arguments)).get("-D", "")
        if os.path.isabs(named) and os.path.isdir(named):
            # It is about to go there, wherever it was started.
            return os.path.realpath(named) in ours
        return one.cwd() in ours

    def _has_cluster(self) -> bool:
        """Returns whether there is data. Raises ServerError for anything else in its place."""
        if not os.path.lexists(self._cluster):
            return False
        if not self._cluster.is_dir():
            # Making data anew would hide what is only out of sight for now.
            reason = "leads nowhere; is its disk there?" if self._cluster.is_symlink() else ""
            raise ServerError(f"{self._cluster} {reason or 'is no folder'}")
        if read_servers(self._cluster / "PG_VERSION"):
            return True
        if any(self._cluster.iterdir()):
            raise ServerError(f"{self._cluster} holds something else than PostgreSQL's data")
        return False

    def _make_cluster(self) -> None:
        """Makes the cluster elsewhere and moves it in place: there is no half of one."""
        self._home.make_servers(_PART)
        self._home.write(_INITDB_PASSWORD, self._password + "\n", for_server=True)
        newer = binaries.major_version(self._programs, self._user) >= 17
        locale = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
            if newer
            else ["--locale=C"]
        )
        try:
            processes.run_as(
                [
                    str(self._programs / "initdb"),
                    f"--pgdata={self._folder / _PART}",
                    "--username=postgres",
                    f"--pwfile={self._folder / _INITDB_PASSWORD}",
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
            self._home.remove(_INITDB_PASSWORD)
        self._home.rename(_PART, _CLUSTER)

    def _launch_once(self, log_begin: int) -> None:
        pid_file = self._cluster / _PID_FILE
        # No server works there, so whatever the file says is old.
        pid_file.unlink(missing_ok=True)
        settings = {**_SETTINGS, "port": str(self._port)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        # An exception in between would leave a server without an owner.
        with deferred():
            process = self._process = processes.spawn(
                [str(self._programs / "postgres"), "-D", str(self._cluster), *options],
                user=self._user,
                folder=self._cluster,
                output=self._log.handle,
                death_signal=signal.SIGQUIT,
            )

        def is_ready() -> bool:
            lines = [line.strip() for line in read_servers(pid_file).splitlines()]
            return lines[:1] == [str(process.pid)] and lines[7:8] == ["ready"]

        processes.wait_until(is_ready, process, READY_SECONDS, self._log, log_begin)

    def _launch(self, *, keep_port: bool = False) -> None:
        try:
            super()._launch(keep_port=keep_port)
        except ServerError:
            self._explain()
            raise

    def _explain(self) -> None:
        """Raises ServerError when it fails for a reason better than its log's words."""
        if said := disk.complaint(self._cluster):
            raise ServerError(said)
        theirs = read_servers(self._cluster / "PG_VERSION").strip()
        ours = str(binaries.major_version(self._programs, self._user))
        if theirs != ours:
            raise ServerError(
                f"the data in {self._cluster} is of PostgreSQL {theirs}, and these programs are"
                f" of {ours}; name those of {theirs} with {binaries.PG_BIN_DIR}"
            )

    def _make_database(self) -> None:
        with psycopg.connect(
            self._url("postgres", self._password, "postgres"),
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
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
