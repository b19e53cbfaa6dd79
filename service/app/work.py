"""Runs a worker."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from service.app.dispatching import process
from service.app.foundation import health
from service.app.gateways import embedder_of, open_circuits, open_gateway, remote_executor
from service.app.journals import open_journal
from service.app.kinds import KINDS, use_cases
from service.app.method_registry import MethodRegistry, engines_of
from service.app.worker import Worker
from service.llm.executor.spawning import Spawned, near_model
from service.llm.gateway.bulkhead import Bulkhead
from service.llm.gateway.routing import deployments_of
from service.llm.providers.facts import Facts
from service.llm.providers.prices import Prices
from service.settings import listening
from service.settings.config import Config
from service.telemetry.names import Metric
from service.usecases.access.source_changes import SourceChanger
from service.usecases.answers.answer import Answerer
from service.usecases.answers.readers.ranks import SearchRanks
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.recovery import Recovery
from service.usecases.memories.step_tools import StepTools
from service.usecases.operations.deleting import Remover
from service.usecases.operations.gauges import observe_circuits, observe_whether
from service.usecases.operations.retention import Retainer
from service.usecases.operations.tenant_removal import TenantRemover
from service.usecases.prism.schemas import Generator
from service.usecases.search.entry_index import EntryIndexer
from service.usecases.search.index import Indexer
from service.usecases.search.reranking import order_texts
from service.usecases.search.search import Searcher
from storage.engine.tasks import cancel
from storage.memories import queue


async def work(
    config: Config,
    stop: asyncio.Event,
    ready: Callable[[], None],
    spawned: Spawned | None = None,
) -> None:
    """Runs a worker until `stop` is set, with the executor that was `spawned` for it, if any.
    Raises CannotStart."""
    async with (
        health(config, "work", stop) as watch,
        process(config, "work") as (database, keys, signals, dispatcher),
        AsyncExitStack() as stack,
    ):
        # Before anything is read that a restored database should not have.
        await open_journal(config, database, keys)
        prices = Prices(config)
        metrics_listen = listening.next_address(config.metrics_listen)
        remote = remote_executor(config, stack, spawned, metrics_listen=metrics_listen)
        bulkhead = Bulkhead(
            silent_seconds=config.silent_seconds,
            slots=config.silent_concurrency,
            concurrency=config.worker_concurrency,
        )
        circuits = open_circuits(config, database)
        if not near_model(config.model):
            observe_whether(
                Metric.EXECUTOR_REACHABLE,
                "Whether the process that makes model calls is reached",
                lambda: remote.is_connected,
            )
        observe_circuits(lambda: circuits.open_now)
        gateway = await open_gateway(
            config,
            database,
            stack,
            prices,
            remote=remote,
            bulkhead=bulkhead,
            circuits=circuits,
        )
        signals.subscribe(queue.CHANNEL, lambda _: dispatcher.wake())
        wake_ups = WakeUps(dispatcher.wake_up, dispatcher.want)
        facts = Facts(config).of
        embedder = embedder_of(config, database)
        rerank = partial(order_texts, gateway, facts, keys.marker, config)
        searcher = Searcher(database, embedder, rerank, config)
        tools = StepTools(
            database=database,
            gateway=gateway,
            facts=facts,
            prices=prices.of,
            marker_key=keys.marker,
            config=config,
        )
        worker = Worker(
            database,
            signals,
            dispatcher,
            wake_ups,
            MethodRegistry(database, engines_of(tools)),
            Answerer(
                database,
                gateway,
                facts,
                keys.marker,
                config,
                kinds=KINDS,
                prices=prices.of,
                ranks=partial(SearchRanks, searcher),
            ),
            Generator(database, gateway, keys.marker, config),
            Indexer(database, embedder, config, EntryIndexer(database, use_cases())),
            Remover(database, config),
            Retainer(database, wake_ups, keys.token, config),
            TenantRemover(database),
            SourceChanger(database, wake_ups, max_memory_bytes=config.limits.max_memory_bytes),
            bulkhead,
            Recovery(database, circuits, wake_ups, partial(deployments_of, config.deployments)),
            config,
        )
        ready()
        if not near_model(config.model):
            # Before, it could not complete what it claims; workers with an executor can.
            await _unless(stop, remote.wait_until_ready(config.start_seconds))
            connecting = asyncio.create_task(remote.stay_connected())
            stack.push_async_callback(cancel, [connecting])
        await watch.begin()
        await worker.run(stop)


async def _unless(stop: asyncio.Event, wait: Coroutine[Any, Any, None]) -> None:
    """Waits until this process is to stop, at most."""
    waiting, stopping = asyncio.create_task(wait), asyncio.create_task(stop.wait())
    await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, stopping):
        task.cancel()
    await asyncio.gather(waiting, stopping, return_exceptions=True)
