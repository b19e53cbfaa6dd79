"""What a request with an id leaves in the database, what it costs, and when it goes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from service.domain.log.appending import ClientRequest
from service.domain.values.errors import AlreadyExists, InvalidInput, Unavailable
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.usecases.log import idempotency
from service.usecases.log.idempotency import run, store_result
from storage.engine import sweeping
from storage.engine.database import Database
from storage.engine.errors import Busy
from storage.log import requests, sessions
from tests.integration.support.statements import statements
from tests.support.harness import Servers

KEY = session_key(DEFAULT_TENANT, "s")
OTHER = UUID(int=7)


def request(request_id: str = "r", *, digest: bytes = b"d" * 32) -> ClientRequest:
    return ClientRequest(session_key=KEY, request_id=request_id, method="Mark", digest=digest)


async def mark(database: Database, name: str) -> str:
    """Makes a session as a use case would; its name is the result."""
    idempotency.serialize_with(lambda result: result.encode())
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, session_key(DEFAULT_TENANT, name), name)
        return await store_result(tx, name)


async def sent(database: Database, name: str, one: ClientRequest, max_bytes: int = 100) -> Any:
    return await run(
        database, DEFAULT_TENANT, one, lambda: mark(database, name), max_bytes=max_bytes
    )


async def names(database: Database) -> list[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [one.name for one in await sessions.list_after(tx, "", 100)]


async def test_without_an_id_nothing_more_is_sent(database: Database) -> None:
    # The first call of a connection prepares it.
    await mark(database, "warm")
    with statements() as without:
        await mark(database, "a")
    assert not any("request" in one for one in without)
    with statements() as first:
        assert await sent(database, "b", request()) == "b"
    with statements() as again:
        assert await sent(database, "b", request()) == b"b"
    assert sum("SELECT method, digest, response FROM request" in one for one in again) == 1
    # With the begin, the tenant and the commit.
    assert len(again) == 4
    assert len(first) == len(without) + 4 + 1, "it is looked for, and stored"


async def test_a_result_that_is_too_large_leaves_nothing(database: Database) -> None:
    with pytest.raises(InvalidInput) as caught:
        await sent(database, "a" * 11, request(), max_bytes=10)
    assert caught.value.field == "request_id"
    assert await names(database) == []
    assert await sent(database, "a" * 10, request(), max_bytes=10) == "a" * 10


async def test_other_content_and_other_methods_are_refused(database: Database) -> None:
    await sent(database, "a", request())
    with pytest.raises(AlreadyExists) as caught:
        await sent(database, "b", request(digest=b"e" * 32))
    assert caught.value.reason is Reason.REQUEST_CONTENT_CHANGED
    assert await names(database) == ["a"]


@pytest.mark.parametrize("error", [Busy("a deadlock"), Busy("a commit of unknown outcome")])
async def test_an_error_after_the_commit_finds_the_result(
    database: Database, error: Exception
) -> None:
    async def broken() -> str:
        await mark(database, "a")
        raise error

    one = request()
    assert await run(database, DEFAULT_TENANT, one, broken, max_bytes=100) == b"a"
    with pytest.raises(Busy):
        await run(database, DEFAULT_TENANT, request("s"), lambda: _raised(error), max_bytes=100)


async def test_a_failure_of_the_erasure_journal_is_reported(database: Database) -> None:
    error = Unavailable(Reason.ERASURE_JOURNAL_UNAVAILABLE, "it is deleted, but")

    async def unjournalled() -> str:
        await mark(database, "a")
        raise error

    one = request()
    with pytest.raises(Unavailable) as caught:
        await run(database, DEFAULT_TENANT, one, unjournalled, max_bytes=100)
    assert caught.value is error
    assert await run(database, DEFAULT_TENANT, one, unjournalled, max_bytes=100) == b"a"


async def _raised(error: Exception) -> str:
    raise error


async def test_a_use_case_that_stores_no_result_is_a_defect(database: Database) -> None:
    async def forgetful() -> str:
        return "nothing"

    with pytest.raises(RuntimeError, match="Mark did not store the result"):
        await run(database, DEFAULT_TENANT, request(), forgetful, max_bytes=100)


async def test_the_second_waits_for_the_first_and_is_rolled_back(database: Database) -> None:
    is_written, may_end = asyncio.Event(), asyncio.Event()

    def working(name: str, before: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[str]]:
        async def work() -> str:
            idempotency.serialize_with(lambda result: result.encode())
            async with database.transaction(DEFAULT_TENANT) as tx:
                await sessions.create(tx, session_key(DEFAULT_TENANT, name), name)
                await store_result(tx, name)
                is_written.set()
                await before()
            return name

        return work

    async def at_once() -> None:
        return None

    first = asyncio.create_task(
        run(database, DEFAULT_TENANT, request(), working("one", may_end.wait), max_bytes=100)
    )
    await is_written.wait()
    second = asyncio.create_task(
        run(database, DEFAULT_TENANT, request(), working("two", at_once), max_bytes=100)
    )
    async with database.sweeping() as look:
        # It has written its session, and waits for the key of the first.
        for _ in range(2000):
            waits = await look.fetch(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            )
            if waits[0][0]:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the second does not wait")
    may_end.set()
    assert [await first, await second] == ["one", b"one"]
    assert await names(database) == ["one"]


async def test_rows_are_their_tenants_and_go_when_they_expire(
    servers: Servers, url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SWEPT_ROWS", 10)
    for number in range(26):
        await sent(database, f"s{number:02}", request(f"r{number:02}"))
    async with database.direct(OTHER) as direct:
        assert await requests.read_response(direct, KEY, "r01") is None
    superuser = servers.as_superuser(url)
    with psycopg.connect(superuser) as other, psycopg.connect(superuser) as looking:

        def left() -> object:
            rows = looking.execute("SELECT count(*), min(request_id) FROM request").fetchone()
            looking.commit()
            return rows

        looking.execute(
            "UPDATE request SET expires_at = now() - interval '1 second' WHERE request_id < 'r25'"
        )
        looking.commit()
        # As another worker's sweep does.
        other.execute("SELECT pg_advisory_xact_lock(x'70616c72'::bigint)")
        await sweeping.sweep(database)
        assert left() == (26, "r00"), "it left them to the other one"
        other.rollback()
        await sweeping.sweep(database)
        assert left() == (1, "r25")
    # Its id is a new one now; the other one is still kept.
    assert await sent(database, "new", request("r00")) == "new"
    assert await sent(database, "new", request("r25")) == b"s25"
