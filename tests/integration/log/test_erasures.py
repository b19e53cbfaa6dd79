"""What is deleted leaves a record: who asked, what went by table, and digests instead of text."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.log.erasures import (
    DIGEST_BYTES,
    MAX_DIGESTS,
    Erasure,
    ErasureKind,
    digest_of,
)
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.log import sessions as session_usecase
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations import deleting as usecase
from service.usecases.operations.deleting import Deleter, Remover
from storage.engine.database import Database
from storage.log import deleting, erasures
from tests.integration.support.scripted import CONFIG, ITEM, KEY, MEMORY, Script, make, prism_method
from tests.integration.support.writing import append_texts, drop_wake_ups

TEXTS = ["The harbour museum is closed on Mondays.", "yes", "Der Bäcker öffnet um sechs Uhr."]
OTHER_TENANT = UUID(int=7)


async def filled(database: Database) -> None:
    await make(database, TEXTS)
    await prism_method(database, Script()).drain(ITEM)


def deleter(database: Database) -> Deleter:
    return Deleter(database, WakeUps(drop_wake_ups))


async def listed(database: Database, tenant: UUID = DEFAULT_TENANT) -> list[Erasure]:
    async with database.transaction(tenant) as tx:
        return list(await erasures.list_after(tx, None, 100))


async def counted(database: Database, which: str = "") -> dict[str, int]:
    """Returns the rows of each table of the session, or of one of its memories."""
    found: dict[str, int] = {}
    async with database.transaction(DEFAULT_TENANT) as tx:
        tables = (*deleting._OF_SESSION, *deleting._LOG, "memory")
        for table in deleting._OF_MEMORIES if which else tables:
            query = f"SELECT count(*) FROM {table} WHERE session_key = %(key)s {which}"
            ((count,),) = await tx.fetch(query, {"key": KEY, "memory": MEMORY})
            if count:
                found[table] = count
    return found


async def digests(database: Database, texts: list[str]) -> set[bytes]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = (await erasures.keys(tx)).digest
    return {digest_of(key, text.encode()) for text in texts}


def cut(all_of: bytes) -> set[bytes]:
    return {all_of[at : at + DIGEST_BYTES] for at in range(0, len(all_of), DIGEST_BYTES)}


@pytest.mark.parametrize("batch", [2000, 1])
async def test_a_session_leaves_a_record_that_counts_every_row(
    database: Database, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    await filled(database)
    before = await counted(database)
    assert {"chunk", "revision", "memory", "call", "memory_entry"} <= set(before)
    monkeypatch.setattr(usecase, "BATCH_ROWS", batch)
    admin = replace(LOCAL_IDENTITY, principal="key:abc")
    with acting_as(admin):
        await deleter(database).delete_session(
            DEFAULT_TENANT, "s", allow_missing=False, reason="the user asked"
        )
    if batch == 1:
        (erasure,) = await listed(database)
        assert not erasure.is_complete
        assert erasure.counts
    item = WorkItem(kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    await Remover(database, CONFIG).remove(item)
    (erasure,) = await listed(database)
    assert (erasure.kind, erasure.target_session, erasure.target_item) == ("session", KEY, KEY)
    assert (erasure.principal, erasure.reason) == ("key:abc", "the user asked")
    assert erasure.is_complete
    assert erasure.counts == before
    found = cut(erasure.digests)
    assert await digests(database, [TEXTS[0], TEXTS[2]]) <= found
    assert not await digests(database, [TEXTS[1]]) & found, "a short text has no digest"


async def test_a_memory_leaves_a_record(database: Database) -> None:
    await filled(database)
    before = await counted(database, "AND memory_id = %(memory)s")
    await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    (erasure,) = await listed(database)
    assert (erasure.kind, erasure.target_item) == (ErasureKind.MEMORY, MEMORY)
    assert erasure.is_complete
    assert {name: erasure.counts[name] for name in before} == before
    assert erasure.counts["memory"] == 1
    assert erasure.counts["call.texts"] >= 1
    assert "chunk" not in erasure.counts
    with pytest.raises(Exception, match="no memory"):
        await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    assert len(await listed(database)) == 1, "what was not there leaves no record"


async def test_a_session_completes_the_erasure_of_its_memory(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(database)
    monkeypatch.setattr(usecase, "BATCH_ROWS", 1)
    await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    monkeypatch.setattr(usecase, "BATCH_ROWS", 2000)
    await deleter(database).delete_session(DEFAULT_TENANT, "s", allow_missing=False)
    of_memory, of_session = await listed(database)
    assert (of_memory.kind, of_session.kind) == (ErasureKind.MEMORY, ErasureKind.SESSION)
    assert of_memory.is_complete
    assert of_session.is_complete
    # A later session of the name has records of its own.
    await append_texts_anew(database)
    await deleter(database).delete_session(DEFAULT_TENANT, "s", allow_missing=False)
    *before, newest = await listed(database)
    assert before == [of_memory, of_session]
    assert newest.counts["chunk"] == 1


async def append_texts_anew(database: Database) -> None:
    await session_usecase.create(database, DEFAULT_TENANT, "s", language="english")
    await append_texts(database, "s", ["another"])


async def test_digests_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    few = erasures._ADD.replace(str(MAX_DIGESTS * DIGEST_BYTES), str(2 * DIGEST_BYTES))
    assert few != erasures._ADD
    monkeypatch.setattr(erasures, "_ADD", few)
    await make(database, [f"a text that is long enough {n}" for n in range(5)])
    await deleter(database).delete_session(DEFAULT_TENANT, "s", allow_missing=False)
    (erasure,) = await listed(database)
    assert (len(erasure.digests), erasure.digests_omitted) == (2 * DIGEST_BYTES, 3)


async def test_records_and_keys_are_the_tenants_and_stay(database: Database) -> None:
    await filled(database)
    await deleter(database).delete_session(DEFAULT_TENANT, "s", allow_missing=False)
    async with database.transaction(DEFAULT_TENANT) as tx:
        first = await erasures.keys(tx)
        assert await erasures.keys(tx) == first
    assert await listed(database, OTHER_TENANT) == []
    statements: list[Any] = ["DELETE FROM erasure", "UPDATE erasure SET principal = 'x'"]
    statements += ["DELETE FROM tenant_key", "UPDATE tenant_key SET created_at = now()"]
    for statement in statements:
        with pytest.raises(Exception, match="permission denied"):
            async with database.transaction(DEFAULT_TENANT) as tx:
                await tx.execute(statement)
    (erasure,) = await listed(database)
    page: tuple[datetime, UUID] = (erasure.requested_at, erasure.erasure_id)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await erasures.list_after(tx, page, 10) == []
        assert await erasures.find(tx, erasure.erasure_id) == erasure
        assert await erasures.find(tx, UUID(int=1)) is None
