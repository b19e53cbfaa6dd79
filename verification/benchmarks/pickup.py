"""Measures how soon a chunk is taken up that arrives soon after a step, or after a pause.

One quiet API and one worker, whose model takes a time of its own. A client appends a chunk,
reads the memory that has it, waits for a while and appends the next one. Measured is from the
append until it is applied, without the time of the model's call: as a client sees it that
reads with the ack's token, or that polls the memory (`looked`). `value` is
the largest median of those that came within a second after a step, in milliseconds.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import palimpsest
from palimpsest import Appended
from verification.benchmarks.load_meters import load_average, percentiles
from verification.benchmarks.load_stack import NOTES, SCHEMA, one, stack

#: What the model takes for a reply, each with a service of its own.
MODEL_SECONDS = (0.0, 0.2)
#: Between a step that is seen and the next append: a tight loop.
TIGHT = (0.005, 0.05, 0.2, 0.5, 0.9)
#: After such a pause.
REST = 3.0
PAUSES = (*TIGHT, REST)
#: The pauses of a round, in which they come.
ROUND = (*TIGHT, *TIGHT, REST)
#: Chunks before those that count: plans, connections and imports are there.
WARM = 10
#: At least, of each pause.
LEAST = 5
#: Between two looks.
LOOK_SECONDS = 0.005
#: A chunk is applied by then, unless something is wrong.
MAX_SECONDS = 120.0

_STORED = """
SELECT percentile_cont(0.5) WITHIN GROUP (
    ORDER BY extract(epoch FROM r.created_at - c.created_at))::float8
FROM revision r JOIN chunk c ON c.session_key = r.session_key AND c.position = r.to_position
WHERE r.kind = 'step'
"""

#: Waits until a position is applied.
Wait = Callable[[palimpsest.Memory, Appended], Awaitable[None]]


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module. Takes about `seconds` for each model, and at least a minute."""
    with asyncio.Runner() as runner:
        found = {
            f"model_{round(each * 1000)}_ms": _measured(runner, each, seconds)
            for each in MODEL_SECONDS
        }
    tight = [
        figures["p50_ms"]
        for models in found.values()
        for ways in models["ways"].values()
        for pause, figures in ways.items()
        if int(pause) < REST * 1000
    ]
    return {"value": max(tight), "goal": "<= 100", **found, "load_average": load_average()}


def _measured(runner: asyncio.Runner, model_seconds: float, seconds: float) -> dict[str, Any]:
    with stack(1, model_seconds=model_seconds) as made, made.connect() as connection:
        took = runner.run(_loops(made.address, seconds))
        calls = int(one(connection, "SELECT count(*) FROM call"))
        steps = int(one(connection, "SELECT count(*) FROM revision WHERE kind = 'step'"))
        stored = one(connection, _STORED) * 1000 - model_seconds * 1000
    return {
        "ways": {
            way: {
                str(round(pause * 1000)): percentiles([one - model_seconds for one in each])
                for pause, each in pauses.items()
            }
            for way, pauses in took.items()
        },
        # By the database's clock, without the client and its notification.
        "stored_p50_ms": round(stored, 1),
        # One, or what a model took is more than was taken off.
        "calls_a_step": round(calls / steps, 2),
    }


async def _loops(address: str, seconds: float) -> Mapping[str, dict[float, list[float]]]:
    """Seconds from append to applied, by the way of waiting and by the pause before."""
    took: dict[str, dict[float, list[float]]] = {
        way: {pause: [] for pause in PAUSES} for way in _WAYS
    }
    async with palimpsest.connect(address) as client:
        session = await client.create_session("pickup")
        memory = await session.create_memory(NOTES, schema_source=SCHEMA)
        for number in range(WARM):
            await _timed(session, memory, number, _by_token)
        until = time.monotonic() + seconds
        rounds = 0
        while rounds < LEAST or time.monotonic() < until:
            # By turns, so that what slows the machine down slows all of them.
            for pause in ROUND:
                for way, wait in _WAYS.items():
                    await asyncio.sleep(pause)
                    took[way][pause].append(await _timed(session, memory, rounds, wait))
            rounds += 1
            _say(f"round {rounds}")
    return took


async def _timed(
    session: palimpsest.Session, memory: palimpsest.Memory, number: int, wait: Wait
) -> float:
    began = time.perf_counter()
    appended = await session.append(f"{number}: the ship lies in another harbour now.")
    await asyncio.wait_for(wait(memory, appended), MAX_SECONDS)
    return time.perf_counter() - began


async def _by_token(memory: palimpsest.Memory, appended: Appended) -> None:
    await memory.get(after=appended.read_token, timeout=MAX_SECONDS)


async def _by_looks(memory: palimpsest.Memory, appended: Appended) -> None:
    while (await memory.get()).applied_position < appended.positions.last:
        await asyncio.sleep(LOOK_SECONDS)


_WAYS: Mapping[str, Wait] = {"token": _by_token, "looked": _by_looks}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
