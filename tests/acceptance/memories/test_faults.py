"""Processes that are killed and servers that go away, for real."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import migrations
import palimpsest
from service.local.postgres import PostgresServer
from storage.engine.connections import sqlalchemy_url
from tests.acceptance.memories.kept_memory import (
    DEADLINE_SECONDS,
    QUICK,
    SCHEMA,
    HeldReplies,
    finish,
    scripted,
    start,
)
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, eventually, worker

pytestmark = pytest.mark.prove


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def test_a_worker_killed_between_call_and_commit_pays_once_and_applies_once(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    with api(url) as (_, address), psycopg.connect(servers.as_superuser(url)) as blocker:
        _, token = asyncio.run(start(address, ["only chunk"]))
        # The step's commit looks at the session's head, and waits for us.
        blocker.execute("SELECT FROM session FOR NO KEY UPDATE")
        with (
            worker(url, **scripted(model)) as doomed,
            psycopg.connect(servers.as_superuser(url), autocommit=True) as look,
        ):

            def replied() -> bool:
                row = look.execute("SELECT count(*) FROM call WHERE reply IS NOT NULL").fetchone()
                return row == (1,)

            eventually("the reply is in the ledger", replied)
            assert look.execute("SELECT max(revision) FROM revision").fetchone() == (0,)
            doomed.kill()
        blocker.rollback()
        with worker(url, **scripted(model)) as survivor:
            revision, position, ranges = asyncio.run(finish(address, token))
            assert "sk-not-to-be-logged" not in survivor.log()
    assert (revision, position, ranges) == (1, 1, [(0, 1)])
    assert len(model.prompts) == 1, "the call was paid for once"


def test_a_call_that_is_under_way_when_its_worker_is_killed_is_paid_once(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    held = HeldReplies(model)
    with api(url) as (_, address):
        _, token = asyncio.run(start(address, ["only chunk"]))
        with worker(url, **scripted(model)) as doomed:
            assert held.asked.wait(150)
            doomed.kill()
        with worker(url, **scripted(model)):
            # It has the memory, and waits for the call of the one that died.
            time.sleep(1)
            held.go.set()
            revision, position, _ = asyncio.run(finish(address, token))
    assert (revision, position) == (1, 1)
    assert len(model.prompts) == 1


def test_an_executor_that_is_gone_is_replaced_and_nothing_is_lost(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    with api(url) as (_, address), worker(url, **scripted(model)) as survivor:
        _, token = asyncio.run(start(address, ["one"]))
        asyncio.run(finish(address, token))
        (executor,) = children(survivor.pid)
        os.kill(executor, signal.SIGKILL)

        async def more() -> str:
            async with palimpsest.connect(address) as client:
                async with client.session("s").producer("p") as producer:
                    await producer.append("two")
                    ack = await producer.flush()
            assert ack is not None
            return ack.read_token

        revision, position, _ = asyncio.run(finish(address, asyncio.run(more())))
    assert (revision, position) == (2, 2)


def children(pid: int) -> list[int]:
    """Returns the processes that this one started."""
    found: list[int] = []
    for one in Path(f"/proc/{pid}/task").glob("*/children"):
        # Its thread may have ended meanwhile.
        with suppress(OSError):
            found += map(int, one.read_text().split())
    return found


def test_workers_killed_at_random_apply_each_chunk_once(servers: Servers, model: FakeModel) -> None:
    url = servers.new_database()
    texts = [f"chunk {number}" for number in range(60)]
    with api(url) as (_, address):
        _, token = asyncio.run(start(address, texts))
        for delay in (0.05, 0.2, 0.4):
            with worker(url, **scripted(model)) as doomed:
                time.sleep(delay)
                doomed.kill()
        with worker(url, **scripted(model)), worker(url, **scripted(model)):
            revision, position, ranges = asyncio.run(finish(address, token))
    assert (revision, position) == (60, 60)
    assert ranges == [(n, n + 1) for n in range(60)]
    with psycopg.connect(servers.as_superuser(url)) as look:
        paid = look.execute("SELECT count(*), count(DISTINCT occasion) FROM call").fetchone()
        assert paid == (60, 60)
    # Their calls continued without them.
    assert len(model.prompts) == 60


async def late_by(call: Awaitable[object]) -> palimpsest.DeadlineExceeded:
    with pytest.raises(palimpsest.DeadlineExceeded) as caught:
        await call
    return caught.value


def test_a_deadline_says_how_far_the_memory_is(servers: Servers) -> None:
    url = servers.new_database()

    async def ask(address: str, token: str) -> palimpsest.DeadlineExceeded:
        async with palimpsest.connect(address) as client:
            memory = client.session("s").memory("m")
            caught, read, late = await asyncio.gather(
                late_by(memory.ask("?", after=token, timeout=DEADLINE_SECONDS)),
                late_by(memory.get(fully_applied=True, timeout=DEADLINE_SECONDS)),
                late_by(memory.ask("?", timeout=DEADLINE_SECONDS)),
            )
            assert read.metadata == caught.metadata
            assert late.reason == "ANSWER_NOT_READY_IN_TIME"
            stored = await client.session("s").answer(late.metadata["answer"])
            assert stored.state == "pending"
        return caught

    with api(url) as (_, address):
        _, token = asyncio.run(start(address, ["a", "b"]))
        error = asyncio.run(ask(address, token))
    assert error.reason == "NOT_APPLIED_IN_TIME"
    assert error.metadata == {"position": "2", "applied_position": "0", "revision": "0"}
    assert str(error) == (
        "memory 'm' is applied up to position 0, not yet 2. Read again with a longer deadline,"
        " or as it is"
    )


def test_a_stalled_memory_is_an_error_at_once_and_goes_on_when_retried(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    model.script = [(400, {}, '{"error": {"message": "maximum context length"}}')]

    async def use(address: str, token: str) -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session("s").memory("m")
            with pytest.raises(palimpsest.FailedPrecondition) as caught:
                await memory.get(after=token, timeout=200)
            assert caught.value.reason == "MEMORY_STALLED"
            assert caught.value.metadata["position"] == "1"
            with pytest.raises(palimpsest.FailedPrecondition):
                await memory.ask("?", fully_applied=True, timeout=200)
            assert await memory.retry()
            assert (await memory.get(after=token, timeout=200)).applied_position == 2

    with api(url) as (_, address), worker(url, **scripted(model)):
        _, token = asyncio.run(start(address, ["a", "b"]))
        asyncio.run(use(address, token))


def test_nothing_acked_is_lost_when_the_database_dies(model: FakeModel) -> None:
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        Path(name).chmod(0o755)
        with PostgresServer(Path(name) / "postgres") as postgres:
            migrations.upgrade(sqlalchemy_url(postgres.url))
            with api(postgres.url) as (_, address), worker(postgres.url, **scripted(model)):
                acked, position = asyncio.run(_append_through_crashes(address, postgres))
                assert acked == position
                revision, applied, ranges = asyncio.run(finish(address, _token))
                assert applied == acked
                assert ranges == [(n, n + 1) for n in range(acked)]
                assert revision == acked


_token = ""


async def _append_through_crashes(address: str, postgres: PostgresServer) -> tuple[int, int]:
    global _token
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        await session.create_memory(
            "m", schema_source=SCHEMA, chunk_tokens=1, encoding="amendments"
        )
        async with session.producer("p") as producer:
            for number in range(60):
                await producer.append(f"chunk {number}")
                if number in (20, 40):
                    assert postgres._process is not None
                    postgres._process.send_signal(signal.SIGKILL)
                    postgres._process.wait()
                    # From this very thread: the server dies with the one that starts it.
                    postgres.restart()
            ack = await producer.flush()
            assert ack is not None
            _token = ack.read_token
        texts = [chunk.text async for chunk in session.chunks()]
        assert texts == [f"chunk {number}" for number in range(60)]
        return ack.producer_sequence, ack.position


def test_losing_redis_only_logs(servers: Servers) -> None:
    url = servers.new_database()
    dead = {"PALIMPSEST_REDIS_URL": "redis://:secret-word@127.0.0.1:1/0"}
    with api(url) as (_, address), worker(url, **QUICK, **dead) as process:
        _, token = asyncio.run(start(address, ["The museum is a ship in the harbour."] * 3))
        assert asyncio.run(finish(address, token))[1] == 3
        log = process.log()
    assert log.count("redis is gone") == 1
    assert "secret-word" not in log
