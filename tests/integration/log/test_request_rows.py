"""What a request leaves in the database, and what stays true beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from uuid import uuid4

import psycopg
import pytest

from service.domain.log.appending import SERVER_PRODUCER, Request, Submission
from service.domain.values.errors import AlreadyExists, Exhausted
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from tests.integration.support.scripted import SPEC
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.harness import Servers

KEY = session_key(DEFAULT_TENANT, "s")


def requested(request_id: str, *texts: str) -> Submission:
    sent = submission("s", texts, producer=SERVER_PRODUCER)
    digest = sha256(b"".join(chunk.digest for chunk in sent.chunks)).digest()
    return replace(
        sent,
        chunks=tuple(replace(chunk, sequence=0) for chunk in sent.chunks),
        request=Request(request_id=request_id, digest=digest),
    )


@asynccontextmanager
async def appending(database: Database, **limits: int) -> AsyncIterator[Appender]:
    """Yields a server that has just been started."""
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits(**limits))
    running = asyncio.create_task(appender.run())
    yield appender
    running.cancel()


@pytest.fixture(autouse=True)
async def session(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")


async def test_requests_of_a_group_are_one_commit_with_a_row_each(
    database: Database, servers: Servers, url: str
) -> None:
    async with appending(database) as appender:
        sent = [requested(f"r{number}", f"text {number}") for number in range(20)]
        # Some of them come twice in the group.
        acks = await asyncio.gather(
            *(appender.submit(DEFAULT_TENANT, one) for one in (*sent, *sent[:5]))
        )
    assert [ack.position for ack in acks] == [*range(1, 21), *range(1, 6)]
    with psycopg.connect(servers.as_superuser(url)) as look:
        row = look.execute(
            "SELECT count(*), count(DISTINCT xmin::text), (SELECT count(DISTINCT xmin::text)"
            " FROM chunk) FROM request WHERE method = 'Append' AND expires_at IS NULL"
        ).fetchone()
    assert row == (20, 1, 1)


async def test_a_full_backlog_answers_what_was_done(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=KEY,
            memory_id=memory_id(KEY, "m"),
            name="m",
            spec=SPEC,
            head=0,
            value="{}",
            digest=b"",
        )
    async with appending(database, backlog_chunks=3) as appender:
        first = await appender.submit(DEFAULT_TENANT, requested("r1", "a", "b", "c"))
        with pytest.raises(Exhausted) as caught:
            await appender.submit(DEFAULT_TENANT, requested("r2", "d"))
        assert caught.value.reason is Reason.BACKLOG_FULL
        assert await appender.submit(DEFAULT_TENANT, requested("r1", "a", "b", "c")) == first
    async with appending(database) as restarted:
        assert await restarted.submit(DEFAULT_TENANT, requested("r1", "a", "b", "c")) == first
        # What was refused is not remembered, and can be something else by now.
        assert (await restarted.submit(DEFAULT_TENANT, requested("r2", "e"))).position == 4


async def test_a_refusal_in_a_group_is_its_own(database: Database) -> None:
    async with appending(database) as appender:
        sent = (
            requested("r1", "a"),
            requested("r1", "other"),
            replace(requested("r2", "b"), expected_head=7),
            requested("r3", "c"),
        )
        answers = await asyncio.gather(
            *(appender.submit(DEFAULT_TENANT, one) for one in sent), return_exceptions=True
        )
    positions = [getattr(answer, "position", None) for answer in answers]
    assert positions == [1, None, None, 2]
    assert isinstance(answers[1], AlreadyExists)


async def test_a_request_belongs_to_its_tenant(
    database: Database, servers: Servers, url: str
) -> None:
    async with appending(database) as appender:
        await appender.submit(DEFAULT_TENANT, requested("r1", "a"))
    with psycopg.connect(servers.as_superuser(url)) as look:
        for tenant, due in ((DEFAULT_TENANT, 1), (uuid4(), 0)):
            look.execute("SET ROLE palimpsest_app")
            look.execute("SELECT set_config('app.tenant', %s, true)", (str(tenant),))
            assert look.execute("SELECT count(*) FROM request").fetchone() == (due,)


@pytest.mark.parametrize(
    ("positions", "constraint"),
    [
        ("1, 2", "request_chunk_fkey"),
        ("NULL, NULL", "request_positions"),
        ("2, 1", "request_positions"),
    ],
)
async def test_the_schema_allows_no_request_without_its_chunks(
    servers: Servers, url: str, positions: str, constraint: str
) -> None:
    with psycopg.connect(servers.as_superuser(url)) as look:
        with pytest.raises(psycopg.errors.IntegrityError) as caught:
            look.execute(
                "INSERT INTO request (session_key, request_id, tenant_id, method, digest,"
                f" first_position, last_position) VALUES (%s, 'r', %s, 'Append', %s, {positions})",
                (KEY, DEFAULT_TENANT, b"d" * 32),
            )
        assert caught.value.diag.constraint_name == constraint
        look.rollback()
