"""A worker."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from service import listening
from service.app.dispatching import process
from service.app.foundation import cancel, health
from service.app.gateways import embedder_of, far_caller, open_circuits, open_gateway
from service.caller.spawning import Spawned, near_model
from service.config import Config
from service.llm.facts import Facts
from service.llm.patience import Patience
from service.llm.prices import Prices
from service.llm.routing import places_of
from service.usecases.advance import Advancer
from service.usecases.answer import Answerer
from service.usecases.build_tree import Builder
from service.usecases.compress import Compressor
from service.usecases.gauges import observe_circuits, observe_executor
from service.usecases.generate import Generator
from service.usecases.hints import Hints
from service.usecases.index import Indexer
from service.usecases.readers.ranks import SearchRanks
from service.usecases.recovery import Recovery
from service.usecases.reranking import Reranker
from service.usecases.revise import Reviser
from service.usecases.search import Searcher
from service.worker import Worker
from storage import queue


async def work(
    config: Config,
    stop: asyncio.Event,
    ready: Callable[[], None],
    spawned: Spawned | None = None,
) -> None:
    """Runs a worker until `stop` is set, with the caller that was `spawned` for it, if any.
    Raises CannotStart."""
    async with (
        health(config, "work", stop) as watch,
        process(config, "work") as (database, keys, signals, dispatcher),
        AsyncExitStack() as stack,
    ):
        prices = Prices(config)
        metrics_listen = listening.next_address(config.metrics_listen)
        far = far_caller(config, stack, spawned, metrics_listen=metrics_listen)
        patience = Patience(
            silent_seconds=config.silent_seconds,
            places=config.silent_concurrency,
            concurrency=config.worker_concurrency,
        )
        circuits = open_circuits(config, database)
        if not near_model(config.model):
            observe_executor(lambda: far.is_connected)
        observe_circuits(lambda: circuits.open_now)
        gateway = await open_gateway(
            config, database, keys, stack, prices, far=far, patience=patience, circuits=circuits
        )
        signals.subscribe(queue.CHANNEL, lambda _: dispatcher.wake())
        hints = Hints(dispatcher.hint, dispatcher.want)
        facts = Facts(config).of
        embedder = embedder_of(config, database)
        reranker = Reranker(gateway, facts, keys.marker, config)
        searcher = Searcher(database, embedder, reranker.order, config)
        worker = Worker(
            database,
            signals,
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
            connecting = asyncio.create_task(far.stay_connected())
            stack.push_async_callback(cancel, [connecting])
        await watch.begin()
        await worker.run(stop)


async def _unless(stop: asyncio.Event, wait: Coroutine[Any, Any, None]) -> None:
    """Waits, unless this process is to stop."""
    waiting, stopping = asyncio.create_task(wait), asyncio.create_task(stop.wait())
    await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, stopping):
        task.cancel()
    await asyncio.gather(waiting, stopping, return_exceptions=True)
