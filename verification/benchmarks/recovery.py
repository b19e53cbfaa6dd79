"""Measures how long until work continues after a fault, with the default configuration.

- `worker`: kill -9 of a worker that has `HELD` memories in hand, until another worker commits
  the next revision of each. Every memory is a sample.
- `hint`: chunks whose hint is lost, from their ack to the first revision that has them. The
  connections on which processes listen are frozen, so that only the workers' look finds the work.
- `postgres`: an immediate stop of PostgreSQL while chunks are appended, until the first ack of
  a chunk that was appended after it. `start_ms` is what the server itself takes until it takes
  connections: that is the floor.

`value` is the largest of the three measured figures divided by its goal.
"""

import argparse
import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg

import palimpsest
from palimpsest import sync
from verification.benchmarks.load_meters import load_average, percentiles
from verification.benchmarks.load_stack import (
    NOTES,
    SCHEMA,
    Stack,
    stack,
    wait_until,
    wait_until_idle,
)

#: Memories that the worker which is killed has in hand; it can have 16.
HELD = 8
#: Goals in seconds: the p99 of each.
WORKER_GOAL, HINT_GOAL, POSTGRES_GOAL = 20.0, 3.0, 10.0
#: What the model takes for memories under way: a worker is killed in the midst of its calls.
MODEL_SECONDS = 1.0
#: Chunks of such a memory: far more than are applied until it is measured.
CHUNKS = 1000
#: Seconds between two looks at a revision.
LOOK_SECONDS = 0.02
#: Nothing takes so long, unless something is wrong.
MAX_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for how often each fault occurs."""
    parser.add_argument("--kills", type=int, default=3, help="workers to kill")
    parser.add_argument("--hints", type=int, default=20, help="hints to lose")
    parser.add_argument("--restarts", type=int, default=20, help="of PostgreSQL")


def run(seconds: float, *, kills: int, hints: int, restarts: int) -> dict[str, Any]:
    """Measures; see the module. Takes as long as it takes."""
    with asyncio.Runner() as runner, stack(1, model_seconds=MODEL_SECONDS) as made:
        worker = kill_workers(made, runner, kills)
        restart, starts = restart_postgres(made, restarts)
    with (
        asyncio.Runner() as runner,
        stack(1, model_seconds=0.0, wake_ups_are_lost=True) as made,
    ):
        hint = lose_hints(made, runner, hints)
    found: dict[str, dict[str, Any]] = {
        "worker": {**percentiles(worker), "goal_ms": WORKER_GOAL * 1000},
        "hint": {**percentiles(hint), "goal_ms": HINT_GOAL * 1000},
        "postgres": {
            **percentiles(restart),
            "goal_ms": POSTGRES_GOAL * 1000,
            "start_ms": percentiles(starts).get("p50_ms"),
        },
    }
    shares = [each["p99_ms"] / each["goal_ms"] for each in found.values() if each["count"]]
    return {
        "value": round(max(shares), 3),
        "goal": "<= 1",
        **found,
        "load_average": load_average(),
    }


_REVISIONS = """
SELECT s.name, m.revision FROM memory m JOIN session s USING (session_key)
WHERE s.name LIKE %s
"""


def _revisions(connection: psycopg.Connection[Any], prefix: str) -> dict[str, int]:
    return dict(connection.execute(_REVISIONS, (f"{prefix}-%",)).fetchall())


def kill_workers(made: Stack, runner: asyncio.Runner, kills: int) -> list[float]:
    """Measures from the kill of a worker to the next revision of each of its memories."""
    took: list[float] = []
    with made.connect() as connection:
        for number in range(kills):
            prefix = f"held-{number}"
            runner.run(_start(made.address, prefix))
            _wait_for_all(connection, prefix)
            doomed = made.workers[-1]
            # It has nothing to do: all are in hand.
            wait_until_idle(made.add_worker())
            killed = time.monotonic()
            doomed.kill()
            took += _gone_on(connection, prefix, killed)
            runner.run(_end(made.address, prefix))
    return took


def _wait_for_all(connection: psycopg.Connection[Any], prefix: str) -> None:
    """Until the worker has them in hand."""
    wait_until(
        "each has a revision",
        lambda: min(_revisions(connection, prefix).values()) > 0,
        MAX_SECONDS,
    )


def _gone_on(connection: psycopg.Connection[Any], prefix: str, since: float) -> list[float]:
    """Seconds until each memory has a revision more."""
    before = _revisions(connection, prefix)
    took: dict[str, float] = {}
    while len(took) < len(before):
        now = _revisions(connection, prefix)
        for name, revision in now.items():
            if revision > before[name]:
                took.setdefault(name, time.monotonic() - since)
        assert time.monotonic() - since < MAX_SECONDS, "another worker goes on"
        time.sleep(LOOK_SECONDS)
    return list(took.values())


async def _start(address: str, prefix: str) -> None:
    """Memories with more to do than there is time for."""
    async with palimpsest.connect(address) as client:
        for number in range(HELD):
            session = await client.create_session(f"{prefix}-{number}")
            async with session.producer("p") as producer:
                for chunk in range(CHUNKS):
                    await producer.append(f"{chunk}: the ship lies elsewhere.")
            await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1)


async def _end(address: str, prefix: str) -> None:
    """Lets their memories rest: nothing may be spent on them any more."""
    async with palimpsest.connect(address) as client:
        for number in range(HELD):
            await client.session(f"{prefix}-{number}").set_budget("total", limit_tokens=0)


def lose_hints(made: Stack, runner: asyncio.Runner, hints: int) -> list[float]:
    """Measures from the ack of a chunk whose hint is lost to the revision that has it."""
    chosen = Random(1)
    took: list[float] = []

    async def measure() -> None:
        async with palimpsest.connect(made.address) as client:
            session = await client.create_session("lost")
            memory = await session.create_memory(NOTES, schema_source=SCHEMA)
            async with session.producer("p") as producer:
                for number in range(hints + 1):
                    # Anywhere between two looks of a worker.
                    await asyncio.sleep(chosen.uniform(0, 2))
                    await producer.append(f"{number}: the ship lies elsewhere.")
                    ack = await producer.flush()
                    began = time.monotonic()
                    assert ack is not None, "it was appended"
                    await memory.get(after=ack.read_token, timeout=MAX_SECONDS)
                    # The first one waits for imports and connections.
                    if number:
                        took.append(time.monotonic() - began)

    runner.run(measure())
    return took


def restart_postgres(made: Stack, restarts: int) -> tuple[list[float], list[float]]:
    """Measures from the stop of PostgreSQL to the first ack after it, and to its start."""
    took: list[float] = []
    starts: list[float] = []
    with sync.Client(made.address) as client:
        client.create_session("restarts")
        with _appending(client) as acks:
            for _ in range(restarts):
                acks.wait_for(time.monotonic())
                process = made.servers.postgres._process
                assert process is not None, "it runs"
                stopped = time.monotonic()
                # An immediate stop: nothing is flushed, the log is replayed.
                process.send_signal(signal.SIGQUIT)
                process.wait()
                gone = time.monotonic()
                made.servers.postgres.restart()
                starts.append(time.monotonic() - gone)
                took.append(acks.wait_for(gone) - stopped)
    return took, starts


class _Acks:
    """Acks of chunks that are appended one after the other."""

    def __init__(self) -> None:
        self._some = threading.Condition()
        #: When the chunk was appended that was acked last, and when that was.
        self._last = (0.0, 0.0)
        self.is_ended = False

    def add(self, appended: float) -> None:
        """A chunk that was appended then is durable."""
        with self._some:
            self._last = (appended, time.monotonic())
            self._some.notify_all()

    def wait_for(self, since: float) -> float:
        """Returns when the first chunk was acked that was appended after `since`."""
        with self._some:
            found = self._some.wait_for(lambda: self._last[0] > since, MAX_SECONDS)
            assert found, "appends go on"
            return self._last[1]


@contextmanager
def _appending(client: sync.Client) -> Iterator[_Acks]:
    """Appends a chunk whenever the one before it is acked, in a thread."""
    acks = _Acks()

    def work() -> None:
        with client.session("restarts").producer("p", give_up_seconds=MAX_SECONDS) as producer:
            while not acks.is_ended:
                appended = time.monotonic()
                producer.append("The ship lies elsewhere.")
                producer.flush()
                acks.add(appended)
                time.sleep(LOOK_SECONDS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield acks
    finally:
        acks.is_ended = True
        thread.join()
