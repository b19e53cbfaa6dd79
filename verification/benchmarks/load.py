"""Many sessions at once: appends, steps of a slow model, and questions meanwhile.

`--sessions` producers, each with a stream and a PRISM memory of its own, append `--chunks`
together as fast as they are acked, in bursts; `--workers` workers apply them with a model
that takes 500 ms; a few readers ask all the time. `value` is the ideal time of the model's
calls, calls x 500 ms / (workers x concurrency), divided by what it took from the first append
until all is applied. Floors: `bare` copies the same rows into the same table, in one run; the
CPU that each process took says what the machine could do at best.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

import palimpsest
from palimpsest import PalimpsestError
from verification.benchmarks.append import copied
from verification.benchmarks.load_meters import (
    connections_by_name,
    connections_of,
    cpu_by_kind,
    load_average,
    percentiles,
    sampled,
)
from verification.benchmarks.load_stack import (
    NOTES,
    QUESTION,
    SCHEMA,
    Stack,
    count_behind,
    one,
    stack,
    wait_until,
)

MODEL_SECONDS = 0.5
#: Chunks that a producer appends before it waits for their ack.
BURST = 10
#: Characters of a chunk, about 50 tokens.
CHUNK_CHARACTERS = 200
#: Readers that ask one question after the other.
READERS = 8
#: Calls at once while sessions are made.
MAKING = 32
#: How often memory is measured, and progress printed.
LOOK_SECONDS = 2.0
#: Everything is applied by then, unless something is wrong.
MAX_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--sessions", type=int, default=1000, help="producers at once")
    parser.add_argument("--chunks", type=int, default=100_000, help="of all sessions together")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--concurrency", type=int, default=64, help="memories at once of a worker")


@dataclass(kw_only=True)
class Seen:
    """What clients measured, in seconds."""

    acks: list[float] = field(default_factory=list)
    asks: list[float] = field(default_factory=list)
    #: Questions that failed, by the reason.
    failed: dict[str, int] = field(default_factory=dict)


def run(
    seconds: float, *, sessions: int, chunks: int, workers: int, concurrency: int
) -> dict[str, Any]:
    """Measures; see the module. Takes as long as it takes."""
    with (
        # One loop for all: gRPC does not leave the one that it began with.
        asyncio.Runner() as runner,
        stack(
            workers,
            model_seconds=MODEL_SECONDS,
            PALIMPSEST_WORKER_CONCURRENCY=str(concurrency),
        ) as made,
    ):
        return measure(made, runner, sessions=sessions, chunks=chunks, concurrency=concurrency)


def measure(
    made: Stack, runner: asyncio.Runner, *, sessions: int, chunks: int, concurrency: int
) -> dict[str, Any]:
    """Measures on a service that runs."""
    before = load_average()
    each = max(chunks // sessions, 1)
    runner.run(_make_sessions(made.address, sessions))
    processes = made.processes()
    with (
        made.connect() as connection,
        cpu_by_kind({**processes, "postgres": made.postmaster()}) as cpu,
        sampled(processes, made.postmaster(), LOOK_SECONDS) as sizes,
    ):
        seen, appended, applied = runner.run(_traffic(made.address, connection, sessions, each))
        connections = _connections(made, connection)
        calls = int(one(connection, "SELECT count(*) FROM call"))
    return {
        **_speeds(made, sessions, each, appended),
        **_applied(calls, len(made.workers) * concurrency, sessions * each, applied),
        "sessions": sessions,
        "workers": len(made.workers),
        "concurrency": concurrency,
        "ack": percentiles(seen.acks),
        "ask": {**percentiles(seen.asks), "failed": seen.failed},
        "memory": sizes.figures(),
        "connections": connections,
        "cpu_ms_a_call": {kind: round(one / calls * 1000, 1) for kind, one in cpu.items()},
        "load_average": [before, load_average()],
    }


def _speeds(made: Stack, sessions: int, each: int, seconds: float) -> dict[str, Any]:
    """Returns how fast chunks were acked, and how fast the bare database copies as many."""
    acked = sessions * each / seconds
    bare = copied(made.servers.as_superuser(made.url), sessions, each, _text("bare", 0))
    return {
        "acked_chunks_per_second": round(acked),
        "bare_rows_per_second": round(bare),
        "acked_to_bare": round(acked / bare, 3),
    }


def _applied(calls: int, slots: int, chunks: int, seconds: float) -> dict[str, Any]:
    """Returns how fast chunks were applied, and how fast a model would let so many slots be."""
    ideal = calls * MODEL_SECONDS / slots
    return {
        "value": round(ideal / seconds, 3),
        "goal": ">= 0.85",
        "chunks": chunks,
        "applied_chunks_per_second": round(chunks / seconds),
        "seconds": round(seconds, 1),
        "ideal_seconds": round(ideal, 1),
        "calls": calls,
    }


def _connections(made: Stack, connection: psycopg.Connection[Any]) -> dict[str, Any]:
    return {
        "by_name": connections_by_name(connection),
        "by_process": {
            name: connections_of(pid, made.url) for name, pid in made.processes().items()
        },
    }


def _text(name: str, number: int) -> str:
    return f"{name} {number}: the ship lies in another harbour now. ".ljust(CHUNK_CHARACTERS, "x")


def _name(number: int) -> str:
    return f"load-{number}"


async def _make_sessions(address: str, sessions: int) -> None:
    """A session with a memory for each; workers and their executors have woken by then."""
    left = iter(range(sessions))
    async with palimpsest.connect(address) as client:

        async def some() -> None:
            for number in left:
                session = await client.create_session(_name(number))
                await session.create_memory(NOTES, schema_source=SCHEMA)

        await asyncio.gather(*(some() for _ in range(MAKING)))
        session = await client.create_session("first")
        memory = await session.create_memory(NOTES, schema_source=SCHEMA)
        async with session.producer("p") as producer:
            await producer.append("The ship comes.")
        await memory.get(fully_applied=True, timeout=120)
    _say(f"{sessions} sessions")


async def _traffic(
    address: str, connection: psycopg.Connection[Any], sessions: int, each: int
) -> tuple[Seen, float, float]:
    """Returns what was seen; seconds until all was acked, and until all was applied."""
    seen = Seen()
    async with palimpsest.connect(address) as client, asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(_ask(client, seen, sessions, n)) for n in range(READERS)]
        started = time.monotonic()
        told = tasks.create_task(_tell(connection, seen, started))
        await asyncio.gather(*(_append(client, seen, n, each) for n in range(sessions)))
        appended = time.monotonic() - started
        _say(f"all {sessions * each} chunks acked after {appended:.1f} s")

        def is_applied() -> bool:
            return count_behind(connection) == 0

        told.cancel()
        await asyncio.gather(told, return_exceptions=True)
        await asyncio.to_thread(wait_until, "all is applied", is_applied, MAX_SECONDS)
        applied = time.monotonic() - started
        for task in readers:
            task.cancel()
    return seen, appended, applied


async def _append(client: palimpsest.Client, seen: Seen, number: int, each: int) -> None:
    async with client.session(_name(number)).producer("p", give_up_seconds=600.0) as producer:
        for first in range(0, each, BURST):
            began = time.monotonic()
            for chunk in range(first, min(first + BURST, each)):
                await producer.append(_text(_name(number), chunk))
            await producer.flush()
            seen.acks.append(time.monotonic() - began)


async def _ask(client: palimpsest.Client, seen: Seen, sessions: int, number: int) -> None:
    chosen = Random(number)
    while True:
        memory = client.session(_name(chosen.randrange(sessions))).memory(NOTES)
        began = time.monotonic()
        try:
            await memory.ask(QUESTION, timeout=300.0)
        except PalimpsestError as error:
            seen.failed[error.reason] = seen.failed.get(error.reason, 0) + 1
            await asyncio.sleep(1)
        else:
            seen.asks.append(time.monotonic() - began)


async def _tell(connection: psycopg.Connection[Any], seen: Seen, started: float) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS * 5)
        behind = await asyncio.to_thread(count_behind, connection)
        _say(
            f"{time.monotonic() - started:.0f} s: {len(seen.acks)} bursts acked,"
            f" {len(seen.asks)} answers, {behind} memories behind"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
