"""Deadlines that the official clients of the Connect protocol give to unary calls.

A lock of the test stops the service within a transaction. The deadline passes meanwhile: the
client's own, of which it also informs the service, or one that is sent and of which the client
itself knows nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

import palimpsest
from tests.clients.connect.test_clients import es_program, go_program, printed
from tests.clients.keyed import Keyed
from tests.support.harness import Servers

#: The calls of a program.
CALLS = ("json-client", "json-service", "proto-client", "proto-service")
#: What waits for a lock. Not pg_stat_activity, of which a transaction sees one moment only.
WAITING = """
SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database OR l.database IS NULL
WHERE NOT l.granted AND d.datname = current_database() AND l.pid IN (
    SELECT pid FROM pg_locks WHERE database = d.oid AND granted)
"""
#: Ends what hangs.
HANGS_SECONDS = 60

Program = Callable[[Path], Sequence[str]]
CLIENTS = pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param(es_program, "DeadlineExceeded", id="es"),
        pytest.param(go_program, "deadline_exceeded", id="go"),
    ],
)


class Blocker:
    """Locks rows, and sees what waits for them."""

    def __init__(self, holding: psycopg.AsyncConnection, seeing: psycopg.AsyncConnection) -> None:
        self._holding = holding
        self._seeing = seeing

    async def lock(self, rows: str) -> None:
        """Locks what a statement finds, until `release`."""
        found = await self._holding.execute(f"{rows} FOR UPDATE")
        assert found.rowcount, f"{rows} finds nothing to lock"

    async def release(self) -> None:
        """Ends the locks."""
        await self._holding.rollback()

    async def waiting(self) -> int:
        """Returns the number of transactions that wait for a lock."""
        found = await (await self._seeing.execute(WAITING)).fetchone()
        assert found is not None, "it is a count"
        return int(found[0])

    async def until(self, waits: bool) -> None:
        """Waits until any transaction waits for a lock, or none does."""
        async with asyncio.timeout(HANGS_SECONDS):
            while bool(await self.waiting()) != waits:
                await asyncio.sleep(0.02)


@pytest.fixture
async def blocker(url: str, servers: Servers) -> AsyncIterator[Blocker]:
    target = servers.as_superuser(url)
    async with (
        await psycopg.AsyncConnection.connect(target) as holding,
        await psycopg.AsyncConnection.connect(target, autocommit=True) as seeing,
    ):
        yield Blocker(holding, seeing)


@asynccontextmanager
async def prepared(keyed: Keyed) -> AsyncIterator[palimpsest.Session]:
    """Yields the session that the programs know, with its memory."""
    async with palimpsest.connect(keyed.address, token=keyed.token) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", "class M:\n    a: str\n    b: str\n")
        # From here on the tenant has an end of its audit log.
        await memory.edit([palimpsest.Edit(op="put", path="$.a", value="before")])
        yield session


async def revisions(memory: palimpsest.Memory) -> Sequence[int]:
    """Returns the numbers of all revisions."""
    return [one.revision async for one in memory.revisions()]


def late(code: str) -> dict[str, Sequence[str]]:
    """Returns what all calls of a program end with."""
    said = "the deadline is exceeded"
    return {name: [code, said] if name.endswith("service") else [code] for name in CALLS}


@CLIENTS
@pytest.mark.timeout(400)
async def test_a_late_edit_is_undone(
    keyed: Keyed, blocker: Blocker, tmp_path: Path, program: Program, code: str
) -> None:
    command = await asyncio.to_thread(program, tmp_path)
    async with prepared(keyed) as session:
        memory = session.memory("m")
        before = (await memory.get()).value, await revisions(memory)
        # An edit is recorded last, when its revision and its amendments are written.
        await blocker.lock("SELECT FROM audit_head")
        calling = asyncio.create_task(printed(keyed, *command, "deadlines", "edit"))
        await blocker.until(waits=True)
        assert await asyncio.wait_for(calling, HANGS_SECONDS) == late(code)
        # The work has ended, though what it waited for is still locked.
        await blocker.until(waits=False)
        await blocker.release()
        assert ((await memory.get()).value, await revisions(memory)) == before
        # Nothing keeps the request either: it is done when it is sent again.
        edit = palimpsest.Edit(op="put", path="$.a", value="after")
        done = await memory.edit([edit], request_id=CALLS[0])
        assert await revisions(memory) == [*before[1], done.info.revision]


@CLIENTS
@pytest.mark.timeout(400)
async def test_a_late_append_is_stored_whole_or_not(
    keyed: Keyed, blocker: Blocker, tmp_path: Path, program: Program, code: str
) -> None:
    command = await asyncio.to_thread(program, tmp_path)
    async with prepared(keyed) as session:
        await blocker.lock("SELECT FROM session WHERE name = 's'")
        calling = asyncio.create_task(printed(keyed, *command, "deadlines", "append"))
        await blocker.until(waits=True)
        assert await asyncio.wait_for(calling, HANGS_SECONDS) == late(code)
        await blocker.release()
        stored = set()
        for name in CALLS:
            # The client does not know what became of it, and sends it again.
            again = await session.append(["one", "two"], request_id=name)
            assert again.positions.last == again.positions.first + 1
            stored.add(again.positions.first)
        assert len(stored) == len(CALLS)
        assert [one.text async for one in session.chunks()] == ["one", "two"] * len(CALLS)
