"""Lines of the log say which trace, session, memory and revision they belong to, by keys alone."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import palimpsest
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from tests.acceptance.memories.kept_memory import SCHEMA, scripted
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Process, Servers, api, worker
from tests.support.otlp import Collector, collector

SESSION, MEMORY = "sessionwithaname", "memorywithaname"
TEXT, ANSWER_TO = "wordsofauser", "questionofauser"
SESSION_KEY = session_key(DEFAULT_TENANT, SESSION)
ABOUT = {
    "session": str(SESSION_KEY),
    "memory": str(memory_id(SESSION_KEY, MEMORY)),
    "revision": 1,
}


@pytest.fixture
def taking() -> Iterator[Collector]:
    with collector() as taking:
        yield taking


@pytest.fixture
def model() -> Iterator[FakeModel]:
    """Yields one whose replies are no use."""
    with fake_model() as model:
        model.reply = lambda _: f"no revision, but {TEXT}"
        yield model


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log().splitlines() if line.startswith("{")]


def test_lines_of_a_step_that_fails_say_what_they_are_about(
    servers: Servers, taking: Collector, model: FakeModel
) -> None:
    url = servers.new_database()
    loud = {"PALIMPSEST_LOG_LEVEL": "debug", "PALIMPSEST_LOG_FORMAT": "json"}
    settings = {**scripted(model), **loud, **taking.environment, "PALIMPSEST_STEP_TRIES": "1"}
    # Of the first calls the provider says that it is broken.
    model.script = [(500, {}, "{}")] * 2

    async def run(address: str) -> None:
        async with palimpsest.connect(address) as client:
            session = await client.create_session(SESSION)
            memory = await session.create_memory(MEMORY, schema_source=SCHEMA)
            appended = await session.append(TEXT)
            with pytest.raises(palimpsest.PalimpsestError):
                await memory.get(after=appended.read_token, timeout=200)
            await memory.ask(ANSWER_TO, timeout=200)

    with api(url, **loud, **taking.environment) as (server, address):
        with worker(url, **settings) as working:
            asyncio.run(run(address))
            taking.wait("the step", lambda all: all.named("process prism"))
            said = lines(working)
            written = server.log() + working.log()
    failed = [line for line in said if line["event"] == "step failed"]
    calls = [line for line in said if line["event"] == "model call failed"]
    assert failed, said
    assert calls, "the executor writes where its worker does"
    for line in (*failed, *calls):
        assert {name: line.get(name) for name in ABOUT} == ABOUT, line
        assert len(line["trace_id"]) == 32
        assert len(line["span_id"]) == 16
    steps = {one.trace_id for one in taking.named("process prism")}
    assert {line["trace_id"] for line in (*failed, *calls)} <= steps
    for secret in (SESSION, MEMORY, TEXT, ANSWER_TO, "sk-not-to-be-logged"):
        assert secret not in written
