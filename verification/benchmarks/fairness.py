"""Measures how long a tenant with many steps delays the single step of another.

Tenant A has `--many` memories that are a step behind each, and one that is thousands of steps
behind. One worker works on them with 1 slot, then with 8, then two workers with 1 slot each. Again
and again a step of tenant B becomes ready, and is timed from then on until its revision is
committed; before A has work the same is done alone. A delay is the time with A's work less the
median alone, divided by the time of one of A's steps. Once more with 1 slot, A's steps take
`EXPENSIVE` times as long as B's, and B has as much work as A: then the shares of the slot's time
are compared as well. `value` is the largest p95 of the delays. `claims` compares what claiming one
item takes, while one tenant has all work, with what it took in the release before, by turns.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

import palimpsest
from service.dispatch.turns import RESERVED_PLACES, Turns
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.memories import queue
from storage.memories.queue import WorkClass
from storage.tables import SWEEPER_ROLE
from tests.support.cloning import Copy, put_behind
from verification.benchmarks.backlog_rows import OTHER_TENANT, clock, copy_sessions, steps_by_tenant
from verification.benchmarks.load_meters import load_average
from verification.benchmarks.load_stack import (
    NOTES,
    SCHEMA,
    UPDATE,
    Stack,
    count_behind,
    one,
    stack,
    wait_until,
)
from verification.benchmarks.slow_model import Habit

#: What a step takes with the model.
MODEL_SECONDS = 0.5
#: A step of A takes so many times as long as one of B where that is said.
EXPENSIVE = 4
#: What chunks of such steps say.
MARKER = "Everything is dear here."
#: Steps of B that are timed alone, and with A's work at least.
ALONE, LEAST = 8, 20
#: Memories of B: each step is one of another memory.
SINGLE = 64
#: Steps that A's longest memory is behind.
LONG = 2000
#: For so many of A's expensive steps the shares are measured.
SHARE_STEPS = 16
#: How often claims are timed.
CLAIMS = 300
#: Nothing takes so long, unless something is wrong.
MAX_SECONDS = 120.0

_STEP = """
SELECT extract(epoch FROM max(created_at) - %s)::float8 FROM revision
WHERE session_key = %s AND created_at >= %s AND to_position > from_position
"""
#: How the release before claimed one item of a worker that has one slot free.
_CLAIM_BEFORE = """
SELECT lane, kind, tenant_id, session_key, item_id FROM take_work(
    %(worker)s, %(lanes_before)s::text[], %(quotas)s::integer[], %(after_before)s::uuid[], 1,
    %(bounded)s::text[], %(bound)s::integer, %(recent_seconds)s, %(scanned)s::integer)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--many", type=int, default=10_000, help="memories of A with a step each")
    parser.add_argument("--model-seconds", type=float, default=MODEL_SECONDS, help="of a step")


def run(seconds: float, *, many: int, model_seconds: float) -> dict[str, Any]:
    """Measures, each part for `seconds`; see the module."""
    found: dict[str, Any] = {}
    with asyncio.Runner() as runner:
        for name, workers, slots in (("slots_1", 1, 1), ("slots_8", 1, 8), ("workers_2", 2, 1)):
            part = _Part(runner, seconds, many, model_seconds, workers=workers, slots=slots)
            found[name] = part.delays()
            _say(f"{name}: {found[name]}")
        found["expensive"] = _Part(runner, seconds, many, model_seconds).shares()
    claims = found["slots_1"].pop("claims")
    return {
        "value": max(each["p95"] for each in found.values()),
        "goal": "<= 1",
        "model_seconds": model_seconds,
        **found,
        "claims": claims,
        "load_average": load_average(),
    }


class _Part:
    """A service of its own, with the work of two tenants."""

    def __init__(
        self,
        runner: asyncio.Runner,
        seconds: float,
        many: int,
        model_seconds: float,
        *,
        workers: int = 1,
        slots: int = 1,
    ) -> None:
        self._runner = runner
        self._seconds = seconds
        self._many = many
        self._model_seconds = model_seconds
        self._workers = workers
        self._slots = slots

    def delays(self) -> dict[str, Any]:
        """Measures the delay of single steps of B, with steps that take as long as A's."""
        with self._stack(self._model_seconds) as made, made.connect() as connection:
            single = self._prepare(made, connection)
            copies = copy_sessions(connection, ["made"], self._many, _say, name="many")
            workers = [made.add_worker() for _ in range(self._workers)]
            alone = statistics.median(self._timed(connection, single, ALONE))
            for each in workers:
                each.stop()
            put_behind(connection, copies)
            is_first = self._slots * self._workers == 1
            claims = {"claims": _claims(connection, made.url)} if is_first else {}
            for _ in range(self._workers):
                made.add_worker()
            self._runner.run(_append(made.address, LONG))
            self._until_busy(connection)
            took = self._timed(connection, single, LEAST, self._seconds)
            left = count_behind(connection)
        assert left > self._workers * self._slots, "A had work all the time"
        return {**_delays(took, alone, self._model_seconds), "memories_left": left, **claims}

    def shares(self) -> dict[str, Any]:
        """Measures the delay of B's steps with expensive ones of A, and then their shares."""
        expensive = self._model_seconds * EXPENSIVE
        with self._stack(expensive) as made, made.connect() as connection:
            single = self._prepare(made, connection)
            cheap = copy_sessions(
                connection, ["made"], self._many, _say, name="cheap", tenant_id=OTHER_TENANT
            )
            made.add_worker()
            alone = statistics.median(self._timed(connection, single, ALONE))
            self._runner.run(_append(made.address, LONG, f" {MARKER}"))
            self._until_busy(connection)
            took = self._timed(connection, single, LEAST // 2, self._seconds)
            put_behind(connection, cheap)
            began = clock(connection)
            time.sleep(max(self._seconds, SHARE_STEPS * expensive))
            steps = steps_by_tenant(connection, began)
        spent = {
            "A": steps.get(DEFAULT_TENANT, 0) * expensive,
            "B": steps.get(OTHER_TENANT, 0) * self._model_seconds,
        }
        return {
            **_delays(took, alone, expensive),
            "slot_seconds": {name: round(each, 1) for name, each in spent.items()},
            "share_of_A": round(spent["A"] / sum(spent.values()), 3),
        }

    def _stack(self, expensive: float) -> AbstractContextManager[Stack]:
        return stack(
            0,
            model_seconds=self._model_seconds,
            habits=[Habit(marker=MARKER, seconds=expensive, reply=UPDATE)],
            PALIMPSEST_WORKER_CONCURRENCY=str(self._slots),
        )

    def _prepare(self, made: Stack, connection: psycopg.Connection[Any]) -> Iterator[Copy]:
        """Makes the session that is copied, and the memories of B."""
        worker = made.add_worker()
        self._runner.run(_make(made.address))
        worker.stop()
        return cycle(
            copy_sessions(connection, ["made"], SINGLE, _say, name="single", tenant_id=OTHER_TENANT)
        )

    def _until_busy(self, connection: psycopg.Connection[Any]) -> None:
        # Some slots are kept free of work that no client waits for.
        taken = self._workers * (self._slots - self._slots // RESERVED_PLACES)
        wait_until(
            "all slots are taken",
            lambda: one(connection, "SELECT count(*) FROM claim") >= taken,
            MAX_SECONDS,
        )

    def _timed(
        self,
        connection: psycopg.Connection[Any],
        single: Iterator[Copy],
        least: int,
        seconds: float = 0,
    ) -> Sequence[float]:
        """Times steps of B, each after a pause by chance."""
        took: list[float] = []
        until = time.monotonic() + seconds
        while len(took) < least or time.monotonic() < until:
            time.sleep(random.uniform(0.5, 1.5) * self._model_seconds)
            copy = next(single)
            began = clock(connection)
            put_behind(connection, [copy])
            connection.execute("SELECT pg_notify(%s, '')", (queue.CHANNEL,))
            ended = partial(one, connection, _STEP, (began, copy.key, began))
            wait_until("the step is committed", partial(_has_ended, ended), MAX_SECONDS)
            took.append(ended())
        return took


def _delays(took: Sequence[float], alone: float, step: float) -> dict[str, Any]:
    """Returns the delays, in times of one step of A."""
    delays = [(each - alone) / step for each in took]
    return {
        "p50": round(statistics.median(delays), 3),
        "p95": round(statistics.quantiles(delays, n=20)[-1], 3),
        "max": round(max(delays), 3),
        "steps": len(took),
        "alone_ms": round(alone * 1000, 1),
    }


def _claims(connection: psycopg.Connection[Any], url: str) -> dict[str, Any]:
    """Times claims of one item, each of the same queue, as this release and the one before did."""
    before = ("wanted", *(one.value for one in WorkClass))
    values = {
        **queue.take_values(uuid4(), done=(), scan=Turns(1).scan(1, ())),
        "lanes_before": list(before),
        "quotas": [1] * len(before),
        "after_before": [DEFAULT_TENANT] * len(before),
    }
    took: dict[str, list[float]] = {queue.TAKE: [], _CLAIM_BEFORE: []}
    # As after the first claim, which is undone below.
    connection.execute(
        "INSERT INTO tenant_turn VALUES (%s, 0, 1, 0) ON CONFLICT DO NOTHING", (DEFAULT_TENANT,)
    )
    connection.execute("VACUUM ANALYZE")
    role = sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(SWEEPER_ROLE))
    with psycopg.connect(url, autocommit=True, options="-c role=palimpsest_app") as claiming:
        for _ in range(CLAIMS):
            for statement, each in took.items():
                with claiming.transaction(force_rollback=True):
                    claiming.execute(role)
                    began = time.perf_counter()
                    claiming.execute(statement, values, prepare=True)
                    each.append(time.perf_counter() - began)
    # Without those that made the plans.
    now, then = (statistics.median(each[CLAIMS // 10 :]) for each in took.values())
    return {
        "ms": round(now * 1000, 3),
        "before_ms": round(then * 1000, 3),
        "ratio": round(now / then, 3),
    }


async def _make(address: str) -> None:
    """Makes the session that is copied, with a memory that has had its first step."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("made")
        memory = await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1)
        await session.append("The ship comes.")
        await memory.get(fully_applied=True, timeout=MAX_SECONDS)


async def _append(address: str, chunks: int, words: str = "") -> None:
    """Makes the memory of A that is so many steps behind."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("long")
        await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1)
        async with session.producer("bench") as producer:
            for chunk in range(chunks):
                await producer.append(f"{chunk}: the ship lies in another harbour now.{words}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _has_ended(look: Callable[[], object]) -> bool:
    return look() is not None
