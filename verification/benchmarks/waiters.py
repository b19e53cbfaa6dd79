"""Measures what waiting costs: reads, and watches, each of a memory of its own.

An API and a worker as processes. First `--watches` memories are watched: the CPU of the API
and of PostgreSQL while nothing happens, and the time from the append of a chunk until the watch
of its memory has the revision, with the offline model. Then, without a worker, `--waiters`
reads wait for memories that are behind. `value` is the CPU of the API meanwhile, in percent of
a core.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle, islice
from typing import Any

import palimpsest
from palimpsest import Memory
from tests.support.harness import Process, Servers, api, worker
from verification.benchmarks.load_meters import cpu_by_kind, load_average, percentiles
from verification.benchmarks.load_stack import SCHEMA

#: Memories of a session, of those that reads wait for.
A_SESSION = 20
#: Calls at once while memories are made.
MAKING = 16
#: Calls that wait on one connection.
A_CONNECTION = 500
#: Between two appends that are timed, in seconds.
PAUSE_SECONDS = 0.05
#: Before CPU is counted, for what follows the start of calls.
SETTLING_SECONDS = 5.0
#: No call waits so long.
MAX_SECONDS = 3600.0
TEXT = "The ship lies in another harbour now."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--waiters", type=int, default=3000, help="reads that wait")
    parser.add_argument("--watches", type=int, default=1000, help="watches")
    parser.add_argument("--events", type=int, default=200, help="appends that are timed")


def run(seconds: float, *, waiters: int, watches: int, events: int) -> dict[str, Any]:
    """Measures; see the module. The CPU of reads and of watches for half of the time each."""
    calls = str(2 * max(waiters, watches) + MAKING)
    limits = {
        "MAX_WAITING_READS": str(waiters),
        "MAX_WATCHES": str(watches),
        **dict.fromkeys(("MAX_CALLS", "MAX_TENANT_CALLS", "MAX_ADDRESS_CALLS"), calls),
    }
    settings = {f"PALIMPSEST_LIMIT_{name}": one for name, one in limits.items()}
    with Servers.started() as servers, asyncio.Runner() as runner:
        url = servers.new_database()
        with api(url, **settings) as (server, address):
            bench = _Bench(servers, server, address, seconds / 2)
            with worker(url, **servers.redis_settings()):
                watched = runner.run(bench.watches(watches, events))
            waited = runner.run(bench.reads(waiters))
    return {
        "value": waited["api_percent"],
        "goal": "<= 10",
        "waiters": {"number": waiters, **waited},
        "watches": {"number": watches, **watched},
        "load_average": load_average(),
    }


class _Bench:
    def __init__(self, servers: Servers, server: Process, address: str, seconds: float) -> None:
        postmaster = servers.postgres._process
        assert postmaster is not None, "it runs"
        self._processes = {"api": server.pid, "postgres": postmaster.pid}
        self._address = address
        self._seconds = seconds

    async def watches(self, number: int, events: int) -> dict[str, Any]:
        """Measures the cost of watches, and their delay."""
        async with self._clients(number) as clients, AsyncExitStack() as stack:
            memories = await _make(clients, "watched", number, 1)
            told: asyncio.Queue[float] = asyncio.Queue()
            begun = asyncio.Semaphore(0)

            async def hear(memory: Memory) -> None:
                async with memory.watch() as watch:
                    begun.release()
                    async for _ in watch:
                        told.put_nowait(time.monotonic())

            hearing = [asyncio.create_task(hear(memory)) for memory in memories]
            stack.push_async_callback(_end, hearing)
            for _ in hearing:
                await begun.acquire()
            found: dict[str, Any] = await self._cpu()
            taken: list[float] = []
            for memory in islice(cycle(memories), events):
                began = time.monotonic()
                await memory.session.append(TEXT)
                taken.append(await told.get() - began)
                await asyncio.sleep(PAUSE_SECONDS)
        return {**found, "append_to_event": percentiles(taken)}

    async def reads(self, number: int) -> dict[str, Any]:
        """Returns what reads cost that wait."""
        async with self._clients(number) as clients, AsyncExitStack() as stack:
            memories = await _make(clients, "behind", number, A_SESSION)
            for memory in memories[::A_SESSION]:
                await memory.session.append(TEXT)
            waiting = [
                asyncio.create_task(memory.get(fully_applied=True, timeout=MAX_SECONDS))
                for memory in memories
            ]
            stack.push_async_callback(_end, waiting)
            # After the others, on each connection, and so after what they begin with.
            for memory in memories[: len(clients) * A_SESSION : A_SESSION]:
                await memory.get(timeout=MAX_SECONDS)
            found = await self._cpu()
            assert not any(task.done() for task in waiting), "all of them wait"
        return found

    @asynccontextmanager
    async def _clients(self, calls: int) -> AsyncIterator[Sequence[palimpsest.Client]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(palimpsest.connect(self._address))
                for _ in range(0, calls, A_CONNECTION)
            ]

    async def _cpu(self) -> dict[str, float]:
        """CPU of the processes while nothing happens, in percent of a core."""
        await asyncio.sleep(SETTLING_SECONDS)
        began = time.monotonic()
        with cpu_by_kind(self._processes) as spent:
            await asyncio.sleep(self._seconds)
        taken = time.monotonic() - began
        return {f"{kind}_percent": round(one / taken * 100, 1) for kind, one in spent.items()}


async def _make(
    clients: Sequence[palimpsest.Client], name: str, number: int, a_session: int
) -> list[Memory]:
    """Returns so many memories, in their order, and on all connections alike."""
    memories: list[Memory] = []

    async def make(client: palimpsest.Client, of_session: range) -> list[Memory]:
        async with places:
            session = await client.create_session(f"{name}-{of_session.start}")
            return [
                await session.create_memory(f"m{one}", schema_source=SCHEMA, linger=0)
                for one in of_session
            ]

    places = asyncio.Semaphore(MAKING)
    parts = [range(first, min(first + a_session, number)) for first in range(0, number, a_session)]
    for made in await asyncio.gather(*map(make, cycle(clients), parts)):
        memories += made
    return memories


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
