"""Measures how much one slow session and one poisoned session delay the others.

`--sessions` normal sessions append a chunk now and then; measured is from the append until a
read with the ack's token says that it is applied. In half of the rounds two more sessions are
busy all the time: for the one the model takes 100 times as long, for the other every reply is
of no use (its memory skips what fails for good, so that it continues with the next chunk). Rounds
alternate, without and with and with and without. `value` is the p95 with them divided by that
without, the median of the pairs, less 1.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import palimpsest
from verification.benchmarks.load_meters import load_average, percentiles
from verification.benchmarks.load_stack import NOTES, SCHEMA, Stack, one, stack
from verification.benchmarks.slow_model import Habit

MODEL_SECONDS = 0.2
#: Words in the chunks of the two sessions, by which the model knows them.
SLOW, POISON = "sluggishly", "poisonously"
SLOWER = 100
#: Pauses of a session between two chunks, from and to, in seconds.
PAUSE_SECONDS = (20.0, 40.0)
#: Chunks that the busy sessions have waiting.
BUSY_CHUNKS = 2000
#: A chunk is applied by then, unless something is wrong.
MAX_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--sessions", type=int, default=100, help="normal ones")
    parser.add_argument("--pairs", type=int, default=4, help="of rounds without and with")
    parser.add_argument("--round-seconds", type=float, default=60.0, help="of each")


def run(seconds: float, *, sessions: int, pairs: int, round_seconds: float) -> dict[str, Any]:
    """Measures; see the module. Takes two rounds for each pair, and some time between them."""
    with (
        asyncio.Runner() as runner,
        stack(1, model_seconds=MODEL_SECONDS, habits=habits(SLOWER)) as made,
    ):
        return measure(
            made, runner, sessions=sessions, pairs=pairs, round_seconds=round_seconds, slower=SLOWER
        )


def habits(slower: float) -> Sequence[Habit]:
    """Returns how the model answers the two sessions."""
    return (
        Habit(marker=SLOW, seconds=MODEL_SECONDS * slower, reply='{"changes": []}'),
        Habit(marker=POISON, seconds=MODEL_SECONDS, reply="I would rather not."),
    )


def measure(
    made: Stack,
    runner: asyncio.Runner,
    *,
    sessions: int,
    pairs: int,
    round_seconds: float,
    slower: float,
) -> dict[str, Any]:
    """Measures on a service that runs, with a model that has the `habits`."""
    without, with_them = runner.run(
        _measure(made.address, sessions, pairs, round_seconds, MODEL_SECONDS * slower)
    )
    with made.connect() as connection:
        given_up = int(one(connection, "SELECT count(*) FROM dead_letter"))
    ratios = [
        percentiles(busy)["p95_ms"] / percentiles(alone)["p95_ms"]
        for alone, busy in zip(without, with_them, strict=True)
    ]
    return {
        "value": round(statistics.median(ratios) - 1, 3),
        "goal": "< 0.1",
        "pairs": [round(ratio, 3) for ratio in ratios],
        "without": percentiles([each for round_ in without for each in round_]),
        "with": percentiles([each for round_ in with_them for each in round_]),
        "steps_given_up": given_up,
        "sessions": sessions,
        "load_average": load_average(),
    }


async def _measure(
    address: str, sessions: int, pairs: int, seconds: float, call_seconds: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Measures from append to applied, in each round without and with the two."""
    rounds: dict[bool, list[list[float]]] = {False: [], True: []}
    async with palimpsest.connect(address) as client:
        for number in range(sessions):
            session = await client.create_session(f"normal-{number}")
            await session.create_memory(NOTES, schema_source=SCHEMA)
        # Not counted: connections, plans, and every memory's first step.
        await _round(client, sessions, seconds)
        for number in range(pairs):
            for is_busy in (False, True) if number % 2 == 0 else (True, False):
                if is_busy:
                    await _begin(client, number)
                rounds[is_busy].append(await _round(client, sessions, seconds))
                if is_busy:
                    await _end(client, number, call_seconds)
                _say(f"{'with' if is_busy else 'without'}: {percentiles(rounds[is_busy][-1])}")
    return rounds[False], rounds[True]


async def _begin(client: palimpsest.Client, number: int) -> None:
    for word in (SLOW, POISON):
        session = await client.create_session(f"{word}-{number}")
        async with session.producer("p") as producer:
            for chunk in range(BUSY_CHUNKS):
                await producer.append(f"{chunk}: the ship goes {word}.")
        # Each chunk is a step.
        await session.create_memory(NOTES, schema_source=SCHEMA, chunk_tokens=1, skip_failures=True)
    await asyncio.sleep(1)


async def _end(client: palimpsest.Client, number: int, call_seconds: float) -> None:
    """Holds their memories, and waits for the call that is still under way."""
    for word in (SLOW, POISON):
        await client.session(f"{word}-{number}").set_budget("total", limit_tokens=0)
    await asyncio.sleep(call_seconds)


async def _round(client: palimpsest.Client, sessions: int, seconds: float) -> list[float]:
    took: list[float] = []
    until = time.monotonic() + seconds

    async def live(number: int) -> None:
        chosen = Random(number)
        session = client.session(f"normal-{number}")
        await asyncio.sleep(chosen.uniform(0, min(PAUSE_SECONDS[1], seconds)))
        async with session.producer("p") as producer:
            # At least one, else the smallest rounds would measure nothing.
            while True:
                began = time.monotonic()
                await producer.append("The ship lies in another harbour now.")
                ack = await producer.flush()
                assert ack is not None, "it was appended"
                await session.memory(NOTES).get(after=ack.read_token, timeout=MAX_SECONDS)
                took.append(time.monotonic() - began)
                pause = chosen.uniform(*PAUSE_SECONDS)
                if time.monotonic() + pause > until:
                    return
                await asyncio.sleep(pause)

    await asyncio.gather(*(live(number) for number in range(sessions)))
    return took


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
