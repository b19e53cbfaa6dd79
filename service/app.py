"""The composition root: the only module that knows everyone."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

import migrations
from service import fail_points, listening, telemetry
from service.caller.client import NearOrFar, RemoteCaller
from service.caller.server import CallerServer
from service.caller.spawning import Spawned, near_model
from service.config import Config
from service.dispatch.port import Dispatcher
from service.dispatch.procrastinate import ProcrastinateDispatcher
from service.health_socket import health_socket
from service.llm.allowed import AllowedModels, AllowedTransport
from service.llm.caller import Caller
from service.llm.circuits import Circuits
from service.llm.embedders import open_embedder
from service.llm.embedding import CannotEmbed, Embedder
from service.llm.facts import Facts, ModelFacts
from service.llm.gateway import Gateway, MakesCalls
from service.llm.labels import LABELS
from service.llm.patience import Patience
from service.llm.prefix_cache import PrefixIndex
from service.llm.prices import Prices
from service.llm.routing import Router, places_of
from service.llm.transport import LitellmTransport
from service.rpc.answers import AnswerService
from service.rpc.budgets import BudgetService
from service.rpc.edits import EditService
from service.rpc.history import HistoryService
from service.rpc.log import LogService
from service.rpc.memories import MemoryService
from service.rpc.pages import Pages
from service.rpc.schemas import SchemaService
from service.rpc.search import SearchService
from service.rpc.server import Server, Services
from service.rpc.sessions import SessionService
from service.rpc.states import StateService
from service.rpc.trajectories import TrajectoryService
from service.rpc.trees import TreeService
from service.rpc.usage import UsageService
from service.usecases.advance import Advancer
from service.usecases.answer import Answerer
from service.usecases.append import Appender
from service.usecases.ask import Asker
from service.usecases.budgets import Budgets
from service.usecases.build_tree import Builder
from service.usecases.clocks import ProcessClock
from service.usecases.comparing import Comparer
from service.usecases.compress import Compressor
from service.usecases.consistency import Watcher
from service.usecases.costs import Costs
from service.usecases.edit import Editor
from service.usecases.gauges import DeploymentGauges, observe_connections
from service.usecases.generate import Generator
from service.usecases.hints import Hints
from service.usecases.history import History
from service.usecases.index import Indexer
from service.usecases.journal import Journal
from service.usecases.memories import Memories
from service.usecases.readers.ranks import SearchRanks
from service.usecases.readiness import ReadinessWatch
from service.usecases.rebuild import Rebuilder
from service.usecases.recovery import Recovery, StoredConditions
from service.usecases.reranking import Reranker
from service.usecases.revise import Reviser
from service.usecases.schemas import Schemas
from service.usecases.search import Searcher
from service.usecases.trajectories import Trajectories
from service.usecases.trees import Trees
from service.usecases.waiting import WaitingRoom
from service.usecases.watch import Watches
from service.usecases.working_contexts import WorkingContexts
from service.worker import Worker
from storage import database_state, pooling
from storage.database import Database
from storage.errors import LoginRefused, StorageError
from storage.prefix_index import NullPrefixIndex, RedisPrefixIndex
from storage.sessions import DeploymentKeys

_log = structlog.get_logger("palimpsest")

#: How long a process that stops waits for its own caller, which as a rule has nothing left
#: to do by then.
CALLER_SECONDS = 2.0
#: Where what is said of poolers is explained.
POOLERS = "docs/guides/poolers.md"


class CannotStart(Exception):
    """What a process needs is not there; the message is one clear line."""


async def serve(config: Config, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Runs the API until `stop` is set; `ready` is told the address. Raises CannotStart."""
    if (said := listening.refusal(config)) is not None:
        raise CannotStart(said)
    if not listening.is_local(config.listen):
        _log.warning("open to other machines", listen=config.listen, cause=listening.OPEN)
    async with (
        _process(config, "serve") as (database, keys, dispatcher),
        _health(config, "serve", stop) as watch,
        AsyncExitStack() as stack,
    ):
        hints = Hints(dispatcher.hint)
        watcher = Watcher(database, reads=config.limits.max_waiting_reads)
        appender = Appender(database, hints, keys.token, config.limits)
        pages = Pages(keys.token, config.limits)
        memories = Memories(database, hints, watcher, keys.token, config.limits)
        contexts = WorkingContexts(database, watcher, keys.token, config.limits)
        history = History(database)
        editor = Editor(database, memories, config.limits)
        waiting = WaitingRoom(config.limits.max_waiting_asks)
        models = AllowedModels(config)
        asker = Asker(database, hints, watcher, keys.token, waiting)
        schemas = Schemas(database, hints, watcher, waiting)
        comparer = Comparer(database, Prices(config).of, config)
        trajectories = Trajectories(
            database, Facts(config).of, LitellmTransport(config).structured, keys.marker, config
        )
        # Models are asked by searches that rerank, if ever: nothing is started before.
        far = _far(config, stack)
        gateway = await _gateway(
            config, database, keys, stack, Prices(config), far=far, when_asked=True
        )
        reranker = Reranker(gateway, Facts(config).of, keys.marker, config)
        embedder = _embedder(config, database)
        searcher = Searcher(database, embedder, reranker.order, config, call_off=gateway.call_off)
        server = Server(
            Services(
                sessions=SessionService(database, pages, config.search_language),
                log=LogService(database, appender, pages, config.limits, stop),
                memories=MemoryService(memories, history, pages, models),
                history=HistoryService(
                    history, Watches(database, watcher, config.limits), pages, stop
                ),
                edits=EditService(editor, Rebuilder(memories, watcher, models), stop, models),
                answers=AnswerService(asker, waiting, database, pages, stop, models),
                schemas=SchemaService(schemas, models),
                usage=UsageService(database, Costs(database, comparer), pages),
                budgets=BudgetService(Budgets(database, hints), pages),
                trees=TreeService(Trees(database, memories), pages),
                trajectories=TrajectoryService(trajectories, pages, stop),
                states=StateService(contexts, pages, config.limits),
                search=SearchService(searcher, pages),
            ),
            config.limits,
            reflects=config.reflection,
            unwritten=lambda: appender.unwritten_bytes,
        )
        jobs = [hints.run, watcher.run, appender.run]
        if telemetry.exports():
            jobs.append(DeploymentGauges(database, dispatcher).run)
        loops = [asyncio.create_task(job()) for job in jobs]
        try:
            port = await _listen(server, config.listen)
            await watch.begin(server.set_ready)
            ready(_announced(config.listen, port))
            if embedder is not None:
                # It takes seconds, which the first search does not have to wait for.
                loops.append(asyncio.create_task(_warm(embedder)))
            await stop.wait()
            await watcher.stop()
            await server.stop(config.stop_seconds)
        finally:
            await _cancel(loops)


async def work(
    config: Config,
    stop: asyncio.Event,
    ready: Callable[[], None],
    spawned: Spawned | None = None,
) -> None:
    """Runs a worker until `stop` is set, with the caller that was `spawned` for it, if any.
    Raises CannotStart."""
    async with (
        _process(config, "work") as (database, keys, dispatcher),
        _health(config, "work", stop) as watch,
        AsyncExitStack() as stack,
    ):
        prices = Prices(config)
        far = _far(config, stack, spawned)
        patience = Patience(
            silent_seconds=config.silent_seconds,
            places=config.silent_concurrency,
            concurrency=config.worker_concurrency,
        )
        circuits = _circuits(config, database)
        gateway = await _gateway(
            config, database, keys, stack, prices, far=far, patience=patience, circuits=circuits
        )
        hints = Hints(dispatcher.hint)
        facts = Facts(config).of
        embedder = _embedder(config, database)
        reranker = Reranker(gateway, facts, keys.marker, config)
        searcher = Searcher(database, embedder, reranker.order, config)
        worker = Worker(
            database,
            dispatcher,
            hints,
            Advancer(
                database,
                Reviser(database, gateway, facts, prices.of, keys.marker, config),
                Builder(database, gateway, facts, keys.marker, config),
                Compressor(database, gateway, facts, keys.marker, config),
            ),
            Answerer(
                database,
                gateway,
                facts,
                keys.marker,
                config,
                prices=prices.of,
                ranks=partial(SearchRanks, searcher),
            ),
            Generator(database, gateway, keys.marker, config),
            Indexer(database, embedder, config),
            patience,
            Recovery(database, circuits, hints, partial(places_of, config.deployments)),
            config,
        )
        ready()
        if not near_model(config.model):
            # What it took meanwhile could not go on: it is for workers whose callers are there.
            await _unless(stop, far.wait_until_ready(config.start_seconds))
        await watch.begin()
        await worker.run(stop)


async def _warm(embedder: Embedder) -> None:
    try:
        await embedder.warm()
    except CannotEmbed as error:
        # Searches go by words, and say so.
        _log.warning("cannot embed queries", cause=str(error))


def _embedder(config: Config, database: Database) -> Embedder | None:
    """What makes vectors; None where none are configured."""
    try:
        return open_embedder(config, Journal(database, lease_seconds=config.call_lease_seconds))
    except CannotEmbed as error:
        raise CannotStart(str(error)) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """What it takes to ask models outside of any memory."""

    database: Database
    gateway: Gateway
    facts_of: Callable[[str], ModelFacts]
    #: Derives the marks about texts from outside.
    marker_key: bytes


@asynccontextmanager
async def asking(config: Config) -> AsyncIterator[Desk]:
    """Model calls that are no worker's, kept in the same ledger. Raises CannotStart."""
    async with _database(config, "eval") as (database, keys), AsyncExitStack() as stack:
        gateway = await _gateway(config, database, keys, stack, Prices(config))
        yield Desk(
            database=database,
            gateway=gateway,
            facts_of=Facts(config).of,
            marker_key=keys.marker,
        )


async def call(
    config: Config, stop: asyncio.Event, ready: Callable[[], None], at: Path | socket.socket
) -> None:
    """Makes the calls of workers: of all that connect at a path, until `stop` is set, or of
    the one at the other end of a socket, until it is gone. Raises CannotStart."""
    async with (
        _database(config, "caller") as (database, keys),
        _health(config, "caller", stop) as watch,
        AsyncExitStack() as stack,
    ):
        transport = LitellmTransport(config)
        await transport.warm()
        journal = Journal(database, lease_seconds=config.call_lease_seconds)
        index = _index(config, keys, stack)
        caller = _caller(config, transport, journal, index, Prices(config))
        server = CallerServer(caller, stop_seconds=config.stop_seconds)
        await watch.begin()
        if isinstance(at, socket.socket):
            ready()
            await server.serve_one(at, stop)
        else:
            await server.listen(at, stop, ready)


async def _gateway(
    config: Config,
    database: Database,
    keys: DeploymentKeys,
    stack: AsyncExitStack,
    prices: Prices,
    *,
    far: RemoteCaller | None = None,
    when_asked: bool = False,
    patience: Patience | None = None,
    circuits: Circuits | None = None,
) -> Gateway:
    """The way to every model; `stack` ends it.

    Without a `far` caller all calls are made in this process: they end when it is killed.
    What it takes to ask is there from the beginning, or `when_asked` for the first time.
    """
    index = _index(config, keys, stack)
    journal = Journal(database, lease_seconds=config.call_lease_seconds)
    transport = LitellmTransport(config)
    near = _caller(config, transport, journal, index, prices)
    stack.push_async_callback(near.finish)
    if not when_asked and (far is None or near_model(config.model)):
        await transport.warm()
    maker: MakesCalls = near
    if far is not None:
        if not when_asked and not near_model(config.model):
            await far.start()
        maker = NearOrFar(near, far)
    circuits = circuits or _circuits(config, database)
    return Gateway(
        journal,
        Router(config.deployments, index, prices.of, probe_at=circuits.probe_at),
        maker,
        prices=prices.of,
        lease_seconds=config.call_lease_seconds,
        forms=transport,
        patience=patience,
        circuits=circuits,
    )


def _circuits(config: Config, database: Database) -> Circuits:
    return Circuits(StoredConditions(database), probe_seconds=config.model_probe_seconds)


def _far(config: Config, stack: AsyncExitStack, spawned: Spawned | None = None) -> RemoteCaller:
    """The caller's process of this one, or the one it shares; `stack` leaves it."""
    # Who waited for calls has had the time to stop already.
    seconds = min(config.stop_seconds, CALLER_SECONDS)
    far = RemoteCaller(config.caller_socket, stop_seconds=seconds, spawned=spawned)
    stack.push_async_callback(far.close)
    return far


async def _unless(stop: asyncio.Event, wait: Coroutine[Any, Any, None]) -> None:
    """Waits, unless this process is to stop."""
    waiting, stopping = asyncio.create_task(wait), asyncio.create_task(stop.wait())
    await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, stopping):
        task.cancel()
    await asyncio.gather(waiting, stopping, return_exceptions=True)


def _index(config: Config, keys: DeploymentKeys, stack: AsyncExitStack) -> PrefixIndex:
    if config.redis_url is None:
        return NullPrefixIndex()
    redis = RedisPrefixIndex(
        config.redis_url.get_secret_value(),
        cluster=config.redis_cluster,
        secret=keys.token if config.redis_replies else None,
        timeout_seconds=config.redis_timeout_seconds,
    )
    stack.push_async_callback(redis.close)
    return redis


def _caller(
    config: Config,
    transport: LitellmTransport,
    journal: Journal,
    index: PrefixIndex,
    prices: Prices,
) -> Caller:
    return Caller(
        AllowedTransport(transport, AllowedModels(config)),
        journal,
        index,
        prices=prices.of,
        tries=config.model_tries,
        lease_seconds=config.call_lease_seconds,
    )


@asynccontextmanager
async def _process(
    config: Config, kind: str
) -> AsyncIterator[tuple[Database, DeploymentKeys, Dispatcher]]:
    """What servers and workers have: a database, the deployment's keys, dispatch."""
    if config.is_pooled and config.dispatch_database_url is None:
        raise CannotStart(
            "PALIMPSEST_DISPATCH_DATABASE_URL is not set: with PALIMPSEST_DATABASE_POOLER it has to"
            f" name the server itself, since LISTEN passes no pooler; see {POOLERS}"
        )
    async with _database(config, kind) as (database, keys), AsyncExitStack() as stack:
        assert config.database_url is not None, "without it there is no database"
        if config.dispatch_database_url is not None:
            await _check_dispatch(config.dispatch_database_url.get_secret_value())
        url = (config.dispatch_database_url or config.database_url).get_secret_value()
        dispatcher = ProcrastinateDispatcher(
            url,
            heartbeat_seconds=config.heartbeat_seconds,
            dead_after_seconds=config.dead_after_seconds,
        )
        try:
            await stack.enter_async_context(dispatcher)
        except ConnectionError as error:
            raise CannotStart(str(error)) from error
        clock = asyncio.create_task(ProcessClock(database, kind).run())
        stack.push_async_callback(_cancel, [clock])
        yield database, keys, dispatcher


def _connect(config: Config, kind: str, *, pool_size: int) -> Database:
    """Connections to the data, of which none is open yet."""
    assert config.database_url is not None, "it is looked for first"
    return Database.connect(
        config.database_url.get_secret_value(),
        pool_size=pool_size,
        name=f"palimpsest-{kind}@{socket.gethostname()}",
        pooled=config.is_pooled,
    )


@asynccontextmanager
async def _database(config: Config, kind: str) -> AsyncIterator[tuple[Database, DeploymentKeys]]:
    """What every process has: telemetry, the database, the deployment's keys."""
    if config.database_url is None:
        raise CannotStart("PALIMPSEST_DATABASE_URL is not set; `palimpsest up` needs none")
    telemetry.configure(f"palimpsest-{kind}", "0.1.0")
    LABELS.configure(config)
    if config.fail_points is not None:
        fail_points.install(config.fail_points)
    url = config.database_url.get_secret_value()
    database = _connect(config, kind, pool_size=config.pool_size)
    try:
        keys = await _reach(database, "" if config.is_pooled else url, config.start_seconds)
        observe_connections(database)
        yield database, keys
    finally:
        await database.close()
        telemetry.shutdown()


@asynccontextmanager
async def _health(config: Config, kind: str, stop: asyncio.Event) -> AsyncIterator[ReadinessWatch]:
    """Says whether this process can work, to those who ask at its socket and to a listener."""
    database = _connect(config, f"{kind}-probe", pool_size=1)
    watch = ReadinessWatch(database, stop, probe_seconds=config.probe_seconds)
    async with health_socket(config.run_dir, kind, lambda: watch.cause):
        probing = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            await _cancel([probing])
            await database.close()


async def _check_dispatch(url: str) -> None:
    """Raises CannotStart when hints would go through a pooler, or nowhere."""
    try:
        lost = await pooling.lost_sessions(url)
    except StorageError as error:
        raise CannotStart(f"cannot reach the dispatch database: {error}") from error
    if lost:
        raise CannotStart(
            f"at PALIMPSEST_DISPATCH_DATABASE_URL {lost}: workers would not be woken; name the"
            f" server itself; see {POOLERS}"
        )


async def _reach(database: Database, session_url: str, seconds: float) -> DeploymentKeys:
    """Waits for the database, and checks that it fits this code and its role.

    `session_url`: where each connection has to be a session of the server's; or empty.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            lost = await pooling.lost_sessions(session_url) if session_url else ""
            if lost:
                raise CannotStart(
                    f"at PALIMPSEST_DATABASE_URL {lost}: another client's statements could run in"
                    " place of ours; name the server itself, or set"
                    f" PALIMPSEST_DATABASE_POOLER=transaction; see {POOLERS}"
                )
            found = await database_state.read(database)
        except LoginRefused as error:
            # Waiting helps against none of it.
            raise CannotStart(f"the database refuses: {error}; {error.advice}") from error
        except StorageError as error:
            if loop.time() > until:
                raise CannotStart(f"cannot reach the database: {error}") from error
            _log.warning("waiting for the database", cause=str(error))
            await asyncio.sleep(1)
            continue
        break
    if found.unfit:
        raise CannotStart(f"{found.unfit}; connect as one that may not")
    # A database that is ahead is one whose next release is being rolled out.
    if found.migration is None or found.keys is None or _behind(found.migration):
        raise CannotStart("the database is not migrated to this release; run `palimpsest migrate`")
    return found.keys


def _behind(revision: str) -> bool:
    return revision in migrations.known() and revision != migrations.newest()


def _announced(listen: str, port: int) -> str:
    """Returns where clients connect to: the path of a Unix socket, or the port it came to."""
    if listen.startswith("unix:"):
        return listen
    return f"{listen.rpartition(':')[0]}:{port}"


async def _listen(server: Server, address: str) -> int:
    try:
        port = await server.start(address)
    except RuntimeError as error:
        raise CannotStart(f"cannot listen at {address}: is another server there?") from error
    if port == 0:
        raise CannotStart(f"cannot listen at {address}")
    return port


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
