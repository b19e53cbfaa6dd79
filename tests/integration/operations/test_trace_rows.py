"""Contexts of traces: written with the work that they are of, seen by their tenant, swept."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest
from opentelemetry.trace import SpanContext, TraceFlags

from service.domain.prism.spec import PrismSpec
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log import append_traces
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine import sweeping, trace_contexts
from storage.engine.claims import Fenced
from storage.engine.database import Database
from storage.log import sessions
from storage.memories.revisions import NewRevision, claim, commit_revision
from tests.integration.support.scripted import KEY, MEMORY, make
from tests.integration.support.statements import statements
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.harness import Servers

OTHER = UUID(int=7)


def context(number: int) -> SpanContext:
    return SpanContext(
        trace_id=number, span_id=number, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


@pytest.fixture
async def appender(database: Database) -> AsyncIterator[Appender]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, session_key(DEFAULT_TENANT, "s"), "s")
    made = Appender(database, WakeUps(drop_wake_ups), b"k" * 32, Limits())
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def read(database: Database, *, after: int, upto: int) -> list[tuple[int, int]]:
    async with database.direct(DEFAULT_TENANT) as tx:
        found = await trace_contexts.read(tx, KEY, KEY, after=after, upto=upto)
    return [(number, one.trace_id) for number, one in found]


async def test_contexts_come_with_their_chunks_in_as_many_statements(
    database: Database, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[SpanContext | None] = []
    monkeypatch.setattr(append_traces, "sent", lambda *_: traced.pop(0))

    async def sent(first: int, one: SpanContext | None) -> int:
        """Returns how many statements an append of two chunks takes."""
        traced.append(one)
        texts = [f"chunk {first}", f"chunk {first + 1}"]
        with statements() as seen:
            await appender.submit(DEFAULT_TENANT, submission("s", texts, first=first))
        return len(seen)

    # The first is written under the lock, the others on a guess.
    locked = await sent(1, context(1))
    plain, fast = await sent(3, None), await sent(5, context(2))
    assert (fast, plain) == (plain, fast)
    assert locked > fast, "with its lock"
    assert await read(database, after=0, upto=6) == [(2, 1), (6, 2)]
    assert await read(database, after=1, upto=2) == [(2, 1)], "a part of what was appended"
    assert await read(database, after=2, upto=5) == [(6, 2)]
    assert await read(database, after=2, upto=4) == []


async def test_an_append_whose_guess_was_wrong_has_its_context_where_its_chunks_are(
    database: Database, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[SpanContext | None] = [None, None, context(1)]
    monkeypatch.setattr(append_traces, "sent", lambda *_: traced.pop(0))
    await appender.submit(DEFAULT_TENANT, submission("s", ["a"]))
    other = Appender(database, WakeUps(drop_wake_ups), b"k" * 32, Limits())
    running = asyncio.create_task(other.run())
    await other.submit(DEFAULT_TENANT, submission("s", ["b", "c"], producer="q"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await appender.submit(DEFAULT_TENANT, submission("s", ["d"], first=2))
    assert await read(database, after=0, upto=9) == [(4, 1)]


async def test_a_commit_and_its_context_are_written_together_or_not_at_all(
    database: Database,
) -> None:
    await make(database, ["a", "b"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await claim(tx, KEY, MEMORY, PrismSpec.kind)
    assert held is not None
    new = NewRevision(kind="step", to_position=1, digest=b"", value='{"topics":{}}')
    for number in (1, 2):
        traced = replace(new, trace=context(number))
        async with database.direct(DEFAULT_TENANT) as direct:
            if number == 1:
                await commit_revision(direct, held, traced, has_work=True)
            else:
                with pytest.raises(Fenced):
                    await commit_revision(direct, held, traced, has_work=True)
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await trace_contexts.read(tx, KEY, MEMORY, after=0, upto=9)
    assert [(number, one.trace_id) for number, one in found] == [(1, 1)]


async def test_contexts_are_their_tenants_and_go_after_a_day_and_with_their_session(
    servers: Servers, url: str, database: Database
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
        for number in (1, 2, 3):
            await trace_contexts.add(tx, KEY, KEY, number, context(number))
    async with database.direct(OTHER) as direct:
        assert await trace_contexts.read(direct, KEY, KEY, after=0, upto=9) == []
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute(
            "UPDATE trace_context SET created_at = now() - interval '25 hours'"
            " WHERE to_position < 3"
        )
        await sweeping.sweep(database)
        assert await read(database, after=0, upto=9) == [(3, 3)]
        connection.execute("DELETE FROM session")
        left = connection.execute("SELECT count(*) FROM trace_context").fetchone()
    assert left == (0,)


async def test_one_sweep_removes_all_that_is_old_and_none_is_in_the_way_of_another(
    servers: Servers, url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SWEPT_ROWS", 10)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
        for number in range(1, 26):
            await trace_contexts.add(tx, KEY, KEY, number, context(number))
    superuser = servers.as_superuser(url)
    with psycopg.connect(superuser) as other, psycopg.connect(superuser) as looking:
        looking.execute("UPDATE trace_context SET created_at = now() - interval '25 hours'")
        looking.commit()
        # As another worker's sweep does that has these rows in hand.
        other.execute("SELECT pg_advisory_xact_lock(x'70616c74'::bigint)")
        other.execute("DELETE FROM trace_context WHERE to_position <= 10")
        await sweeping.sweep(database)
        assert len(await read(database, after=0, upto=30)) == 25, "it left them to the other one"
        other.rollback()
        await sweeping.sweep(database)
        assert await read(database, after=0, upto=30) == []
