"""A session that is locked by hand delays its own appends, and no others."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.submissions import Appended
from service.usecases.log.wake_ups import WakeUps
from storage.engine import connections
from storage.engine.database import Database
from storage.log import sessions
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.harness import Servers

pytestmark = pytest.mark.timeout(120)
NAMES = ("locked", "also locked", "locked too", "free", "other")


@pytest.fixture
async def appender(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Appender]:
    """Yields an appender with one queue, whose locks have as long as the test takes."""
    monkeypatch.setitem(connections._SETTINGS, "lock_timeout", "100s")
    monkeypatch.setitem(connections._SETTINGS, "statement_timeout", "100s")
    database = Database.connect(url, pool_size=5, name="test")
    async with database.transaction(DEFAULT_TENANT) as tx:
        for name in NAMES:
            await sessions.create(tx, session_key(DEFAULT_TENANT, name), name)
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    yield appender
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await database.close()


def append(appender: Appender, name: str, text: str, number: int) -> "asyncio.Future[Appended]":
    return appender.submit(DEFAULT_TENANT, submission(name, [text], first=number))


async def test_others_of_its_lane_go_on_and_its_own_keep_their_order(
    url: str, servers: Servers, appender: Appender
) -> None:
    # The second append of a producer is written in one round trip, which takes its own lock.
    for name in NAMES[:2]:
        await append(appender, name, "a", 1)
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as blocker:
        await blocker.execute("SELECT FROM session WHERE name LIKE '%locked' FOR UPDATE")
        held = [append(appender, "locked", "b", 2)]
        for number in range(1, 4):
            # In the queue while the first is with the database, and beside it afterwards.
            await append(appender, "free", "x", number)
            held.append(append(appender, "locked", str(number), 2 + number))
        # One of several in a group.
        held += [append(appender, "also locked", "b", 2)]
        acked = await asyncio.gather(
            append(appender, "other", "x", 1), append(appender, "free", "x", 4)
        )
        assert [one.position for one in acked] == [1, 4]
        assert not any(one.done() for one in held)
        await blocker.rollback()
        assert [one.position for one in await asyncio.gather(*held)] == [2, 3, 4, 5, 2]
    assert (await append(appender, "locked", "c", 6)).position == 6
    assert appender._unwritten == 0


async def test_more_locked_sessions_than_may_go_on_beside_it_hold_their_lane(
    url: str, servers: Servers, appender: Appender
) -> None:
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as blocker:
        await blocker.execute("SELECT FROM session WHERE name LIKE '%locked%' FOR UPDATE")
        held = [append(appender, name, "a", 1) for name in NAMES[:3]]
        free = append(appender, "free", "x", 1)
        await asyncio.wait((free,), timeout=1)
        await blocker.rollback()
        await asyncio.gather(*held, free)
    assert appender._unwritten == 0
