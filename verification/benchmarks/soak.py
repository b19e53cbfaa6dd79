"""Runs steady mixed traffic for a while, and measures whether any process grows by it.

Agents append steps to sessions that each have a PRISM memory and a state memory; others read
the memory, its log and its working context, search, ask, and watch (one watch stays, others
come and go). The memory of each process is sampled all the time. `value` is the growth of the
one that grows most, in megabytes a minute: the median slope between all pairs of samples
after the warm-up (Theil-Sen), which a step or a spike leaves alone. Less than 0.1 counts as
none: what a log costs a process that reads it is bounded, and caches are full by then.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any

import palimpsest
from palimpsest import PalimpsestError
from verification.benchmarks.load_meters import Sizes, load_average, sampled, slope
from verification.benchmarks.load_stack import NOTES, QUESTION, SCHEMA, Stack, stack
from verification.benchmarks.slow_model import Habit

MODEL_SECONDS = 0.1
STATE = "state"
HABITS = (Habit(marker="[STEPS]", seconds=MODEL_SECONDS, reply="The ship is in a harbour."),)
#: Steps that a compression takes.
PERIOD = 6
SESSIONS = 10
#: Seconds between two operations of one kind in one session, on average.
PAUSE_SECONDS = 2.0
#: Part of the time after which memory counts.
WARM_UP = 0.3
SAMPLE_SECONDS = 5.0
#: Samples that slopes are taken between: more are averaged into so many.
SLOPE_POINTS = 200
#: Everything answers within that.
MAX_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for time and load."""
    parser.add_argument("--minutes", type=float, default=20.0, help="of traffic")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="at once")
    parser.add_argument("--pause-seconds", type=float, default=PAUSE_SECONDS, help="of each")


def run(seconds: float, *, minutes: float, sessions: int, pause_seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    with (
        asyncio.Runner() as runner,
        stack(1, model_seconds=MODEL_SECONDS, habits=HABITS) as made,
    ):
        return measure(
            made, runner, minutes=minutes, sessions=sessions, pause_seconds=pause_seconds
        )


def measure(
    made: Stack, runner: asyncio.Runner, *, minutes: float, sessions: int, pause_seconds: float
) -> dict[str, Any]:
    """Measures on a service that runs, with a model that has the `HABITS`."""
    names = [f"soak-{number}" for number in range(sessions)]
    runner.run(_prepare(made.address, names))
    with sampled(made.processes(), made.postmaster(), SAMPLE_SECONDS) as sizes:
        since = time.monotonic() + minutes * 60 * WARM_UP
        done = runner.run(_traffic(made.address, names, minutes * 60, pause_seconds))
    growth = {
        name: round(slope(_points(sizes, name, since)) * 60 / 1e6, 3)
        for name in sizes.of
        if name != "postgres"
    }
    return {
        "value": max(growth.values()),
        "goal": "< 0.1",
        "growth_mb_a_minute": growth,
        "memory": sizes.figures(),
        "every_minute_mb": _every_minute(sizes),
        "minutes": minutes,
        "done": dict(sorted(done.items())),
        "load_average": load_average(),
    }


def _points(sizes: Sizes, name: str, since: float) -> list[tuple[float, float]]:
    """Returns points after the warm-up, averaging a few where there are many."""
    seen = [each for each in sizes.of[name] if each[0] >= since] or sizes.of[name][-2:]
    each = -(-len(seen) // SLOPE_POINTS)
    groups = [seen[at : at + each] for at in range(0, len(seen), each)]
    return [
        (sum(at for at, _ in group) / len(group), sum(size for _, size in group) / len(group))
        for group in groups
    ]


def _every_minute(sizes: Sizes) -> dict[str, list[float]]:
    """Returns what each had at the beginning, and after each minute."""
    every = round(60 / SAMPLE_SECONDS)
    return {
        name: [round(size / 1e6, 1) for _, size in seen[::every]] for name, seen in sizes.of.items()
    }


async def _prepare(address: str, names: Sequence[str]) -> None:
    """Sessions with their memories; a step of each is done, so that all processes are awake."""
    async with palimpsest.connect(address) as client:
        for name in names:
            session = await client.create_session(name)
            memory = await session.create_memory(NOTES, schema_source=SCHEMA)
            await session.create_state(STATE, period=PERIOD)
            async with session.producer("first") as producer:
                await producer.append("The ship comes.")
            await memory.get(fully_applied=True, timeout=2 * MAX_SECONDS)


async def _traffic(
    address: str, names: Sequence[str], seconds: float, pause: float
) -> Counter[str]:
    """Returns how much of each kind was done; what failed, by its reason."""
    done: Counter[str] = Counter()
    until = time.monotonic() + seconds
    async with palimpsest.connect(address) as client:
        tasks = [
            asyncio.create_task(job)
            for session in map(client.session, names)
            for job in (
                *_operations(session, done, pause),
                _append(session, done, pause),
                _watch(session, done),
            )
        ]
        while time.monotonic() < until:
            await asyncio.sleep(min(60.0, max(until - time.monotonic(), 0)))
            print(f"{until - time.monotonic():.0f} s left: {dict(done)}", file=sys.stderr)
            for task in tasks:
                if task.done():
                    # Nothing of this ends by itself, unless something is wrong.
                    await task
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return done


def _operations(
    session: palimpsest.Session, done: Counter[str], pause: float
) -> list[Coroutine[Any, Any, None]]:
    memory, state = session.memory(NOTES), session.state(STATE)

    async def read_log() -> None:
        head = (await session.info()).head
        async for _ in session.chunks(from_position=max(head - 20, 1)):
            pass

    async def watch() -> None:
        revision = (await memory.get()).revision
        async with memory.watch(after_revision=max(revision - 3, 0)) as watched:
            async with asyncio.timeout(MAX_SECONDS):
                await anext(watched)

    kinds: dict[str, tuple[Callable[[], Awaitable[object]], float]] = {
        "read": (memory.get, 1),
        "read_fresh": (lambda: memory.get(fully_applied=True, timeout=MAX_SECONDS), 2),
        "read_log": (read_log, 2),
        "context": (state.context, 1),
        "search": (lambda: session.search("ship harbour"), 1),
        "ask": (lambda: memory.ask(QUESTION, timeout=MAX_SECONDS), 4),
        "watch_anew": (watch, 2),
    }
    return [_again(name, work, pause * slower, done) for name, (work, slower) in kinds.items()]


async def _again(
    name: str, work: Callable[[], Awaitable[object]], pause: float, done: Counter[str]
) -> None:
    chosen = Random(name)
    while True:
        await asyncio.sleep(chosen.uniform(0, 2 * pause))
        try:
            await work()
        except PalimpsestError as error:
            done[f"{name}: {error.reason or type(error).__name__}"] += 1
        else:
            done[name] += 1


async def _append(session: palimpsest.Session, done: Counter[str], pause: float) -> None:
    chosen = Random(session.id)
    async with session.producer("agent") as producer:
        while True:
            await asyncio.sleep(chosen.uniform(0, 2 * pause))
            await producer.append_step(
                observation=f"The ship lies in harbour {done['append']}.",
                thought="It goes on soon.",
                action="wait",
            )
            await producer.flush()
            done["append"] += 1


async def _watch(session: palimpsest.Session, done: Counter[str]) -> None:
    async with session.memory(NOTES).watch(after_revision=0) as watched:
        async for _ in watched:
            done["watched"] += 1
