"""An agent's loop over the real service: killed and started again, it reads algorithm 1."""

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any
from uuid import uuid4

import pytest

import palimpsest

STEPS = 60
PERIOD = 7
#: The loop is killed as soon as it has said so many steps, and waits for that a little later:
#: the kill may be late.
KILLED_AT, WAITS_AT = 26, 40

#: What a user writes, but for what it prints, and that it may wait for its end.
LOOP = """
import asyncio, json, sys
import palimpsest

async def main(address, session, period, steps, waits_at):
    async with palimpsest.connect(address) as client:
        task = "Walk to the end of the road."
        async with client.agent(
            session, task=task, period=period, state_tokens=64, wait_seconds=200
        ) as agent:
            while agent.step <= steps:
                context = await agent.context()
                said = {
                    "step": agent.step,
                    "compressed": context.read_point.applied_position,
                    "recent": [[one.position, one.action] for one in context.recent],
                    "vectors": [
                        [one.origin, one.positions.last if one.positions else 0]
                        for one in context.vectors
                    ],
                    "in_text": all(one.action in context.text for one in context.recent),
                }
                print(json.dumps(said), flush=True)
                if agent.step == waits_at:
                    await asyncio.Event().wait()
                seen = f"Stone {agent.step} says {agent.step * 3} miles."
                await agent.record(seen, "On.", f"walk {agent.step}")

asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
"""


def loop(address: str, session: str, *, kill_at: int | None = None) -> list[dict[str, Any]]:
    """Returns what the loop says at each step until it ends, or is killed."""
    numbers = (PERIOD, STEPS, 0 if kill_at is None else WAITS_AT)
    arguments = [sys.executable, "-c", LOOP, address, session, *map(str, numbers)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ)
    watchdog = threading.Timer(200.0, process.kill)
    watchdog.start()
    said: list[dict[str, Any]] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                # It was killed in the middle of it.
                break
            said.append(json.loads(line))
            if said[-1]["step"] == kill_at:
                process.kill()
    finally:
        watchdog.cancel()
        code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert code == (0 if kill_at is None else -signal.SIGKILL)
    return said


def by_algorithm_1(step: int) -> dict[str, Any]:
    """Returns the context at a step, computed by counting alone."""
    compressed = 0
    recent: list[list[Any]] = []
    for t in range(1, step + 1):
        if t > 1 and (t - 1) % PERIOD == 0:
            compressed, recent = t - 1, []
        if t < step:
            recent.append([t, f"walk {t}"])
    return {
        "step": step,
        "compressed": compressed,
        "recent": recent,
        "vectors": [["model" if compressed else "task", compressed]],
        "in_text": True,
    }


@pytest.mark.prove
async def test_a_loop_that_is_killed_goes_on_as_if_nothing_had_happened(
    address: str, client: palimpsest.Client
) -> None:
    name = f"road-{uuid4().hex}"
    first = loop(address, name, kill_at=KILLED_AT)
    second = loop(address, name)
    # Nothing is lost and nothing repeated: it continues with the step that it was killed in,
    # or with the next one where that was on its way.
    assert second[0]["step"] in (first[-1]["step"], first[-1]["step"] + 1)
    assert second[-1]["step"] == STEPS
    for said in (*first, *second):
        wanted = by_algorithm_1(said["step"])
        if said["vectors"][0][0] == "cut":
            wanted["vectors"][0][0] = "cut"
        assert said == wanted
    chunks = [one async for one in client.session(name).chunks()]
    assert [one.action for one in chunks] == [f"walk {t}" for t in range(1, STEPS + 1)]


async def test_contexts_that_do_not_wait_miss_no_step_either(client: palimpsest.Client) -> None:
    async with client.agent(f"road-{uuid4().hex}", task="On.", period=3, wait_seconds=0) as agent:
        while agent.step <= STEPS:
            context = await agent.context()
            positions = [one.position for one in context.recent]
            compressed = context.read_point.applied_position
            assert positions == list(range(compressed + 1, agent.step))
            newest = context.vectors[-1].positions
            assert (newest.last if newest else 0) == compressed
            await agent.record(action=f"walk {agent.step}")


async def test_two_loops_on_one_session_do_not_mix_their_steps(client: palimpsest.Client) -> None:
    name = f"road-{uuid4().hex}"
    async with client.agent(name, period=5) as first:
        await first.record(action="left")
        async with client.agent(name, period=5) as second:
            await second.record(action="right")
            with pytest.raises(palimpsest.Aborted, match="another loop has taken over"):
                await first.record(action="left again")
            await second.note("user", "Hurry.")
    chunks = [one async for one in client.session(name).chunks()]
    assert [one.action or one.text for one in chunks] == ["left", "right", "Hurry."]


async def test_other_settings_are_refused_by_their_names(client: palimpsest.Client) -> None:
    name = f"road-{uuid4().hex}"
    settings: dict[str, Any] = {"task": "On.", "period": 5, "pinned": ["mile 7"], "idle_seconds": 2}
    async with client.agent(name, **settings):
        pass
    async with client.agent(client.session(name), **settings) as agent:
        assert agent.step == 1
    with pytest.raises(palimpsest.AlreadyExists, match=r"period is 5, not 6\. Use it as it is"):
        async with client.agent(name, period=6, task="On."):
            pass


async def test_a_step_that_is_refused_stops_nothing(client: palimpsest.Client) -> None:
    name = f"road-{uuid4().hex}"
    async with client.agent(name, period=5) as agent:
        for bad in ("a\0b", "x" * (256 * 1024 + 1)):
            with pytest.raises(palimpsest.InvalidArgument):
                await agent.record(action=bad)
        await agent.record(action="walk 1")
        assert agent.step == 2
    assert [one.action async for one in client.session(name).chunks()] == ["walk 1"]


async def test_a_setting_that_the_service_refuses_says_which(client: palimpsest.Client) -> None:
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        async with client.agent(f"road-{uuid4().hex}", state_tokens=32, pinned=["x" * 900]):
            pass
    assert "memory.state.pinned" in caught.value.fields
