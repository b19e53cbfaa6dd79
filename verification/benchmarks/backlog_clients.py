"""What clients of the benchmark `backlog` do; crowds of them in processes of their own."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import palimpsest
from palimpsest import DeadlineExceeded, PalimpsestError
from verification.benchmarks.load_meters import percentiles
from verification.benchmarks.load_stack import NOTES, QUESTION, SCHEMA

#: Calls at once while sessions are made.
MAKING = 16
#: Appends at once.
AT_ONCE = 64
TEXT = "The ship lies in another harbour now."
#: A chunk that is not applied by then counts as applied then.
MAX_SECONDS = 60.0
#: Between two looks of a client that waits without a token.
LOOK_SECONDS = 0.02


@dataclass(kw_only=True)
class Waits:
    """From append to applied, as one client sees it."""

    seconds: list[float] = field(default_factory=list)
    #: Chunks that were not applied within MAX_SECONDS.
    late: int = 0

    def figures(self) -> dict[str, float]:
        """Percentiles in milliseconds; those that were late count with MAX_SECONDS."""
        return {**percentiles(self.seconds), "late": self.late}


async def make(client: palimpsest.Client, names: Sequence[str]) -> None:
    """Makes sessions with a memory each, which has applied a chunk."""
    left = iter(names)

    async def some() -> None:
        for name in left:
            session = await client.create_session(name)
            memory = await session.create_memory(NOTES, schema_source=SCHEMA)
            appended = await session.append(TEXT)
            await memory.get(after=appended.read_token, timeout=MAX_SECONDS)

    await asyncio.gather(*(some() for _ in range(MAKING)))


async def append_all(client: palimpsest.Client, names: Sequence[str]) -> list[float]:
    """Appends a chunk to each session, AT_ONCE at once; seconds that each took."""
    left = iter(names)
    took: list[float] = []

    async def some() -> None:
        for name in left:
            began = time.monotonic()
            await client.session(name).append(TEXT)
            took.append(time.monotonic() - began)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return took


async def converse(
    client: palimpsest.Client, names: Iterator[str], seconds: float, waits: Waits
) -> None:
    """Appends a message and reads the memory that has it, one after the other."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        session = client.session(next(names))
        began = time.monotonic()
        appended = await session.append({"role": "user", "content": TEXT})
        try:
            await session.memory(NOTES).get(after=appended.read_token, timeout=MAX_SECONDS)
        except DeadlineExceeded:
            waits.late += 1
        waits.seconds.append(min(time.monotonic() - began, MAX_SECONDS))


async def look_on(
    client: palimpsest.Client, names: Iterator[str], seconds: float, waits: Waits
) -> None:
    """Appends a text and polls the memory until it has it, without a waiting read."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        session = client.session(next(names))
        began = time.monotonic()
        appended = await session.append(TEXT)
        while (await session.memory(NOTES).get()).applied_position < appended.positions.last:
            if time.monotonic() - began > MAX_SECONDS:
                waits.late += 1
                break
            await asyncio.sleep(LOOK_SECONDS)
        waits.seconds.append(min(time.monotonic() - began, MAX_SECONDS))


async def ask_all(client: palimpsest.Client, names: Sequence[str]) -> dict[str, Any]:
    """Asks the memory of each session at once: a question to each."""
    took: list[float] = []
    failed: dict[str, int] = {}

    async def ask(name: str) -> None:
        began = time.monotonic()
        try:
            await client.session(name).memory(NOTES).ask(QUESTION, timeout=10 * MAX_SECONDS)
        except PalimpsestError as error:
            failed[error.reason] = failed.get(error.reason, 0) + 1
        else:
            took.append(time.monotonic() - began)

    began = time.monotonic()
    await asyncio.gather(*(ask(name) for name in names))
    rate = len(took) / (time.monotonic() - began)
    return {"asks_per_second": round(rate, 1), "ask": percentiles(took), "failed": failed}


async def append_steadily(
    client: palimpsest.Client, names: Sequence[str], rate: float, seconds: float
) -> dict[str, Any]:
    """Appends at a rate for so long, AT_ONCE at once at the most."""
    took: list[float] = []
    numbers = iter(range(round(rate * seconds)))
    chosen = cycle(names)
    began = time.monotonic()

    async def some() -> None:
        for number in numbers:
            due = began + number / rate
            if due > began + seconds or time.monotonic() > began + seconds:
                return
            await asyncio.sleep(max(due - time.monotonic(), 0))
            sent = time.monotonic()
            await client.session(next(chosen)).append(TEXT)
            took.append(time.monotonic() - sent)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    done = len(took) / (time.monotonic() - began)
    return {"appends_per_second": round(done), "append": percentiles(took)}


Crowd = Callable[..., Any]


@asynccontextmanager
async def crowd(of: Crowd, address: str, *values: object) -> AsyncIterator[asyncio.Future[Any]]:
    """Clients that do `of` in a process of their own: it does not slow those here.

    It has begun; the future is what it returns. It ends with the block.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_in_process, args=(theirs, of, address, values)
    )
    process.start()
    theirs.close()
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(None, ours.recv)
        yield loop.run_in_executor(None, ours.recv)
    finally:
        assert process.pid is not None, "it was started"
        if process.is_alive():
            os.kill(process.pid, signal.SIGTERM)
        process.join()


def _in_process(ready: Connection, of: Crowd, address: str, values: Sequence[object]) -> None:
    asyncio.run(_run(ready, of, address, values))


async def _run(ready: Connection, of: Crowd, address: str, values: Sequence[object]) -> None:
    async with palimpsest.connect(address) as client:
        ready.send(None)
        ready.send(await of(client, *values))
