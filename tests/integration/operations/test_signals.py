"""Signals: all listeners receive each message, and possible gaps are reported."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest

from service.domain.operations.doctor import Severity
from service.settings.config import Config
from service.usecases.operations.doctor import Doctor, Migrations
from storage.engine import signals as module
from storage.engine.database import Database
from storage.engine.signals import Signals, are_heard
from tests.support.harness import Process, Servers


class Heard:
    """One process that listens on a channel."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.signals = 0
        self.missed = 0

    def __call__(self, words: Sequence[str] | None) -> None:
        if words is None:
            self.missed += 1
        else:
            self.signals += 1
            self.words += words


@asynccontextmanager
async def listening(
    database: Database, url: str, channel: str = "things"
) -> AsyncIterator[tuple[Signals, Heard]]:
    heard = Heard()
    signals = Signals(database, url, name="test-signals")
    signals.subscribe(channel, heard)
    task = asyncio.create_task(signals.run())
    try:
        # A new listener has missed what was before.
        await until(lambda: heard.missed == 1)
        yield signals, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_messages_reach_all_listeners_once_and_in_order(database: Database, url: str) -> None:
    words = [f"{number:022}" for number in range(2000)]
    async with listening(database, url) as (one, mine), listening(database, url) as (_, other):
        one.send("things", [*words, *words[:10]])
        one.send("others", ["unheard"])
        await until(lambda: len(other.words) >= len(words) and len(mine.words) >= len(words))
    assert mine.words == other.words == words
    assert mine.signals < 10, "many go in one"


async def test_a_signal_without_words_is_one(database: Database, url: str) -> None:
    async with listening(database, url) as (one, heard):
        for _ in range(5):
            one.send("things")
        await until(lambda: heard.signals)
    assert heard.words == []


async def test_too_many_ids_are_sent_as_all(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 100)
    async with listening(database, url) as (one, heard):
        one.send("things", map(str, range(101)))
        one.send("things", ["more"])
        await until(lambda: heard.missed == 2)
    assert heard.words == []


async def test_a_listener_that_lost_its_connection_learns_of_a_gap(
    database: Database, url: str, servers: Servers
) -> None:
    async with listening(database, url) as (one, heard):
        with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'test-signals' AND datname = current_database()"
            )
        await until(lambda: heard.missed == 2)
        one.send("things", ["again"])
        await until(lambda: heard.words == ["again"])


async def test_one_that_fails_does_not_silence_the_others(
    database: Database, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()

    def fail(words: Sequence[str] | None) -> None:
        raise RuntimeError("a defect")

    signals = Signals(database, url, name="test-signals")
    signals.subscribe("things", fail)
    signals.subscribe("things", heard)
    task = asyncio.create_task(signals.run())
    await until(lambda: heard.missed)
    signals.send("things", ["word"])
    await until(lambda: heard.words == ["word"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "a listener failed on a signal" in capfd.readouterr().out


async def test_signals_of_another_database_are_not_heard(
    database: Database, url: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await are_heard(database, url)
    monkeypatch.setattr(module, "HEAR_SECONDS", 0.5)
    other = servers.new_database()
    assert not await are_heard(database, other)
    config = Config.model_validate({"database_url": url, "signals_database_url": other})
    found = [
        one async for one in Doctor(config, Migrations(newest="", known=frozenset())).findings()
    ]
    assert [one.level for one in found if one.name == "signals"] == [Severity.BAD]


@pytest.mark.prove
def test_a_server_that_does_not_receive_its_own_signals_does_not_start(
    url: str, servers: Servers
) -> None:
    settings = {
        "PALIMPSEST_DATABASE_URL": url,
        "PALIMPSEST_SIGNALS_DATABASE_URL": servers.new_database(),
    }
    with pytest.raises(RuntimeError, match="leads to another database"):
        Process("work", settings, "never")
