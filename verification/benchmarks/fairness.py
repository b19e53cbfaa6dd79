"""Measures how long a tenant with many steps delays the single step of another.

Tenant A has `--many` memories that are a step behind each, and one that is thousands of steps
behind. One worker works on them with 1 slot, then two workers with 1 slot each, then one with 8.
Again and again a client of tenant B appends one chunk, after a pause by chance. Measured is the
time from its acknowledgement until the model is called for B's step. A delay is that time less its
median without A's work (`alone_ms`), divided by the time that one of A's steps takes a slot. Once
more with 1 slot, A's steps take `EXPENSIVE` times as long as B's, and then B has as many memories
behind: so the shares of the slot's time are compared. `value` is the p95 of the delays with 1 slot.
`claims`: see `claim_times`.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg

import palimpsest
from service.dispatch.turns import RESERVED_PLACES
from service.domain.values.tenancy import DEFAULT_TENANT
from tests.support.cloning import put_behind
from verification.benchmarks.backlog_rows import (
    OTHER_TENANT,
    clock,
    copy_sessions,
    steps_by_tenant,
    steps_since,
)
from verification.benchmarks.claim_times import claim_times
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
MODEL_SECONDS = 0.25
#: Some of A's steps take so many times as long.
EXPENSIVE = 3
#: What chunks of such steps say.
MARKER = "Everything is dear here."
#: Steps of B that are timed: alone, with 1 slot, and in each other part.
ALONE, PROBES, OTHER_PROBES = 15, 100, 20
#: Steps that A's longest memory is behind.
LONG = 2000
#: So many of A's steps say how long one takes.
MEASURED_STEPS = 12
#: Memories of each tenant, and steps of A, that show the shares.
SHARE_MEMORIES, SHARE_STEPS = 1000, 12
#: Nothing takes so long, unless something is wrong.
MAX_SECONDS = 120.0

#: When the model was called for the newest step.
_STARTED = """
SELECT extract(epoch FROM created_at - make_interval(secs => latency_ms / 1000.0))::float8
FROM call WHERE session_key = %s ORDER BY created_at DESC LIMIT 1
"""
#: Only steps take the slots: one of A's sessions is not indexed when B comes.
_INDEXED = "UPDATE session SET has_unindexed = false WHERE tenant_id = %s AND has_unindexed"
_APPLIED = "UPDATE memory SET has_work = false WHERE tenant_id = %s AND has_work"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--many", type=int, default=10_000, help="memories of A with a step each")
    parser.add_argument("--model-seconds", type=float, default=MODEL_SECONDS, help="of a step")
    parser.add_argument("--probes", type=int, default=PROBES, help="steps of B with 1 slot")


def run(seconds: float, *, many: int, model_seconds: float, probes: int) -> dict[str, Any]:
    """Measures; see the module. The numbers of steps say how long it takes, not `seconds`."""
    expensive = Habit(marker=MARKER, seconds=model_seconds * EXPENSIVE, reply=UPDATE)
    with (
        stack(0, model_seconds=model_seconds, habits=[expensive]) as made,
        made.connect() as connection,
        asyncio.Runner() as runner,
    ):
        found = _Tenants(made, connection, runner, model_seconds).measure(many, probes)
        claims = claim_times(connection, made.url, _say)
    return {
        "value": found["slots_1"]["p95"],
        "goal": "<= 1",
        "model_seconds": model_seconds,
        **found,
        "claims": claims,
        "load_average": load_average(),
    }


class _Tenants:
    """The work of two tenants. B is the default tenant, which clients reach; A has copies."""

    def __init__(
        self,
        made: Stack,
        connection: psycopg.Connection[Any],
        runner: asyncio.Runner,
        model_seconds: float,
    ) -> None:
        self._made = made
        self._connection = connection
        self._runner = runner
        self._model_seconds = model_seconds
        #: What a step of B takes until it calls the model when A has no work.
        self._alone = 0.0

    def measure(self, many: int, probes: int) -> dict[str, Any]:
        """Measures all parts, one after another."""
        worker = self._made.add_worker(PALIMPSEST_WORKER_CONCURRENCY="1")
        self._runner.run(_make(self._made.address, {"made": "The ship comes.", "dear": MARKER}))
        alone = self._times(ALONE, self._model_seconds)
        self._alone = statistics.median(alone)
        worker.stop()
        self._copy_long()
        self._copy("made", many, OTHER_TENANT)
        found: dict[str, Any] = {
            "alone_ms": {
                "p50": round(self._alone * 1000, 1),
                "max": round(max(alone) * 1000, 1),
            },
            "slots_1": self._part(probes),
            "workers_2": self._part(OTHER_PROBES, workers=2),
            "slots_8": self._part(OTHER_PROBES, slots=8),
        }
        assert count_behind(self._connection) > 0, "A had work all the time"
        self._connection.execute(_APPLIED, (OTHER_TENANT,))
        self._copy("dear", SHARE_MEMORIES, OTHER_TENANT)
        found["expensive"] = self._part(OTHER_PROBES)
        found["shares"] = self._shares(
            found["expensive"]["step_of_A_ms"] / 1000, found["slots_1"]["step_of_A_ms"] / 1000
        )
        return found

    def _copy(self, source: str, count: int, tenant_id: Any) -> None:
        copies = copy_sessions(
            self._connection, [source], count, _say, name=f"{source}-copy", tenant_id=tenant_id
        )
        put_behind(self._connection, copies)
        self._connection.execute(_INDEXED, (tenant_id,))
        self._connection.execute("VACUUM ANALYZE")

    def _copy_long(self) -> None:
        """Makes the memory of A that is `LONG` steps behind."""
        self._runner.run(_append_long(self._made.address))
        copy_sessions(self._connection, ["long"], 1, _say, name="long-copy", tenant_id=OTHER_TENANT)
        self._runner.run(_delete_long(self._made.address))

    def _part(self, probes: int, *, workers: int = 1, slots: int = 1) -> dict[str, Any]:
        """Times steps of B while workers work for A."""
        settings = {"PALIMPSEST_WORKER_CONCURRENCY": str(slots)}
        running = [self._made.add_worker(**settings) for _ in range(workers)]
        # Some slots are kept free of work that no client waits for.
        step = self._step_seconds(workers * (slots - slots // RESERVED_PLACES))
        delays = [(each - self._alone) / step for each in self._times(probes, step)]
        for each in running:
            each.stop()
        found = {
            "p50": round(statistics.median(delays), 3),
            "p95": round(statistics.quantiles(delays, n=20)[-1], 3),
            "max": round(max(delays), 3),
            "steps": len(delays),
            "step_of_A_ms": round(step * 1000, 1),
        }
        _say(f"{workers} workers, {slots} slots: {found}")
        return found

    def _step_seconds(self, slots: int) -> float:
        """Returns how long one of A's steps takes a slot, while B has no work."""
        count = max(MEASURED_STEPS, 2 * slots)
        # The first ones come with imports and plans.
        self._steps_since(clock(self._connection), count)
        steps, seconds = self._steps_since(clock(self._connection), count)
        return seconds / (steps - 1) * slots

    def _steps_since(self, since: Any, count: int) -> tuple[int, float]:
        """Waits until so many steps were committed; returns as `steps_since`."""
        wait_until(
            "steps are made", lambda: steps_since(self._connection, since)[0] > count, MAX_SECONDS
        )
        return steps_since(self._connection, since)

    def _times(self, count: int, step: float) -> Sequence[float]:
        """Returns the seconds from an append until its step calls the model, for each of some.

        They come at any time of one of A's steps, which take so many seconds.
        """
        return self._runner.run(self._probe(count, step))

    async def _probe(self, count: int, step: float) -> Sequence[float]:
        took: list[float] = []
        async with palimpsest.connect(self._made.address) as client:
            session = await client.create_session("single", exist_ok=True)
            memory = await session.create_memory(
                NOTES, schema_source=SCHEMA, chunk_tokens=1, exist_ok=True
            )
            key = one(self._connection, "SELECT session_key FROM session WHERE name = 'single'")
            # The first one makes what is there from then on.
            for number in range(count + 1):
                await asyncio.sleep(random.uniform(0.0, 2.0) * step)
                appended = await session.append(f"{number}: the ship lies in another harbour now.")
                acknowledged = time.time()
                await memory.get(after=appended.read_token, timeout=MAX_SECONDS)
                took.append(one(self._connection, _STARTED, (key,)) - acknowledged)
        return took[1:]

    def _shares(self, step_of_a: float, step_of_b: float) -> dict[str, Any]:
        """Returns what each tenant gets of one slot while both have more work than is done.

        Their steps take a slot so many seconds.
        """
        worker = self._made.add_worker(PALIMPSEST_WORKER_CONCURRENCY="1")
        self._copy("made", SHARE_MEMORIES, DEFAULT_TENANT)
        since = clock(self._connection)
        enough = partial(self._has_steps, since)
        wait_until("A's expensive steps are made", enough, MAX_SECONDS)
        steps = steps_by_tenant(self._connection, since)
        worker.stop()
        spent = {
            "A": steps[OTHER_TENANT] * step_of_a,
            "B": steps.get(DEFAULT_TENANT, 0) * step_of_b,
        }
        return {
            "slot_seconds": {name: round(each, 1) for name, each in spent.items()},
            "share_of_A": round(spent["A"] / sum(spent.values()), 3),
        }

    def _has_steps(self, since: Any) -> bool:
        return steps_by_tenant(self._connection, since).get(OTHER_TENANT, 0) >= SHARE_STEPS


async def _make(address: str, sessions: dict[str, str]) -> None:
    """Makes the sessions that are copied, with a memory each that has had its first step."""
    async with palimpsest.connect(address) as client:
        for name, text in sessions.items():
            session = await client.create_session(name)
            memory = await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1)
            await session.append(text)
            await memory.get(fully_applied=True, timeout=MAX_SECONDS)


async def _append_long(address: str) -> None:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("long")
        await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1)
        async with session.producer("bench") as producer:
            for chunk in range(LONG):
                await producer.append(f"{chunk}: the ship lies in another harbour now.")


async def _delete_long(address: str) -> None:
    async with palimpsest.connect(address) as client:
        await client.session("long").delete()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
