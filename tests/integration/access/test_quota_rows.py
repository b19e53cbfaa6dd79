"""Quotas in the database: changes at once, deleted tenants, and what counts."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from service.app.kinds import use_cases
from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.access.quotas import QuotaName
from service.domain.operations.transfer.blocks import Header
from service.domain.values.errors import Exhausted, NotFound
from service.domain.values.reasons import Reason
from service.settings.config import Limits
from service.usecases.access.quotas import QuotaGuard, Quotas
from service.usecases.access.rate_limits import RateLimits
from service.usecases.access.tenants import Tenants
from service.usecases.log import sessions
from service.usecases.operations.import_rules import ImportRules
from service.usecases.operations.importing import Importer
from storage.access import quotas, tenants
from storage.access.token_buckets import SharedBuckets
from storage.engine.database import Database, Transaction
from storage.operations import tenant_removal

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"


@pytest.fixture(autouse=True)
def operator() -> Iterator[None]:
    with acting_as(LOCAL_IDENTITY):
        yield


def quotas_of(database: Database) -> Quotas:
    return Quotas(database, Tenants(database), Limits(), lambda: None)


async def waits(database: Database, task: "asyncio.Task[Any]") -> None:
    """Returns once a transaction waits for what another one has written."""
    async with database.sweeping() as tx:
        while await tx.fetch(WAITING) == [(0,)]:
            assert not task.done()


async def test_changes_at_once_are_all_kept(database: Database) -> None:
    name = f"t{uuid4().hex}"
    made = await Tenants(database).create(name, display_name="", is_suspended=False)
    async with database.transaction(made.tenant_id) as tx:
        await tenants.lock(tx)
        await quotas.write(tx, {QuotaName.SESSIONS: 5})
        update = quotas_of(database).update(name, {QuotaName.MEMORIES: 6})
        updating = asyncio.create_task(update)
        await waits(database, updating)
    _, quota = await updating
    assert (quota.sessions, quota.memories) == (5, 6)
    assert await quotas_of(database).get(name) == (made, quota)


async def test_a_tenant_that_is_deleted_meanwhile_is_not_found(database: Database) -> None:
    name = f"t{uuid4().hex}"
    made = await Tenants(database).create(name, display_name="", is_suspended=False)
    async with database.transaction(made.tenant_id) as tx:
        await tenant_removal.delete_tenant(tx)
        update = quotas_of(database).update(name, {QuotaName.MEMORIES: 6})
        updating = asyncio.create_task(update)
        await waits(database, updating)
    with pytest.raises(NotFound) as caught:
        await updating
    assert caught.value.reason is Reason.TENANT_NOT_FOUND


def guard_of(database: Database, **limits: int) -> QuotaGuard:
    rates = RateLimits(SharedBuckets(None))
    return QuotaGuard(database, Limits(**limits), rates, seconds=60)


async def test_an_import_is_a_session_from_its_beginning(database: Database) -> None:
    name = f"t{uuid4().hex}"
    tenant = (await Tenants(database).create(name, display_name="", is_suspended=False)).tenant_id
    guard = guard_of(database, tenant_sessions=1)
    rules = ImportRules(session_room=guard.session_room)
    importer = Importer(database, use_cases(), Limits(), rules)
    header = Header(
        session="s", export_id=uuid4(), exported_at=datetime.now(UTC), head=0, memories=0
    ).to_line()
    await importer.open(tenant, header, "imported")
    room = await guard.session_room(tenant)
    with pytest.raises(Exhausted) as caught:
        await sessions.create(database, tenant, "new", language="english", room=room)
    assert caught.value.metadata == {"quota": "sessions", "limit": "1"}
    with pytest.raises(Exhausted):
        await importer.open(tenant, header, "other")
    assert (await importer.open(tenant, header, "imported")).through_line, "it goes on"


async def test_what_is_far_from_its_limit_is_not_counted_each_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[QuotaName] = []
    count = quotas.count

    async def counting(tx: Transaction, name: QuotaName, limit: int) -> int:
        counted.append(name)
        return await count(tx, name, limit)

    monkeypatch.setattr(quotas, "count", counting)
    name = f"t{uuid4().hex}"
    tenant = (await Tenants(database).create(name, display_name="", is_suspended=False)).tenant_id
    guard = guard_of(database, tenant_sessions=10**15)
    for number in range(5):
        room = await guard.session_room(tenant)
        await sessions.create(database, tenant, f"s{number}", language="english", room=room)
    assert counted == [QuotaName.SESSIONS]
    near = guard_of(database, tenant_sessions=7)
    for number in range(5, 7):
        room = await near.session_room(tenant)
        await sessions.create(database, tenant, f"s{number}", language="english", room=room)
    room = await near.session_room(tenant)
    with pytest.raises(Exhausted):
        await sessions.create(database, tenant, "one more", language="english", room=room)
