"""SIGTERM at `palimpsest up` under traffic, with a model that does not answer."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import palimpsest
from service.local.postgres import PostgresServer
from tests.acceptance.app.test_signals import Command
from tests.acceptance.memories.kept_memory import SCHEMA
from tests.support.embedded import children_of
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import eventually

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
#: Chunks that are acked before it is stopped.
BEFORE = 40


class Asked:
    """A model that is asked, and does not answer before the test is over."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.asked, self._over = threading.Event(), threading.Event()
        model.reply = self._reply

    def _reply(self, _: int) -> str:
        self.asked.set()
        self._over.wait(800)
        return "too late"

    def end(self) -> None:
        self._over.set()


@pytest.fixture
def silent() -> Iterator[Asked]:
    with fake_model() as model:
        asked = Asked(model)
        yield asked
        asked.end()


@pytest.fixture
def up(folder: Path, silent: Asked, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.setenv("PALIMPSEST_STOP_SECONDS", "2")
    monkeypatch.setenv("PALIMPSEST_MODEL", "openai/fake")
    monkeypatch.setenv("PALIMPSEST_MODEL_BASE_URL", silent.model.url)
    monkeypatch.setenv("PALIMPSEST_MODEL_API_KEY", "sk-test")
    command = Command(folder, "up", "--listen", "127.0.0.1:0", standard_output=True)
    yield command
    command.popen.kill()
    command.popen.communicate()


class Traffic:
    """Appends until the server no longer listens."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.acked = 0

    async def run(self, address: str) -> None:
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            await session.create_memory("m", schema_source=SCHEMA, chunk_tokens=1)
            async with session.producer("p") as producer:
                while True:
                    self.sent.append(f"chunk {len(self.sent)}")
                    await producer.append(self.sent[-1])
                    if len(self.sent) % 4 == 0:
                        ack = await producer.flush()
                        assert ack is not None
                        self.acked = ack.producer_sequence


async def stop_under_traffic(up: Command, address: str, silent: Asked) -> tuple[Traffic, int]:
    """Returns the traffic, and the exit code."""
    traffic = Traffic()
    running = asyncio.create_task(traffic.run(address))
    begun = asyncio.to_thread(
        eventually,
        "it works under traffic",
        lambda: running.done() or (traffic.acked >= BEFORE and silent.asked.is_set()),
    )
    await begun
    assert not running.done(), running.exception()
    up.popen.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(up.end)
    # The client would look for its server as long as it is let.
    running.cancel()
    with suppress(asyncio.CancelledError, palimpsest.PalimpsestError):
        await running
    return traffic, code


def test_everything_ends_in_its_time_and_what_was_acked_is_there(
    folder: Path, up: Command, silent: Asked
) -> None:
    traffic, code = asyncio.run(stop_under_traffic(up, up.address(), silent))
    assert code == 0, up.said
    assert up.said.rstrip().endswith("stopped; nothing is lost")
    assert "Traceback" not in up.said
    assert children_of(folder) == []
    with PostgresServer(folder / "data/postgres") as postgres:
        with psycopg.connect(postgres.superuser_url) as look:
            rows = look.execute("SELECT text FROM chunk ORDER BY position").fetchall()
    assert len(rows) >= traffic.acked >= BEFORE
    assert [text for (text,) in rows] == traffic.sent[: len(rows)]


def test_nothing_outlives_an_up_that_is_killed_in_a_slow_call(
    folder: Path, up: Command, silent: Asked
) -> None:
    async def begin(address: str) -> None:
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            await session.create_memory("m", schema_source=SCHEMA, chunk_tokens=1)
            async with session.producer("p") as producer:
                await producer.append("only chunk")
                await producer.flush()

    asyncio.run(begin(up.address()))
    assert silent.asked.wait(200)
    os.kill(up.popen.pid, signal.SIGKILL)
    up.popen.communicate()
    eventually("nothing is left", lambda: not children_of(folder))
