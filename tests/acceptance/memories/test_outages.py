"""A model that is away and comes back: what users and operators see, and that all continues."""

import asyncio
import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

import palimpsest
from palimpsest import DeadlineExceeded
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from tests.support import forking
from tests.support.fake_model import FakeModel, served
from tests.support.harness import Servers, api, eventually, worker
from verification.attacks import outages
from verification.attacks.outages import OUTAGES, SCHEMA, Switched

pytestmark = pytest.mark.prove


def cli(address: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forking.python(), "-m", "service.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PALIMPSEST_ADDRESS": address, **environment},
    )


async def test_a_wrong_key_is_said_once_and_heals_by_itself(servers: Servers) -> None:
    model, url = Switched(), servers.new_database()
    model.outage = OUTAGES["wrong key"]
    with served(model) as endpoint:
        model.url = f"{endpoint}/v1"
        settings = {**model.settings, "PALIMPSEST_MODEL_PROBE_SECONDS": "1"}
        with (
            api(url, **settings) as (_, address),
            worker(url, **settings) as process,
        ):
            async with palimpsest.connect(address) as client:
                infos = await _made(client, 5)
                waiting = [one async for one in client.memories(status="waiting")]
                while len(waiting) < len(infos):
                    await asyncio.sleep(0.05)
                    waiting = [one async for one in client.memories(status="waiting")]
                assert [one async for one in client.memories(status="stalled")] == []
                (cause,) = {one.blocked.cause for one in waiting if one.blocked}
                assert cause is not None
                assert "Incorrect API key provided; check PALIMPSEST_MODEL_API_KEY" in cause
                memory = client.session("s0").memory("m")
                try:
                    await memory.get(fully_applied=True, timeout=0.5)
                except DeadlineExceeded as error:
                    assert cause in str(error)
                else:
                    raise AssertionError("a model that refuses the key made a step")
                answer = ""
                try:
                    await memory.ask("What is closed?", timeout=3)
                except DeadlineExceeded as error:
                    answer = error.metadata["answer"]
                listed = cli(address, "memory", "list", "--status", "waiting", "--json")
                # One of them may be finding out whether it has passed.
                assert len(listed.stdout.splitlines()) in (4, 5)
                told = cli(address, "doctor", "--json", PALIMPSEST_DATABASE_URL=url, **settings)
                found = [json.loads(line) for line in told.stdout.splitlines()]
                (said,) = [one["said"] for one in found if one["name"] == "models"]
                assert told.returncode == 1
                assert "Incorrect API key provided" in said
                assert "5 memories wait" in said or "4 memories wait" in said
                model.outage = None
                for number in range(5):
                    held = client.session(f"s{number}").memory("m")
                    await held.get(fully_applied=True, timeout=120)
                resumed = await client.resume_answer("s0", answer, timeout=120)
                assert resumed.id == answer
                told = cli(address, "doctor", "--json", PALIMPSEST_DATABASE_URL=url, **settings)
                assert '"name":"models"' in told.stdout.replace(" ", "")
                assert "none is known to fail" in told.stdout
            key = session_key(DEFAULT_TENANT, "s0")
            eventually("the log names them", lambda: f'"session": "{key}"' in process.log())
            assert "sk-not-to-be-logged" not in process.log()


async def _made(
    client: palimpsest.Client, number: int, text: str = "The harbour is closed on Mondays."
) -> list[palimpsest.Session]:
    return [await _append(client, f"s{at}", text) for at in range(number)]


async def _append(
    client: palimpsest.Client, name: str, text: str = "The harbour is closed on Mondays."
) -> palimpsest.Session:
    session = await client.create_session(name)
    await session.create_memory("m", schema_source=SCHEMA)
    async with session.producer("test") as producer:
        await producer.append(text)
    return session


class Poisoned(FakeModel):
    """A model that fails at one text, whenever it gets it."""

    failed = 0

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """Returns the response to a completion request."""
        if "poison" in json.dumps(request["messages"]):
            self.failed += 1
            return OUTAGES["500"]
        return super().respond(request)


async def test_a_text_that_the_model_always_fails_at_delays_no_other_memory(
    servers: Servers,
) -> None:
    model, url = Poisoned(), servers.new_database()
    with served(model) as endpoint:
        model.url = f"{endpoint}/v1"
        settings = {**model.settings, "PALIMPSEST_STEP_BACKOFF_SECONDS": "0.2"}
        with api(url, **settings) as (_, address), worker(url, **settings):
            async with palimpsest.connect(address) as client:
                (poisoned,) = await _made(client, 1, "poison")
                # Far more than it takes to open a circuit, and nothing else is called meanwhile.
                while model.failed < 15:
                    await asyncio.sleep(0.05)
                told = {"memories": ""}
                # During a probe it is not known whether it still fails.
                while "the model calls of s0/m fail" not in told["memories"]:
                    told = doctor(address, url, settings)
                assert "The server had an error" in told["memories"]
                assert "none is known to fail" in told["models"]
                async for one in client.memories(status="waiting"):
                    assert "The server had an error" in (one.blocked.cause if one.blocked else "")
                for number in range(1, 4):
                    await _append(client, f"s{number}")
                    other = client.session(f"s{number}").memory("m")
                    assert (await other.get(fully_applied=True, timeout=120)).applied_position == 1
                assert "none is known to fail" in doctor(address, url, settings)["models"]
                assert (await poisoned.memory("m").get()).applied_position == 0


def doctor(address: str, url: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Returns what it says, by what it looked at."""
    told = cli(address, "doctor", "--json", PALIMPSEST_DATABASE_URL=url, **settings)
    found = [json.loads(line) for line in told.stdout.splitlines()]
    return {one["name"]: one["said"] for one in found}


async def test_all_stalled_memories_are_listed_and_retried_at_once(servers: Servers) -> None:
    model, url = Switched(), servers.new_database()
    # Says nothing of the deployment, and fails for good.
    too_long = {"message": "This model's maximum context length is 10 tokens", "type": "x"}
    model.outage = (400, {}, json.dumps({"error": too_long}))
    with served(model) as endpoint:
        model.url = f"{endpoint}/v1"
        with api(url) as (_, address), worker(url, **model.settings):
            async with palimpsest.connect(address) as client:
                await _made(client, 3)
                until = time.monotonic() + 120
                while len([one async for one in client.memories(status="stalled")]) < 3:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.05)
                done = cli(address, "memory", "list", "--status", "stalled")
                assert done.stdout.count("maximum context length") == 3
                model.outage = None
                assert cli(address, "memory", "retry", "--all").stdout == "3 try again\n"
                for number in range(3):
                    held = client.session(f"s{number}").memory("m")
                    await held.get(fully_applied=True, timeout=120)
                assert await client.retry_stalled() == 0


def test_the_attack_names_every_kind_of_outage() -> None:
    assert outages.ATTACK.finding == "users 1a"
    assert {status for status, _, _ in OUTAGES.values()} >= {400, 401, 403, 404, 429, 500, 503}


async def test_a_model_that_is_allowed_no_more_holds_its_memories(servers: Servers) -> None:
    model, url = Switched(), servers.new_database()
    with served(model) as endpoint:
        model.url = f"{endpoint}/v1"
        settings = {**model.settings, "PALIMPSEST_MODEL_PROBE_SECONDS": "1"}
        wide = {**settings, "PALIMPSEST_MODELS": "openai/*"}
        async with AsyncExitStack() as stack:
            _, address = stack.enter_context(api(url, **wide))
            client = await stack.enter_async_context(palimpsest.connect(address))
            infos = []
            for number in range(2):
                session = await client.create_session(f"s{number}")
                memory = await session.create_memory(
                    "m", schema_source=SCHEMA, model="openai/another"
                )
                async with session.producer("test") as producer:
                    await producer.append("The harbour is closed on Mondays.")
                infos.append(memory)
            with worker(url, **settings, PALIMPSEST_MODELS="offline/*"):
                waiting: list[palimpsest.MemoryInfo] = []
                while len(waiting) < 2:
                    await asyncio.sleep(0.05)
                    waiting = [one async for one in client.memories(status="waiting")]
                assert {
                    "PALIMPSEST_MODELS" in (one.blocked.cause if one.blocked else "")
                    for one in waiting
                } == {True}
                assert not model.prompts, "nothing is sent"
                # One gets a model that is allowed …
                await infos[0].update(model="openai/fake")
                assert (await infos[0].get(fully_applied=True, timeout=120)).applied_position == 1
            # … the other one waits until its own is allowed again.
            with worker(url, **wide):
                assert (await infos[1].get(fully_applied=True, timeout=120)).applied_position == 1
        assert {one["model"] for one in model.requests} == {"fake", "another"}
