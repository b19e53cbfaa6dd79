"""Everything on one machine: servers, migrations, API and workers, kept running."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from service.local import disk, listening_ports, processes, running
from service.local.folder import OwnFolder, in_one_line, lock_folder, make_folders
from service.local.postgres import PostgresServer
from service.local.processes import NOBODY, ServerError, ServerLog, ServerUser, deferred
from service.local.valkey import ValkeyServer
from service.settings import listening
from service.settings.config import Config
from storage.search.setup import install_extensions

#: How long a process of ours may take until it is ready: importing the model
#: library takes seconds, and many of them the first time on a busy machine.
READY_SECONDS = 120.0
#: How long a process of ours may take to stop, beyond the time that it gives its own work.
STOP_SECONDS = 10.0
#: Wait before a process that died is started again; doubles up to the second value.
RESTART_SECONDS = (0.5, 30.0)
#: Wait before a server that did not start is tried again.
SERVER_SECONDS = 1.0
#: How often the sizes of logs are checked.
LOG_SECONDS = 5.0
#: The erasure journal in the data folder, beside the database.
JOURNAL = "erasures.journal"
#: After this long without dying a process counts as healthy again.
HEALTHY_SECONDS = 60.0


class StackError(ServerError):
    """Something of the stack cannot be started; the message is one clear line."""


class _Child:
    """One of our own processes, started again when it dies."""

    def __init__(self, name: str, command: list[str], ready: str, log_name: str) -> None:
        self.name = name
        self._command = command
        self._ready = ready
        self._log_name = log_name
        self._log: ServerLog | None = None
        self._popen: subprocess.Popen[str] | None = None
        self._wait_seconds = RESTART_SECONDS[0]
        self._started = 0.0
        self._again = 0.0
        #: What it printed when it was ready, and before.
        self.ready_line = ""
        self._lines: list[str] = []

    def open_log(self, folder: OwnFolder, held: ExitStack) -> None:
        """Opens its log, which `held` closes."""
        self._log = folder.log(self._log_name)
        held.callback(self._log.close)

    def start(self, environment: dict[str, str], parent_fd: int) -> None:
        """Starts it without waiting."""
        assert self._log is not None, "it was opened"
        self._started = time.monotonic()
        # An exception in between would leave a process without an owner.
        with deferred():
            self._popen = subprocess.Popen(
                self._command,
                env=processes.environment({**environment, processes.PARENT_FD: str(parent_fd)}),
                pass_fds=(parent_fd,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log.handle,
                text=True,
                # Ctrl-C is for this process, which stops its children in order.
                start_new_session=True,
            )

    def rotate_log(self, max_bytes: int) -> None:
        """Rotates its log when it has `max_bytes` or more. Raises OSError."""
        assert self._log is not None, "it was opened"
        self._log.rotate(max_bytes)

    def wait_ready(self) -> None:
        """Waits until it says that it is ready. Raises StackError when it ends before."""
        assert self._popen is not None, "it was started"
        assert self._log is not None, "it was opened"
        assert self._popen.stdout is not None, "it is a pipe"
        watchdog = threading.Timer(READY_SECONDS, self._popen.kill)
        watchdog.start()
        try:
            self._lines = []
            for line in self._popen.stdout:
                self._lines.append(line.strip())
                if line.startswith(self._ready):
                    self.ready_line = line.strip()
                    return
        finally:
            watchdog.cancel()
        self._popen.wait()
        raise StackError(f"{self.name} did not start: {self._log.last_lines(1)}")

    def printed(self, first: str) -> str:
        """Returns what follows `first` in the line that it printed before it was ready, if any."""
        found = (one.removeprefix(first) for one in self._lines if one.startswith(first))
        return next(found, "")

    def is_running(self) -> bool:
        """Returns whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def due(self) -> bool:
        """Returns whether it has died and its wait before the next start is over."""
        if self.is_running():
            return False
        now = time.monotonic()
        if not self._again:
            if now - self._started > HEALTHY_SECONDS:
                self._wait_seconds = RESTART_SECONDS[0]
            self._again = now + self._wait_seconds
            self._wait_seconds = min(self._wait_seconds * 2, RESTART_SECONDS[1])
        if now < self._again:
            return False
        self._again = 0.0
        return True

    def ask_to_stop(self) -> None:
        """Sends SIGTERM."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.terminate()

    def wait_stopped(self, seconds: float) -> None:
        """Waits until it has ended, and kills it after `seconds`."""
        if self._popen is None:
            return
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


class Stack:
    """The service on one machine, with its data below `data_dir`.

    What `config` names by URL is used; what it does not name is embedded. Nothing
    outlives this process: on Linux the servers get a signal when it dies, and our own
    processes watch a pipe to it. They read the settings that this process has read, where it
    did; `settings` are variables of the environment that win over these. Use it from the main
    thread.
    """

    def __init__(
        self,
        data_dir: Path,
        config: Config,
        *,
        listen: str,
        workers: int = 1,
        on_event: Callable[[str], None] = lambda _: None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._config = config
        self._settings = dict(settings or {})
        self._listen = listen
        self._on_event = on_event
        self._held = ExitStack()
        self._postgres: PostgresServer | None = None
        self._valkey: ValkeyServer | None = None
        self._environment: dict[str, str] = {}
        #: URLs of the data, and of the prefix cache's index, once it is started.
        self.database_url = ""
        self.redis_url = ""
        self._parent_fd = -1
        #: Why a server that died does not start again, by its name.
        self._troubles: dict[str, str] = {}
        self._logs_due = 0.0
        python = [sys.executable, "-m", "service.cli"]
        self._api = _Child("the API", [*python, "serve"], "listening on ", "serve.log")
        self._workers = [
            _Child(f"worker {n}", [*python, "work"], "working", f"work-{n}.log")
            for n in range(1, workers + 1)
        ]

    @property
    def address(self) -> str:
        """HOST:PORT of the API."""
        return self._api.ready_line.removeprefix("listening on ")

    @property
    def url(self) -> str:
        """The API's URL over HTTP; empty: it has none."""
        return self._api.printed("over HTTP at ")

    @property
    def journal(self) -> Path:
        """The erasure journal of the deployment."""
        return self._config.erasure_journal or self.data_dir / JOURNAL

    def start(self) -> None:
        """Starts everything and waits until it is ready. Raises ServerError."""
        try:
            with in_one_line(self.data_dir):
                self._start()
        except BaseException as error:
            self.stop()
            if isinstance(error, ServerError) and disk.lacks_room(str(error)):
                raise StackError(f"{error}; {disk.ADVICE}") from error
            raise

    def _start(self) -> None:
        if (said := listening.metrics_refusal(self._config, 2 * len(self._workers))) is not None:
            raise StackError(said)
        # One that exists is left as it is.
        make_folders(self.data_dir, _data_dir_mode())
        self._held.enter_context(lock_folder(self.data_dir))
        if ServerUser.current().shared:
            self._on_event(
                f"PostgreSQL and Valkey run as {NOBODY}, as other services may, which could read"
                " the data then; make them a user of their own:"
                " useradd --system --no-create-home palimpsest"
            )
        over_http = listening.http_address(self._config, self._listen)
        said = listening_ports.refusal(self._config, self._listen, over_http, len(self._workers))
        if said is not None:
            raise StackError(said)
        logs = OwnFolder.make(self.data_dir / "logs", ServerUser.ourselves())
        for child in (self._api, *self._workers):
            child.open_log(logs, self._held)
        self.database_url = self._database_url()
        self.redis_url = self._redis_url()
        self._environment = {**self._settings, "PALIMPSEST_LISTEN": self._listen}
        self._environment["PALIMPSEST_HTTP_LISTEN"] = over_http or ""
        self._environment["PALIMPSEST_ERASURE_JOURNAL"] = str(self.journal.absolute())
        # Processes read configured URLs themselves: they may be in a file for a reason.
        if self._postgres is not None:
            self._environment["PALIMPSEST_DATABASE_URL"] = self.database_url
        if self._valkey is not None:
            self._environment["PALIMPSEST_REDIS_URL"] = self.redis_url
        self._on_event("migrating the database")
        if self._postgres is not None:
            # Our login role is no superuser, and some extensions need one.
            install_extensions(self._postgres.superuser_url)
        self._migrate()
        read_end, write_end = os.pipe()
        self._held.callback(os.close, write_end)
        self._held.callback(os.close, read_end)
        self._parent_fd = read_end
        self._on_event(f"starting the API and {len(self._workers)} worker(s)")
        for child in (self._api, *self._workers):
            self._start_child(child)
        for child in (self._api, *self._workers):
            child.wait_ready()
        self._tell()

    def _start_child(self, child: _Child) -> None:
        # The API, then each worker and the process that makes its calls.
        number = (self._api, *self._workers).index(child)
        ports = max(0, 2 * number - 1)
        metrics = listening.next_address(self._config.metrics_listen, ports) or ""
        own = {**self._environment, "PALIMPSEST_METRICS_LISTEN": metrics}
        child.start(own, self._parent_fd)

    def _tell(self) -> None:
        """Writes for other commands what runs here, until it is stopped."""
        overrides = {**self._settings, "PALIMPSEST_LISTEN": self.address}
        if self.url:
            overrides["PALIMPSEST_HTTP_LISTEN"] = self.url.partition("//")[2]
        place = None if self._valkey is None else self._valkey.place
        said = running.told(self.data_dir, self._config, overrides, redis_place=place)
        self._held.enter_context(said)

    def stop(self) -> None:
        """Stops workers, API, PostgreSQL and Valkey, in this order.

        Signals to stop wait meanwhile: a second Ctrl-C cuts nothing short.
        """
        with deferred():
            self._stop()

    def _stop(self) -> None:
        for group in (self._workers, [self._api]):
            for child in group:
                child.ask_to_stop()
            for child in group:
                child.wait_stopped(self._config.stop_seconds + STOP_SECONDS)
        for server in (self._postgres, self._valkey):
            if server is not None:
                server.stop()
        self._held.close()

    def supervise(self, stopped: Callable[[], bool]) -> None:
        """Keeps everything running until `stopped()`; what dies is started again."""
        while not stopped():
            self.look_after()
            time.sleep(0.1)

    def look_after(self) -> None:
        """Starts again what died and has waited long enough."""
        for name, server in (("PostgreSQL", self._postgres), ("Valkey", self._valkey)):
            if server is not None and not server.is_running():
                self._start_again(name, server)
        for child in (self._api, *self._workers):
            if child.due():
                self._on_event(f"{child.name} died; starting it again")
                # The port was picked once; clients know it.
                self._environment["PALIMPSEST_LISTEN"] = self.address or self._listen
                if self.url:
                    self._environment["PALIMPSEST_HTTP_LISTEN"] = self.url.partition("//")[2]
                self._start_child(child)
                threading.Thread(target=self._await_again, args=(child,), daemon=True).start()
        self._bound_logs()

    def _bound_logs(self) -> None:
        now = time.monotonic()
        if now < self._logs_due:
            return
        self._logs_due = now + LOG_SECONDS
        servers = [one for one in (self._postgres, self._valkey) if one is not None]
        try:
            for one in (*servers, self._api, *self._workers):
                one.rotate_log(self._config.log_file_bytes)
        except OSError as error:
            # Usually the disk is full. The servers continue, and the next look tries again.
            self._on_event(f"cannot put a log aside: {error.strerror}")

    def _start_again(self, name: str, server: PostgresServer | ValkeyServer) -> None:
        """Starts a server that died, or leaves it for the next look."""
        trouble = self._troubles.get(name, "")
        if not trouble:
            self._on_event(f"{name} died; starting it again")
        try:
            server.restart()
        except ServerError as error:
            # Perhaps the disk is full. It is reported once, not at each look.
            if str(error) != trouble:
                self._on_event(f"{name} does not start: {error}")
            self._troubles[name] = str(error)
            time.sleep(SERVER_SECONDS)
        else:
            self._troubles.pop(name, "")
            self._on_event(f"{name} runs again")

    def _await_again(self, child: _Child) -> None:
        try:
            child.wait_ready()
        except StackError as error:
            self._on_event(str(error))

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _database_url(self) -> str:
        if self._config.database_url is not None:
            return self._config.database_url.get_secret_value()
        self._postgres = PostgresServer(self.data_dir / "postgres")
        self._on_event("starting PostgreSQL")
        self._postgres.start()
        return self._postgres.url

    def _redis_url(self) -> str:
        if self._config.redis_url is not None:
            return self._config.redis_url.get_secret_value()
        self._valkey = ValkeyServer(self.data_dir / "valkey", by_socket=True)
        self._on_event("starting Valkey")
        self._valkey.start()
        return self._valkey.url

    def _migrate(self) -> None:
        process = None
        try:
            with deferred():
                process = subprocess.Popen(
                    [sys.executable, "-m", "service.cli", "migrate"],
                    env=processes.environment(self._environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            complaints = process.communicate()[1]
        finally:
            # Each migration is one transaction; what is cut short has not happened.
            if process is not None and process.returncode is None:
                process.kill()
                process.communicate()
        if process.returncode:
            lines = complaints.strip().splitlines() or ["no output"]
            raise StackError(lines[-1].removeprefix("error: "))


class TemporaryStack(Stack):
    """A stack whose data goes when it stops."""

    def __init__(
        self,
        config: Config,
        *,
        workers: int = 1,
        on_event: Callable[[str], None] = lambda _: None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))
        folder.chmod(_data_dir_mode())
        super().__init__(
            folder,
            config,
            listen="127.0.0.1:0",
            workers=workers,
            on_event=on_event,
            settings=settings,
        )

    def stop(self) -> None:
        """Stops everything and removes the data."""
        with deferred():
            super().stop()
            shutil.rmtree(self.data_dir, ignore_errors=True)


def _data_dir_mode() -> int:
    """Returns the mode of the data folder: closed to others.

    As root the servers' user may pass through to its own folder.
    """
    return 0o711 if ServerUser.current().other else 0o700
