"""Runs the proxy: its server, and the delivery of what it remembers."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping

import structlog
from palimpsest_hook.delivery import Undelivered, deliver
from palimpsest_hook.queue import Queue
from palimpsest_hook.settings import Settings

import palimpsest
from service.llm.providers.prices import Prices
from service.proxy.application import Proxy
from service.proxy.budget import Budget, Period
from service.proxy.open_calls import CallsInProgress
from service.rpc.http.server import HttpServer
from service.settings.config import Config

_log = structlog.get_logger("palimpsest.proxy")

#: How long one delivery may take, also the last one.
DELIVERY_SECONDS = 10.0
#: How long after a failure it is tried again.
RETRY_SECONDS = 5.0
#: How often calls without results are looked for.
LOOK_SECONDS = 60.0


async def serve(
    config: Config,
    listen: str,
    *,
    session: str,
    upstreams: Mapping[str, str],
    tokens: int,
    hosts: frozenset[str],
    budget: tuple[float, Period] | None,
    said: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM; what is not delivered by then waits on disk.

    Raises OSError when it cannot listen, and ValueError for a wrong variable.
    """
    settings = Settings.of(os.environ)
    folder = settings.queue.parent.with_name("proxy")
    waiting = folder / settings.queue.name
    queue = Queue(waiting)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with palimpsest.connect() as client:
        proxy = Proxy(
            client=client,
            upstreams=upstreams,
            session=session,
            queue=queue,
            calls=CallsInProgress(waiting / "calls"),
            tokens=tokens,
            hosts=hosts,
            prices=Prices(config).of,
            budget=Budget(path=folder / "spent.json", usd=budget[0], period=budget[1])
            if budget
            else None,
        )
        server = HttpServer(proxy, config.limits)
        await server.start(listen)
        said(f"base URL for OpenAI's clients: {server.url}/s/{session}/v1")
        said(f"base URL for Anthropic's clients: {server.url}/s/{session}")
        delivering = asyncio.create_task(_deliver(proxy, queue))
        await stop.wait()
        await server.stop(DELIVERY_SECONDS)
        delivering.cancel()
        await proxy.close()
    try:
        await asyncio.to_thread(deliver, queue, DELIVERY_SECONDS)
    except Undelivered as error:
        left = len(queue.waiting())
        said(f"{left} turn(s) wait in {folder}, for the next start ({error})")


async def _deliver(proxy: Proxy, queue: Queue) -> None:
    """Delivers what waits, now and whenever something more does."""
    proxy.wake.set()
    proxy.delivered = asyncio.Event()
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(proxy.wake.wait(), LOOK_SECONDS)
        await proxy.remember_open_calls()
        proxy.wake.clear()
        try:
            await asyncio.to_thread(deliver, queue, DELIVERY_SECONDS)
        except Undelivered as error:
            _log.warning("the service takes no turns; they wait", reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            proxy.wake.set()
        if not proxy.wake.is_set():
            proxy.delivered.set()
