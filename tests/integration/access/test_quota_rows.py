"""Quotas in the database: changes at once, and of a tenant that is being deleted."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.access.quotas import QuotaName
from service.domain.values.errors import NotFound
from service.domain.values.reasons import Reason
from service.settings.config import Limits
from service.usecases.access.quotas import Quotas
from service.usecases.access.tenants import Tenants
from storage.access import quotas, tenants
from storage.engine.database import Database
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
