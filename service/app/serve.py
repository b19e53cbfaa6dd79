"""Runs the API server."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

import structlog

from service import telemetry
from service.app.access import access_of
from service.app.dispatching import process
from service.app.foundation import CannotStart, health
from service.app.gateways import embedder_of, open_gateway, remote_executor
from service.app.journals import open_journal
from service.app.kinds import costs_of, default_memories, memories_of, use_cases
from service.app.tools import ToolsOnDemand, tools_of
from service.domain.values.memory_specs import DefaultMemory
from service.llm.embeddings.embedding import CannotEmbed, Embedder
from service.llm.gateway.allowed import AllowedModels
from service.llm.providers.facts import Facts
from service.llm.providers.prices import Prices
from service.rpc.answer_service import AnswerService
from service.rpc.billing_service import BillingService
from service.rpc.certificates import Certificates
from service.rpc.convert.specs import check_spec
from service.rpc.http.application import Application, for_browsers
from service.rpc.http.server import HttpServer
from service.rpc.interceptors.lives import Lives
from service.rpc.memory_service import MemoryService
from service.rpc.operation_service import OperationService
from service.rpc.pages import Pages
from service.rpc.pipeline import Handler, Services, chain, credentials_check, handlers, wrapped
from service.rpc.server import Server
from service.rpc.session_service import SessionService
from service.rpc.state_service import StateService
from service.rpc.tree_service import TreeService
from service.settings import issuers, listening
from service.settings.certificates import UnusableCertificate, has_tls
from service.settings.config import Config
from service.usecases.answers.ask import Asker
from service.usecases.answers.interest import Interest
from service.usecases.answers.trajectories import Trajectories
from service.usecases.log.append import Appender
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Editor
from service.usecases.memories.history import History
from service.usecases.memories.long_operations import LongOperations
from service.usecases.memories.progress_watcher import CHANGES, ProgressWatcher
from service.usecases.memories.watch import Watches
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.gauges import DeploymentGauges
from service.usecases.operations.import_rules import ImportRules
from service.usecases.operations.importing import Importer
from service.usecases.operations.redacting import Redactor
from service.usecases.operations.storage_usage import StorageUsage
from service.usecases.prism.schemas import Schemas
from service.usecases.search.consistent import ConsistentSearch
from service.usecases.search.memories import MemorySearch
from service.usecases.search.recall import Recaller
from service.usecases.search.reranking import order_texts
from service.usecases.search.search import Searcher
from service.usecases.spend.budgets import Budgets
from service.usecases.spend.comparing import Comparer
from service.usecases.state.working_contexts import WorkingContexts
from service.usecases.tree.trees import Trees
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest")


async def serve(
    config: Config,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    over_http: Callable[[str], None] = lambda _: None,
) -> None:
    """Runs the API until `stop` is set. Raises CannotStart.

    `ready` is called with its address, and `over_http` before with its URL for HTTP, if it has one.
    """
    for said in (listening.refusal(config), issuers.refusal(config)):
        if said is not None:
            raise CannotStart(said)
    if (risk := listening.risk(config)) is not None:
        _log.warning("insecure", cause=risk)
    try:
        tls = Certificates(config) if has_tls(config) else None
    except UnusableCertificate as error:
        raise CannotStart(str(error)) from error
    async with (
        health(config, "serve", stop) as watch,
        process(config, "serve") as (database, keys, signals, dispatcher),
        AsyncExitStack() as stack,
    ):
        # Before anything is served that a restored database should not have.
        journal = await open_journal(config, database, keys)
        wake_ups = WakeUps(dispatcher.wake_up, dispatcher.want)
        watcher = ProgressWatcher(
            database,
            reads=config.limits.max_waiting_reads,
            want=partial(wake_ups.add, wanted=True),
        )
        signals.subscribe(CHANGES, watcher.wake)
        appender = Appender(database, wake_ups, keys.token, config.limits, default_memories())
        pages = Pages(keys.token, config.limits)
        access = access_of(config, database, wake_ups, pages, journal)
        memories = memories_of(
            *(database, wake_ups, watcher, keys.token, config.limits), access.quotas.memory_room
        )
        facts = Facts(config).of
        contexts = WorkingContexts(
            database,
            watcher,
            keys.token,
            config.limits,
            lambda spec: facts(spec.model or config.model),
        )
        deleter = Deleter(database, wake_ups, journal)
        redactor = Redactor(
            *(database, wake_ups, keys.token),
            max_chunks=config.limits.max_redacted_chunks,
            max_rules=config.limits.max_kept_out,
            journal=journal,
        )
        editor = Editor(database, memories, config.limits)
        waiting = ConcurrencyLimiter(config.limits.max_waiting_asks)
        models = AllowedModels(config)
        interest = Interest(database, seconds=config.abandoned_answer_seconds, stopping=stop)
        pending = config.limits.max_pending_answers
        asker = Asker(
            *(database, wake_ups, watcher, keys.token, waiting, interest), max_pending=pending
        )
        operations = LongOperations(database, watcher, deleter.remove)
        schemas = Schemas(database, wake_ups, max_pending=pending)
        comparer = Comparer(database, Prices(config).of, config)
        trees = Trees(database, memories)
        trajectories = Trajectories(database, facts, keys.marker, config)
        # Only searches that rerank call models: nothing is started before.
        remote = remote_executor(config, stack)
        gateway = await open_gateway(
            config, database, stack, Prices(config), remote=remote, when_asked=True
        )
        rerank = partial(order_texts, gateway, facts, keys.marker, config)
        embedder = embedder_of(config, database)
        searcher = Searcher(database, embedder, rerank, config, call_off=gateway.call_off)
        search = ConsistentSearch(database, searcher, watcher, keys.token)
        services = Services(
            sessions=SessionService(
                database,
                deleter,
                redactor,
                search,
                Recaller(database, search, memories, keys.token, config),
                MemorySearch(database, searcher, memories, keys.token),
                appender,
                Exporter(database),
                Importer(
                    *(database, use_cases(), config.limits),
                    ImportRules(
                        check_spec=partial(check_spec, models),
                        pace=access.quotas.pace_import,
                        session_room=access.quotas.session_room,
                        memory_room=access.quotas.memory_room,
                    ),
                    keys.token,
                ),
                pages,
                config.limits,
                language=config.search_language,
                default_memory=DefaultMemory(config.default_memory),
                quotas=access.quotas,
                stopping=stop,
            ),
            memories=MemoryService(
                *(memories, editor, deleter, pages, models),
                schemas=schemas,
                history=History(database, use_cases()),
                watches=Watches(database, watcher, config.limits),
                stopping=stop,
            ),
            answers=AnswerService(
                *(asker, deleter, trajectories, waiting, database, pages, stop, models),
                limits=config.limits,
                token_key=keys.token,
            ),
            billing=BillingService(
                costs_of(database, comparer),
                Budgets(database, wake_ups),
                StorageUsage(database),
                pages,
            ),
            trees=TreeService(trees, memories, pages),
            states=StateService(contexts, pages, config.limits),
            operations=OperationService(operations, pages, stop),
            access=access.service,
        )
        interceptors = chain(
            config.limits,
            database,
            authentication=access.authentication,
            quotas=access.quota_limit,
            around=(Lives(database),),
            unwritten=lambda: appender.unwritten_bytes,
        )
        server = Server(services, config.limits, interceptors, reflects=config.reflection)
        jobs = [signals.run, wake_ups.run, watcher.run, appender.run, interest.run]
        jobs += [journal.run, access.run, access.slots.run]
        if telemetry.exports():
            gauges = DeploymentGauges(database, dead_after_seconds=config.dead_after_seconds)
            jobs.append(gauges.run)
        loops = [asyncio.create_task(job()) for job in jobs]
        try:
            methods = wrapped(handlers(services), interceptors)
            tools = tools_of(config, methods, credentials_check(access.authentication))
            http = await _listen_http(config, tls, methods, tools)
            if http is not None:
                stack.push_async_callback(http.stop, 0)
            if tools is not None:
                stack.push_async_callback(tools.stop)
            port = await _listen(server, config, tls)
            await watch.begin(server.set_ready)
            if http is not None:
                over_http(http.url)
            ready(_announced(config.listen, port))
            if embedder is not None:
                # It takes seconds, for which the first search should not wait.
                loops.append(asyncio.create_task(_warm(embedder)))
            await stop.wait()
            await watcher.stop()
            if tools is not None:
                await tools.end_streams()
            # Both at once: neither waits for the calls of the other.
            await asyncio.gather(
                *(one.stop(config.stop_seconds) for one in (server, http) if one is not None)
            )
        finally:
            await searcher.close()
            await cancel(loops)


async def _warm(embedder: Embedder) -> None:
    try:
        await embedder.warm()
    except CannotEmbed as error:
        # Searches use words only, and report that.
        _log.warning("cannot embed queries", cause=str(error))


def _announced(listen: str, port: int) -> str:
    """Returns where clients connect to: the path of a Unix socket, or the port that was chosen."""
    if listen.startswith("unix:"):
        return listen
    return f"{listen.rpartition(':')[0]}:{port}"


async def _listen(server: Server, config: Config, tls: Certificates | None) -> int:
    """Starts the server; returns the port of the first address. Raises CannotStart."""
    requires = tls is not None and tls.current.client_ca is not None
    ports = []
    for address in listening.grpc_addresses(config):
        # With an address for client certificates, the other one needs none.
        mutual = requires and address == (config.mutual_tls_listen or config.listen)
        credentials = None if tls is None else tls.credentials(mutual=mutual)
        try:
            port = server.listen(address, credentials)
        except RuntimeError as error:
            raise CannotStart(f"cannot listen at {address}: is another server there?") from error
        if port == 0:
            raise CannotStart(f"cannot listen at {address}")
        ports.append(port)
    await server.start()
    return ports[0]


async def _listen_http(
    config: Config,
    tls: Certificates | None,
    methods: Mapping[str, Handler],
    tools: ToolsOnDemand | None,
) -> HttpServer | None:
    """Starts the HTTP server; None where none is configured. Raises CannotStart."""
    address = config.http_listen
    if address is None:
        return None
    application = Application(
        methods,
        config.limits,
        origins=config.http_origins,
        local_only=listening.is_local(address) and not listening.is_authenticated(config),
        tools=tools,
    )
    server = HttpServer(for_browsers(application, config.http_origins), config.limits, tls)
    try:
        # With an address for client certificates, this one needs none.
        await server.start(address, requires_certificate=config.mutual_tls_listen is None)
    except OSError as error:
        raise CannotStart(
            f"cannot listen at {address} for HTTP: is another server there? Set"
            " PALIMPSEST_HTTP_LISTEN to another address"
        ) from error
    return server
