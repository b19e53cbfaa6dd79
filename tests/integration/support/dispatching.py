"""Work to be dispatched, as rows of the tables, and dispatchers that take it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import psycopg
import pytest

from service.dispatch.claimed_work import Handler
from service.dispatch.queue import QueueDispatcher
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from storage.engine.database import Database
from storage.engine.signals import Signals
from storage.memories import queue
from storage.memories.queue import NOBODY, UNBOUND, QueueScan, WorkClass
from tests.support.harness import Servers

#: A memory at its first revision that has work since so long ago.
_MAKE = """
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO tenant (tenant_id, name) VALUES ('{tenant}', '{tenant}') ON CONFLICT DO NOTHING;
INSERT INTO session (session_key, tenant_id, name)
SELECT md5('{name}' || n)::uuid, '{tenant}', '{name}' || n FROM generate_series(1, {count}) n;
INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, has_work, ready_at)
SELECT md5('{name}' || n)::uuid, md5('m{name}' || n)::uuid, '{tenant}', 'm', 'prism', '{{}}', true,
    now() + make_interval(secs => {ready}) + make_interval(secs => n * 0.001)
FROM generate_series(1, {count}) n;
INSERT INTO revision (session_key, memory_id, revision, tenant_id, from_position, to_position,
    kind, epoch, digest)
SELECT session_key, memory_id, 0, tenant_id, 0, 0, 'create', 0, ''
FROM memory WHERE session_key IN
    (SELECT md5('{name}' || n)::uuid FROM generate_series(1, {count}) n);
COMMIT
"""
#: A memory has nothing to do any more.
DONE = "UPDATE memory SET has_work = false WHERE memory_id = %s"


class Rows:
    """The tables, as their superuser."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Runs a statement in a thread, since it may wait for a lock of a worker here."""

        def run() -> list[tuple[object, ...]]:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(statement.encode(), values or None)
                return cursor.fetchall() if cursor.description else []

        return await asyncio.to_thread(run)

    async def make(
        self, name: str, count: int = 1, *, ready: float = 0, tenant: UUID = DEFAULT_TENANT
    ) -> None:
        """Makes memories with work, one a session, ready since or in so many seconds."""
        await self.run(_MAKE.format(name=name, count=count, ready=ready, tenant=tenant))

    async def names(self, items: Sequence[WorkItem]) -> list[str]:
        """Returns the names of the items' sessions."""
        found = await self.run("SELECT session_key, name FROM session")
        known = {row[0]: str(row[1]) for row in found}
        return [known[one.session_key] for one in items]


@pytest.fixture
def rows(servers: Servers, url: str) -> Rows:
    return Rows(servers.as_superuser(url))


@asynccontextmanager
async def dispatcher(url: str, dead_after_seconds: float = 1.0) -> AsyncIterator[QueueDispatcher]:
    database = Database.connect(url, pool_size=4, name="test")
    signals = Signals(database, url, name="test-signals")
    made = QueueDispatcher(
        database, heartbeat_seconds=0.3, dead_after_seconds=dead_after_seconds, look_seconds=0.5
    )
    signals.subscribe(queue.CHANNEL, lambda _: made.wake())
    listening = asyncio.create_task(signals.run())
    try:
        yield made
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await database.close()


@asynccontextmanager
async def running(
    url: str, handler: Handler, concurrency: int = 4, stop_seconds: float = 5
) -> AsyncIterator[QueueDispatcher]:
    stop = asyncio.Event()
    async with dispatcher(url) as one:
        task = asyncio.create_task(
            one.run(handler, concurrency=concurrency, stop=stop, stop_seconds=stop_seconds)
        )
        try:
            yield one
        finally:
            stop.set()
            await asyncio.wait_for(task, 60)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def take(
    database: Database, *work_classes: WorkClass, total: int = 1, after: UUID = NOBODY
) -> list[WorkItem]:
    """Returns what a new worker's look finds."""
    scan = QueueScan(total=total, cycle=work_classes, bound=UNBOUND, after=after)
    found = await queue.take(database, uuid4(), done=(), scan=scan)
    return [one.item for one in found.items]
