"""PostgreSQL with a streaming replica, for failovers: the primary dies, the replica takes over."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

import migrations
from service.local import processes
from service.local.postgres import NAME, PostgresServer
from service.local.processes import ServerUser, free_port
from storage.engine.connections import sqlalchemy_url
from tests.support.embedded import working_in
from tests.support.harness import eventually
from verification.chaos.proxy import Proxy

#: As an operator sets them for a pair whose acks survive the loss of one of the two.
SYNCHRONOUS = "ANY 1 (*)"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "wal_receiver_status_interval": "1",
    "log_min_messages": "warning",
}


class Node:
    """One of the two servers, whichever part it plays."""

    def __init__(self, folder: Path, programs: Path, password: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self._programs = programs
        self._password = password
        self._user = ServerUser.current()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def superuser_url(self) -> str:
        """URL of our database for the superuser."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{NAME}"

    def start(self) -> None:
        """Starts it on its data, and waits until it takes connections. From the main thread."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with (self.folder / "node.log").open("ab") as log:
            settings = {**_SETTINGS, "port": str(self.port)}
            self._process = processes.spawn(
                [
                    str(self._programs / "postgres"),
                    *("-D", str(self.data)),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                user=self._user,
                folder=self.data,
                output=log.fileno(),
                death_signal=signal.SIGQUIT,
            )
        eventually("the server takes connections", self._answers)

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            return bool(self.ask("SELECT true"))
        assert self._process is not None, "it was started"
        assert self._process.poll() is None, (self.folder / "node.log").read_text()[-2000:]
        return False

    def ask(self, query: str) -> Any:
        """Returns the one value of a query, as superuser. Raises psycopg.Error."""
        with psycopg.connect(self.superuser_url, autocommit=True, connect_timeout=10) as one:
            row = one.execute(query.encode()).fetchone()
            assert row is not None
            return row[0]

    def tell(self, *statements: str) -> None:
        """Runs statements, each by itself, as superuser. Raises psycopg.Error."""
        with psycopg.connect(self.superuser_url, autocommit=True, connect_timeout=10) as one:
            for statement in statements:
                one.execute(statement.encode())

    def kill(self) -> None:
        """SIGKILL to all of its processes: it gets no chance to send what it has not sent."""
        assert self._process is not None, "it was started"
        # Before the end of the first one ends the others; none can start meanwhile.
        self._process.send_signal(signal.SIGSTOP)
        for pid in working_in(self.data):
            # It may have ended by itself.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Ends it, if it runs."""
        if self._process is not None:
            processes.stop(self._process, ((signal.SIGQUIT, 30.0),))
            self._process = None

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of PostgreSQL's programs to its end, as the server's user."""
        path = str(self._programs / program)
        processes.run_as([path, *arguments], user=self._user, folder=self.folder)

    def own(self, path: Path) -> None:
        """Gives a folder to the server's user."""
        if self._user.other:
            os.chown(path, self._user.uid, self._user.gid)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedOver:
    """Moments of a failover, monotonic."""

    #: When the old primary was gone, and when the new one took writes.
    killed: float
    promoted: float


class Pair:
    """A primary and its replica, and what an operator's tools do to them."""

    def __init__(self, primary: Node, replica: Node, login_password: str) -> None:
        self.primary = primary
        self.replica = replica
        self._login_password = login_password
        #: As the service gets them: the order stays the same, whichever is the primary.
        self.hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator["Pair"]:
        """Yields a migrated database on a primary, followed by a replica; stopped at the end."""
        with PostgresServer(folder / "a") as made:
            migrations.upgrade(sqlalchemy_url(made.url))
            programs, login = made._programs, (folder / "a" / "login.password").read_text()
        secret = (folder / "a" / "superuser.password").read_text().strip()
        (folder / "b").mkdir(mode=0o711)
        first, second = (Node(folder / name, programs, secret) for name in ("a", "b"))
        pair = cls(first, second, login.strip())
        try:
            first.start()
            pair.copy()
            yield pair
        finally:
            for node in (second, first):
                node.stop()

    @classmethod
    @contextmanager
    def in_a_folder(cls) -> Iterator["Pair"]:
        """Yields the same in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
            Path(name).chmod(0o755)
            with cls.started(Path(name)) as pair:
                yield pair

    @property
    def url(self) -> str:
        """URL of both for our processes."""
        return f"postgresql://{NAME}:{self._login_password}@{self.hosts}/{NAME}"

    def url_at(self, port: int) -> str:
        """URL for our processes of what answers at one port."""
        return f"postgresql://{NAME}:{self._login_password}@127.0.0.1:{port}/{NAME}"

    def copy(self) -> None:
        """Makes the replica anew from the primary, and starts it, while commits continue."""
        primary, replica = self.primary, self.replica
        if replica.data.exists():
            shutil.rmtree(replica.data)
        replica.data.mkdir(mode=0o700)
        replica.own(replica.data)
        replica.run(
            "pg_basebackup",
            f"--dbname={primary.superuser_url.rpartition('/')[0]}/postgres",
            f"--pgdata={replica.data}",
            "--checkpoint=fast",
            "--write-recovery-conf",
            "--wal-method=stream",
        )
        # A primary without a replica does not wait for one.
        with (replica.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        replica.start()
        eventually("the replica follows", lambda: self._replicas() == ["async"])

    def _replicas(self) -> list[str]:
        with psycopg.connect(self.primary.superuser_url, autocommit=True) as one:
            found = one.execute(
                "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
            )
            return [state for (state,) in found]

    def be_synchronous(self) -> None:
        """Makes the primary ack only what the replica has, from now on."""
        self.primary.tell(
            f"ALTER SYSTEM SET synchronous_standby_names = '{SYNCHRONOUS}'",
            "SELECT pg_reload_conf()",
        )
        eventually("it is synchronous", lambda: self._replicas() == ["quorum"])

    def be_asynchronous(self) -> None:
        """Makes the primary ack what only it has, from now on."""
        self.primary.tell(
            "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()"
        )

    def fail_over(self, *, behind: bool = False) -> FailedOver:
        """Kills the primary and promotes the replica; one `behind` runs only from then on."""
        self.primary.kill()
        killed = time.monotonic()
        if behind:
            self.replica.start()
        self.promote()
        return FailedOver(killed=killed, promoted=time.monotonic())

    def promote(self) -> None:
        """Makes the replica the primary, and abandons the old one."""
        # Not by a query: its snapshot would hold up what is still to be replayed, until the replica
        # cancels it.
        self.replica.run("pg_ctl", "promote", f"--pgdata={self.replica.data}", "--wait")
        self.primary, self.replica = self.replica, self.primary

    def await_caught_up(self) -> None:
        """Waits until the replica has all that the primary has."""
        end = self.primary.ask("SELECT pg_current_wal_lsn()::text")
        query = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        eventually("the replica has all", lambda: bool(self.replica.ask(query)))

    def commits_waiting(self) -> int:
        """Returns how many commits of the primary wait for the replica."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return int(self.primary.ask(query))

    def demote(self) -> None:
        """Lets the primary live on, and take no writes: as tools do before they switch over."""
        self.primary.tell(
            "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
        )

    def take_writes(self) -> None:
        """Lets the primary take writes again."""
        self.primary.tell(
            "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"
        )

    def be_standby(self) -> None:
        """Starts the primary again as a standby, which takes no writes until it is promoted.

        It keeps its address and what it has, and no other server takes writes meanwhile.
        """
        self.await_caught_up()
        self.primary.stop()
        (self.primary.data / "standby.signal").touch()
        self.primary.own(self.primary.data / "standby.signal")
        self.primary.start()


class Door:
    """An address that leads to one server and later to another, as a name does that moves."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxy = Proxy(0)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._run(self._proxy.open("postgres", 0, port))

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    def lead(self, port: int) -> None:
        """Lets new connections lead to another port; those there are stay where they are."""
        self._loop.call_soon_threadsafe(self._proxy.lead, "postgres", port)

    def close(self) -> None:
        """Cuts all that goes through it."""
        self._run(self._proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
