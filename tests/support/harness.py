"""Real servers for tests and benchmarks: PostgreSQL, Valkey, and our own processes."""

import hmac
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from typing import NoReturn
from unittest import mock
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import migrations
from service.local import postgres as embedded
from service.local.postgres import PostgresServer
from service.local.valkey import ValkeyServer
from storage.engine.connections import sqlalchemy_url
from storage.search import setup
from tests.support import forking

#: How long one of our processes may take until it is ready, in seconds. Importing
#: litellm takes four, and several times that on a busy machine.
READY_SECONDS = 180.0
#: Where Linux keeps files in memory, and how much must be free there for the servers of all
#: processes of a run: their logs take a gigabyte each.
MEMORY_FOLDER = "/dev/shm"
MEMORY_BYTES = 8 << 30
#: How long one may take to stop: it drains for as long as 30 seconds.
STOP_SECONDS = 120.0


class Servers:
    """A PostgreSQL and a Valkey server, and databases made from one migrated template."""

    def __init__(
        self, postgres: PostgresServer, valkey: ValkeyServer, *, fsync: bool = True
    ) -> None:
        self.postgres = postgres
        self.valkey = valkey
        # Without a disk to wait for, files are copied in a third of the time that it takes to
        # write each page into the log as well; with one, that would wait for two checkpoints.
        self._strategy = "wal_log" if fsync else "file_copy"
        migrations.upgrade(sqlalchemy_url(postgres.url))
        setup.install_extensions(postgres.superuser_url)
        setup.install(postgres.url)
        if not fsync:
            connect_cheaply(postgres)
        self._template = conninfo_to_dict(postgres.url)["dbname"]
        self._made: set[str] = set()

    @classmethod
    @contextmanager
    def started(cls, *, fsync: bool = True) -> Iterator["Servers"]:
        """Servers in a temporary folder, stopped at the end.

        `fsync`: whether a commit waits for the disk. Without, it still outlives its server.
        """
        where = None if fsync else memory_folder()
        with (
            tempfile.TemporaryDirectory(prefix="palimpsest-test-", dir=where) as name,
            ExitStack() as stack,
        ):
            # The server may run as another user, who must be able to get there.
            Path(name).chmod(0o755)
            with mock.patch.dict(embedded._SETTINGS, {"fsync": "on" if fsync else "off"}):
                postgres = stack.enter_context(PostgresServer(Path(name) / "postgres"))
            valkey = stack.enter_context(ValkeyServer(Path(name) / "valkey"))
            try:
                yield cls(postgres, valkey, fsync=fsync)
            finally:
                # Its folder goes. To write the database of each test down first takes
                # longer than all the tests of a file, and looks as if the last one hung.
                if postgres._process is not None:
                    postgres._process.send_signal(signal.SIGQUIT)

    def new_database(self, *, kept: bool = False) -> str:
        """Returns a migrated database of its own; its URL for our processes.

        `kept`: until the servers stop, and not only until `drop_databases`.
        """
        name = f"test_{uuid4().hex}"
        with psycopg.connect(self.postgres.superuser_url, autocommit=True) as connection:
            made = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER palimpsest STRATEGY {}")
            connection.execute(
                made.format(
                    sql.Identifier(name),
                    sql.Identifier(str(self._template)),
                    sql.Identifier(self._strategy),
                )
            )
        if not kept:
            self._made.add(name)
        return with_database(self.postgres.url, name)

    def drop_databases(self, *urls: str) -> None:
        """Drops these, or all but the kept ones: together they do not fit on every disk."""
        names = {str(conninfo_to_dict(url)["dbname"]) for url in urls} or {*self._made}
        with psycopg.connect(self.postgres.superuser_url, autocommit=True) as connection:
            for name in names:
                connection.execute(
                    sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
                )
        self._made -= names

    def redis_settings(self) -> dict[str, str]:
        """Returns what makes our processes use Valkey, however busy the machine is."""
        return {
            "PALIMPSEST_REDIS_URL": self.valkey.url,
            "PALIMPSEST_REDIS_TIMEOUT_SECONDS": "60",
        }

    def as_superuser(self, url: str) -> str:
        """Returns the URL of the same database for the superuser."""
        return with_database(self.postgres.superuser_url, str(conninfo_to_dict(url)["dbname"]))


def connect_cheaply(server: PostgresServer) -> None:
    """Stores the roles' passwords such that they are hashed once to connect, and not 4,096 times.

    That is three quarters of the time that a connection takes, and most tests make several. The
    secrets are those of RFC 5803, as PostgreSQL keeps them.
    """
    with psycopg.connect(server.superuser_url, autocommit=True) as connection:
        for url in (server.superuser_url, server.url):
            role = conninfo_to_dict(url)
            salt = os.urandom(16)
            salted = pbkdf2_hmac("sha256", str(role["password"]).encode(), salt, 1)
            stored = sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
            of_server = hmac.digest(salted, b"Server Key", "sha256")
            parts = (b64encode(part).decode() for part in (salt, stored, of_server))
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                    sql.Identifier(str(role["user"])),
                    sql.Literal("SCRAM-SHA-256$1:{}${}:{}".format(*parts)),
                )
            )


def memory_folder() -> str | None:
    """Returns a folder in memory for servers that need not wait for a disk; None without room.

    Each test has a database of 400 files. To make and remove them takes a disk's file system
    several times as long, all of it time of the kernel.
    """
    try:
        room = shutil.disk_usage(MEMORY_FOLDER).free
    except FileNotFoundError:
        return None
    is_ours = os.access(MEMORY_FOLDER, os.W_OK | os.X_OK)
    return MEMORY_FOLDER if is_ours and room >= MEMORY_BYTES else None


def with_database(url: str, name: str) -> str:
    """`url`, but of the database `name`."""
    head, _, _ = url.rpartition("/")
    assert make_conninfo(url), "a URL that libpq understands"
    return f"{head}/{name}"


def absent(what: str) -> NoReturn:
    """Skips a test for want of what `make setup-ci` installs; in CI it fails."""
    missing = f"{what} is not installed; `make setup-ci` does it on Debian"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


class Process:
    """One of our processes, started for real and killed for real.

    `folder`: where another release of ours is, in place of this one. `forks`: whether a run of
    the tests may fork it; a forked process has the command line and the first environment of
    the one that it comes of.
    """

    def __init__(
        self,
        command: str,
        environment: dict[str, str],
        ready: str,
        *,
        folder: Path | None = None,
        forks: bool = True,
    ) -> None:
        # Read by its name: a descriptor that both had would have one place for reading and
        # for writing, and what is written meanwhile would be in the wrong place.
        self._log = tempfile.NamedTemporaryFile("w")  # noqa: SIM115 - closed in close()
        arguments, env = command.split(), {**os.environ, **environment}
        self._popen: subprocess.Popen[str] | forking.Forked
        if forks and folder is None and forking.is_enabled():
            self._popen = forking.forker().start(arguments, env, self._log.fileno())
        else:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "service.cli", *arguments],
                env=env,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        self.ready_line = self._wait_for(ready)

    def _wait_for(self, ready: str) -> str:
        assert self._popen.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, self._popen.kill)
        watchdog.start()
        try:
            for line in self._popen.stdout:
                if line.startswith(ready):
                    return line.strip()
        finally:
            watchdog.cancel()
        self._popen.wait()
        raise RuntimeError(f"{self._popen.args!r} did not get ready:\n{self.log()}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def log(self) -> str:
        """Returns what it wrote to standard error so far."""
        return Path(self._log.name).read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: it gets no chance to tidy up."""
        self._popen.kill()
        self._popen.wait()

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        self._popen.terminate()
        try:
            return self._popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self, seconds: float) -> int:
        """Waits for it to end by itself; the exit code."""
        return self._popen.wait(seconds)

    def is_running(self) -> bool:
        """Returns whether it lives."""
        return self._popen.poll() is None

    def close(self) -> None:
        """Ends it, whatever it does, and forgets its log."""
        if self.is_running():
            self.kill()
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        self._log.close()


@contextmanager
def api(url: str, **environment: str) -> Iterator[tuple[Process, str]]:
    """Yields an API server on the database at `url`, and its address.

    Sessions get no default memory, unless the environment says so.
    """
    process = Process(
        "serve",
        {
            "PALIMPSEST_DATABASE_URL": url,
            "PALIMPSEST_LISTEN": "127.0.0.1:0",
            "PALIMPSEST_DEFAULT_MEMORY": "none",
            **environment,
        },
        "listening on",
    )
    try:
        yield process, process.ready_line.removeprefix("listening on ")
    finally:
        process.close()


@contextmanager
def worker(url: str, **environment: str) -> Iterator[Process]:
    """Yields a worker on the database at `url`."""
    process = Process("work", {"PALIMPSEST_DATABASE_URL": url, **environment}, "working")
    try:
        yield process
    finally:
        process.close()


#: How long `eventually` waits for what has to come: this only ends what hangs.
EVENTUALLY_SECONDS = 150.0


def eventually(what: str, look: "object", seconds: float = EVENTUALLY_SECONDS) -> None:
    """Waits until `look()` is true; fails with `what` when it does not become so."""
    assert callable(look)
    until = time.monotonic() + seconds
    while not look():
        if time.monotonic() > until:
            raise AssertionError(f"did not happen within {seconds} s: {what}")
        time.sleep(0.05)
