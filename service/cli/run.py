"""`up`, the processes of production, and the commands that prepare their database."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import SecretStr

from service.cli.app import SettingsPath, new_app, run_app
from service.cli.output import CommandError, say, show
from service.llm.executor.spawning import near_model, spawn
from service.local.processes import STOP_SIGNALS
from service.settings import certificates, issuers, listening, reading
from service.settings.config import OFFLINE_MODEL, Config
from service.settings.reading import ProcessSettings

if TYPE_CHECKING:
    from storage.search.setup import Support

#: Problems of settings that a start reports.
MAX_PROBLEMS = 5


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(up)
    app.command()(serve)
    app.command()(work)
    app.command("executor")(executor)
    app.command()(migrate)
    app.command()(restore)


def main() -> None:
    """Runs the command of this module that was asked for."""
    app = new_app()
    register(app)
    run_app(app)


def read_config(**changes: Any) -> Config:
    """Returns the configuration of this process. Raises CommandError."""
    return read_settings(**changes)[0]


def read_settings(**changes: Any) -> tuple[Config, ProcessSettings]:
    """Returns the configuration of this process, and its origin. Raises CommandError."""
    given = {name: value for name, value in changes.items() if value is not None}
    found = reading.read(os.environ, given)
    if found.config is None:
        said = "; ".join(found.problems[:MAX_PROBLEMS])
        left = len(found.problems) - MAX_PROBLEMS
        more = f"; and {left} more: see `palimpsest config check`" if left > 0 else ""
        raise CommandError(said + more)
    return found.config, found


Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen where other machines reach it, without TLS or without authentication: all of"
        " them may do everything then (PALIMPSEST_INSECURE).",
    ),
]


MetricsListen = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of /metrics, /livez and /readyz (PALIMPSEST_METRICS_LISTEN)."),
]


def up(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where everything is kept. Default: your data folder.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the API.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    insecure: Insecure = False,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the API's /metrics, /livez and /readyz; each worker, and the"
            " process that makes its calls, has the next port (PALIMPSEST_METRICS_LISTEN)."
        ),
    ] = None,
    settings_path: SettingsPath = None,
) -> None:
    """Run everything on this machine until Ctrl-C.

    PostgreSQL and Valkey are embedded, unless PALIMPSEST_DATABASE_URL or
    PALIMPSEST_REDIS_URL name others. A second start finds the data again. The API
    is also served over HTTP, at 127.0.0.1:50080 (PALIMPSEST_HTTP_LISTEN).
    """
    # The embedded servers are only ever started from here and from the demo.
    from service.local.processes import ServerError
    from service.local.stack import Stack

    config = read_config(
        data_dir=data_dir,
        listen=listen,
        insecure=insecure or None,
        metrics_listen=metrics_listen,
    )
    for refusal in (listening.refusal(config), issuers.refusal(config)):
        if refusal is not None:
            raise CommandError(refusal)
    _check_certificates(config)
    reflection = config.reflection or "reflection" not in config.model_fields_set
    # Options of the command line are for its processes too.
    said = {
        "PALIMPSEST_INSECURE": str(config.insecure),
        "PALIMPSEST_REFLECTION": str(reflection),
    }
    stop = StopSignals()
    try:
        with Stack(
            config.data_dir,
            config,
            listen=config.listen,
            workers=workers,
            on_event=say,
            settings=said,
        ) as stack:
            stop.remember()
            show(f"Palimpsest listens at {stack.address}; data in {stack.data_dir}")
            if stack.url:
                show(f"Over HTTP: {stack.url}")
            show(listening.access_line(config))
            show(_models_line(config))
            show(f"Erasures are journalled in {stack.journal}: keep a copy apart from backups")
            show("Ctrl-C stops it.")
            stack.supervise(stop.requested)
            say("stopping")
    except ServerError as error:
        raise CommandError(str(error)) from error
    say("stopped; nothing is lost")


def _check_certificates(config: Config) -> None:
    try:
        certificates.read(config)
    except certificates.UnusableCertificate as error:
        raise CommandError(str(error)) from error


def _models_line(config: Config) -> str:
    """Returns which models `up` asks."""
    if config.model == OFFLINE_MODEL:
        return f"The model is {OFFLINE_MODEL}, which is no language model; see PALIMPSEST_MODEL"
    at = f" at {config.model_base_url}" if config.model_base_url else ""
    places = sum(one.model == config.model for one in config.deployments)
    at = f" in {places} deployment(s)" if places else at
    vectors = f"; vectors by {config.embedding_model}" if config.embedding_model else ""
    return f"The model is {config.model}{at}{vectors}"


def serve(
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; port 0 picks one.")] = None,
    insecure: Insecure = False,
    metrics_listen: MetricsListen = None,
    settings_path: SettingsPath = None,
) -> None:
    """Run the API (needs PALIMPSEST_DATABASE_URL)."""
    _starting()
    from service.app import serve as serving

    config = read_config(listen=listen, insecure=insecure or None, metrics_listen=metrics_listen)
    _run(
        config,
        lambda stop: serving.serve(
            config,
            stop,
            lambda address: _ready(f"listening on {address}"),
            lambda url: _ready(f"over HTTP at {url}"),
        ),
    )


def work(
    metrics_listen: MetricsListen = None,
    settings_path: SettingsPath = None,
) -> None:
    """Run a worker (needs PALIMPSEST_DATABASE_URL). Any number of them may run."""
    _starting()
    config = read_config(metrics_listen=metrics_listen)
    if config.caller_socket is None and (said := listening.metrics_refusal(config)) is not None:
        raise CommandError(said)
    has_own = config.caller_socket is None and not near_model(config.model)
    # First of all: the first step waits for it.
    spawned = (
        spawn(listening.next_address(config.metrics_listen))
        if has_own and config.database_url is not None
        else None
    )
    from service.app import work as working

    _run(config, lambda stop: working.work(config, stop, lambda: _ready("working"), spawned))


def executor(
    socket_path: Annotated[
        Path | None, typer.Option("--socket", help="The Unix socket for this machine's workers.")
    ] = None,
    descriptor: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    metrics_listen: MetricsListen = None,
    settings_path: SettingsPath = None,
) -> None:
    """Make the model calls of this machine's workers (needs PALIMPSEST_DATABASE_URL).

    Each worker starts one of its own, unless PALIMPSEST_CALLER_SOCKET names the --socket
    of one that they share. It finishes and stores what it began when a worker is killed,
    so that no call is paid for twice.
    """
    _starting()
    from service.app import executor as executing

    if (socket_path is None) == (descriptor is None):
        raise CommandError("give --socket PATH, where it is to listen")
    config = read_config(metrics_listen=metrics_listen)
    at = socket_path or socket.socket(fileno=descriptor)
    _run(config, lambda stop: executing.call(config, stop, lambda: _ready("calling"), at))


def migrate(
    settings_path: SettingsPath = None,
) -> None:
    """Migrate the database to this release (needs the right to change tables).

    Uses PALIMPSEST_MIGRATION_DATABASE_URL, else PALIMPSEST_DATABASE_URL.
    """
    import migrations
    from service.llm.embeddings.embedding import known_dimensions
    from storage.engine.connections import sqlalchemy_url
    from storage.engine.errors import StorageError, translated
    from storage.search import setup

    config = read_config()
    url = _url(config.migration_database_url or config.database_url)
    _refuse_pooler(url)
    try:
        with translated():
            before, after = migrations.upgrade(sqlalchemy_url(url))
            if after not in migrations.known():
                show(f"at {after}, of a newer release, and left there: this one works on it")
                return
            support = setup.install(url, known_dimensions(config))
    except (StorageError, migrations.BeforeVersion1) as error:
        raise CommandError(f"cannot migrate: {error}") from error
    show(f"migrated from {before or 'nothing'} to {after}" if before != after else f"at {after}")
    for line in _search_lines(support):
        show(line)


def restore(
    settings_path: SettingsPath = None,
) -> None:
    """Prepare a database that was restored from a backup, before anything runs on it.

    What was written after the backup is lost, but clients may still have tokens for it.
    Every session gets a new incarnation, so that all earlier tokens are refused. What was
    erased after the backup is erased again, from the erasure journal
    (PALIMPSEST_ERASURE_JOURNAL). A promoted standby or an upgraded server that lost no commit
    does not need this.
    Uses PALIMPSEST_MIGRATION_DATABASE_URL, else PALIMPSEST_DATABASE_URL, as `migrate` does.
    """
    from storage.engine.errors import StorageError, translated
    from storage.operations.restore import begin_new_history

    config = read_config()
    url = _url(config.migration_database_url or config.database_url)
    try:
        with translated():
            renewed = begin_new_history(url)
    except StorageError as error:
        raise CommandError(f"cannot begin another history: {error}") from error
    many = "1 session begins" if renewed == 1 else f"{renewed} sessions begin"
    show(f"{many} another history; tokens from before are refused")
    if config.erasure_journal is None:
        show("no erasure journal (PALIMPSEST_ERASURE_JOURNAL): what was erased later is back")
        return
    repeated = asyncio.run(_repeat_erasures(config, url))
    if repeated is None:
        show("run `palimpsest migrate`: `serve` repeats missed erasures before it serves")
    else:
        many = "1 missed erasure is" if repeated == 1 else f"{repeated} missed erasures are"
        show(f"{many} repeated, by {config.erasure_journal}")


async def _repeat_erasures(config: Config, url: str) -> int | None:
    """Repeats what the database has missed; returns how many targets were there.

    None for a database of a release before this one.
    """
    import migrations
    from service.app.foundation import CannotStart
    from service.app.journals import compare, journal_of
    from storage.engine import database_state
    from storage.engine.database import Database
    from storage.engine.errors import StorageError

    database = Database.connect(url, pool_size=2, name="palimpsest-restored")
    try:
        found = await database_state.read(database)
        if found.keys is None or found.migration in migrations.known() - {migrations.newest()}:
            return None
        return (await compare(journal_of(config, database, found.keys), config)).repeated
    except (CannotStart, StorageError) as error:
        raise CommandError(f"cannot repeat erasures: {error}") from error
    finally:
        await database.close()


def _search_lines(support: "Support") -> Iterator[str]:
    """Yields what search can do on this database."""
    if not support.session_words:
        yield "search looks through all words of a session: the database has no btree_gin"
    vectors = support.vectors_unavailable
    yield f"search by words only: {vectors}" if vectors else "search by words and by vectors"
    yield from support.problems


def _refuse_pooler(url: str) -> None:
    """Raises CommandError where connections are no sessions: migrations take locks in them."""
    from storage.engine.errors import StorageError
    from storage.engine.pooling import lost_sessions

    try:
        lost = asyncio.run(lost_sessions(url))
    except StorageError as error:
        raise CommandError(f"cannot migrate: {error}") from error
    if lost:
        raise CommandError(
            f"cannot migrate: {lost}; name the server itself in PALIMPSEST_MIGRATION_DATABASE_URL"
            " and PALIMPSEST_SIGNALS_DATABASE_URL; see docs/guides/running.md#poolers"
        )


def _url(secret: SecretStr | None) -> str:
    if secret is None:
        raise CommandError("PALIMPSEST_DATABASE_URL is not set")
    return secret.get_secret_value()


class StopSignals:
    """Ctrl-C, SIGTERM and a closed terminal.

    The first one raises SystemExit. After `remember` they only set what `requested` returns.
    """

    def __init__(self) -> None:
        self._raises = True
        self._requested = False
        #: The signal that ended the work, and what cancels it.
        self._ended_by: int | None = None
        self._cancel: Callable[[], object] | None = None
        for number in STOP_SIGNALS:
            # Ignored, for example by nohup, is not asked for.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._request)

    def remember(self) -> None:
        """Makes later signals raise nothing; `requested` reports them."""
        self._raises = False

    def requested(self) -> bool:
        """Returns whether a signal arrived."""
        return self._requested

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs as asyncio.run; the first signal cancels it before it raises SystemExit.

        Raised within a task it would be reported as that task's error, with a traceback.
        """
        try:
            asyncio.run(self._cancellable(work))
        except asyncio.CancelledError:
            if self._ended_by is None:
                raise
        if self._ended_by is not None:
            raise SystemExit(128 + self._ended_by)

    async def _cancellable(self, work: Coroutine[Any, Any, None]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "this is a task"
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            await work
        finally:
            self._cancel = None

    def _request(self, number: int, _: object) -> None:
        self._requested = True
        if self._raises:
            # A second signal does not cut short what the first one began.
            self._raises = False
            if self._cancel is None:
                raise SystemExit(128 + number)
            self._ended_by = number
            self._cancel()


def _run(config: Config, job: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    from service.app.foundation import CannotStart
    from service.local.processes import watch_parent
    from service.telemetry import logs

    logs.configure(config.log_level, config.log_format)
    watch_parent()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_until_stopped(job))
    except CannotStart as error:
        raise CommandError(str(error)) from error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def _until_stopped(job: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await job(stop)


def _starting() -> None:
    # Almost nothing that a process loads is garbage, and collecting it takes a third of the
    # loading time.
    gc.disable()


def _ready(line: str) -> None:
    # All that is loaded now stays. Unless it is frozen, each collection delays calls by a third
    # of a second, and so many objects postpone the next collection.
    gc.collect()
    gc.freeze()
    gc.enable()
    print(line, flush=True)
