"""Measures how much of their slots workers use: many sessions, a step a chunk, calls of 500 ms.

`CONCURRENCY` memories at once together, once by 1 worker process and once by `MANY`.
`value` is the ideal time of the calls, calls x 500 ms / slots, divided by what it took from
the first append until all is applied: the smaller one of the two. `steady` is the same
between the first and the last tenth of the calls, without beginning and end. Beside them the
CPU that a call takes, in milliseconds by kind of process: where their total is more than
CPUs x 500 / slots, no worker could reach the ideal. `--model-seconds` is for machines
with few of them.
"""

import argparse
import asyncio
import time
from typing import Any

import psycopg

import palimpsest
from verification.benchmarks.load_meters import cpu_by_kind, load_average
from verification.benchmarks.load_stack import (
    NOTES,
    SCHEMA,
    count_behind,
    one,
    stack,
    wait_until,
)

CONCURRENCY = 64
MANY = 3
MODEL_SECONDS = 0.5
#: Sessions for each slot, so that one that is done makes room for another.
SESSIONS_A_SLOT = 2
#: Calls at once while sessions are made.
MAKING = 32
#: No run takes so long, unless something is wrong.
MAX_SECONDS = 1800.0

_SPAN = """
WITH made AS (SELECT created_at AS at, ntile(10) OVER (ORDER BY created_at) AS tenth FROM call)
SELECT extract(epoch FROM max(at) - min(at))::float8, count(*)::int
FROM made WHERE tenth BETWEEN 2 AND 9
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="slots together")
    parser.add_argument("--chunks", type=int, default=12, help="of each session")
    parser.add_argument("--model-seconds", type=float, default=MODEL_SECONDS, help="of a call")
    parser.add_argument("--many", type=int, default=MANY, help="workers of the second run")


def run(
    seconds: float, *, concurrency: int, chunks: int, model_seconds: float, many: int
) -> dict[str, Any]:
    """Measures; see the module. Takes as long as the steps take."""
    with asyncio.Runner() as runner:
        found = {
            f"workers_{workers}": _measured(runner, workers, concurrency, chunks, model_seconds)
            for workers in dict.fromkeys((1, many))
        }
    return {
        "value": min(each["efficiency"] for each in found.values()),
        "goal": ">= 0.85",
        "concurrency": concurrency,
        "model_seconds": model_seconds,
        **found,
        "load_average": load_average(),
    }


def _measured(
    runner: asyncio.Runner, workers: int, concurrency: int, chunks: int, model_seconds: float
) -> dict[str, Any]:
    each = concurrency // workers
    slots = each * workers
    # Rounds without a rest: three workers have a slot less, and the rest would take a round more.
    sessions = slots * SESSIONS_A_SLOT
    with (
        stack(
            workers, model_seconds=model_seconds, PALIMPSEST_WORKER_CONCURRENCY=str(each)
        ) as made,
        made.connect() as connection,
    ):
        runner.run(_make(made.address, sessions))
        connection.execute("TRUNCATE call")
        processes = {**made.processes(), "postgres": made.postmaster()}
        with cpu_by_kind(processes) as cpu:
            began = time.monotonic()
            runner.run(_append(made.address, sessions, chunks))
            _wait(connection)
            took = time.monotonic() - began
        calls = int(one(connection, "SELECT count(*) FROM call"))
        span, steady = connection.execute(_SPAN).fetchone() or (0.0, 0)
    ideal = calls * model_seconds / slots
    return {
        "efficiency": round(ideal / took, 3),
        "steady": round(steady * model_seconds / slots / span, 3),
        "seconds": round(took, 2),
        "ideal_seconds": round(ideal, 2),
        "calls": calls,
        "sessions": sessions,
        "slots": slots,
        "cpu_ms_a_call": {kind: round(one / calls * 1000, 1) for kind, one in cpu.items()},
    }


def _wait(connection: psycopg.Connection[Any]) -> None:
    wait_until("all is applied", lambda: count_behind(connection) == 0, MAX_SECONDS)


def _name(number: int) -> str:
    return f"workers-{number}"


async def _make(address: str, sessions: int) -> None:
    """Sessions, each with a memory that has taken a step: connections and plans are there."""
    left = iter(range(sessions))
    async with palimpsest.connect(address) as client:

        async def some() -> None:
            for number in left:
                session = await client.create_session(_name(number))
                memory = await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1)
                async with session.producer("first") as producer:
                    await producer.append("The ship comes.")
                await memory.get(fully_applied=True, timeout=300)

        await asyncio.gather(*(some() for _ in range(MAKING)))


async def _append(address: str, sessions: int, chunks: int) -> None:
    async def send(client: palimpsest.Client, number: int) -> None:
        async with client.session(_name(number)).producer("bench") as producer:
            for chunk in range(chunks):
                await producer.append(f"{chunk}: the ship lies in another harbour now.")

    async with palimpsest.connect(address) as client:
        await asyncio.gather(*(send(client, number) for number in range(sessions)))
