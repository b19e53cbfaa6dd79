"""A tenant is deleted: hidden at once, removed by workers, with a receipt; others stay."""

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from service.app.kinds import use_cases
from service.domain.access.identity import ALL_SCOPES, LOCAL_IDENTITY, Identity, acting_as
from service.domain.access.keys import NewKey
from service.domain.log.erasures import Erasure, ErasureKind
from service.domain.operations.transfer.blocks import BlockWriter, ExportPlace, Header
from service.domain.values.errors import (
    Conflict,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, SYSTEM_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.access.audit_log import AuditLog
from service.usecases.access.erasures import Erasures
from service.usecases.access.keys import Keys
from service.usecases.access.tenants import Tenants
from service.usecases.log import sessions
from service.usecases.operations.deleting import Remover
from service.usecases.operations.erasure_journal import ErasureJournal
from service.usecases.operations.importing import Importer
from service.usecases.operations.signing import check_signature
from service.usecases.operations.tenant_removal import TenantRemover
from storage.access.audit import AuditFilter
from storage.engine.database import Database
from storage.operations import tenant_removal
from tests.integration.support.scripted import CONFIG

#: What stays of a deleted tenant.
KEPT = {"tenant", "audit_event", "audit_head", "erasure", "tenant_key"}
EVERYTHING = AuditFilter(action="", session="", principal="", first_time=None, last_time=None)
TABLES = """
SELECT c.relname FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
    AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id')
    AND has_table_privilege(c.oid, 'SELECT')
"""


@pytest.fixture(autouse=True)
def operator() -> Iterator[None]:
    with acting_as(LOCAL_IDENTITY):
        yield


def erasures_of(database: Database) -> Erasures:
    journal = ErasureJournal(database, None)
    return Erasures(database, Tenants(database), journal, journals=False)


async def make_tenant(database: Database, name: str, count: int) -> UUID:
    """Makes a tenant with some sessions and a key."""
    tenants = Tenants(database)
    made = await tenants.create(name, display_name=f"{name} Inc.", is_suspended=False)
    keys = Keys(database, tenants, lambda: None, max_keys=5)
    key = NewKey(display_name="k", scopes=ALL_SCOPES, session_prefix="", expires_at=None)
    await keys.create(name, key)
    for number in range(count):
        await sessions.create(database, made.tenant_id, f"s{number}", language="english")
    return made.tenant_id


async def rows(database: Database, tenant: UUID) -> dict[str, int]:
    """Returns how many rows each table has of a tenant, hidden ones among them."""
    found = {}
    async with database.transaction(tenant) as tx:
        await tx.execute("SET LOCAL app.removing = 'on'")
        for (table,) in await tx.fetch(TABLES):
            query = f"SELECT count(*) FROM {table} WHERE tenant_id = %s"
            ((count,),) = await tx.fetch(query, (tenant,))
            if count:
                found[table] = count
    return found


async def work(database: Database, tenant: UUID, count: int) -> None:
    """Does what workers do, until the tenant is removed."""
    remover = TenantRemover(database)
    for _ in range(10):
        await remover.look()
        for number in range(count):
            key = session_key(tenant, f"s{number}")
            item = WorkItem(kind=WorkKind.REMOVAL, tenant_id=tenant, session_key=key, item_id=key)
            await Remover(database, CONFIG).remove(item)
        async with database.sweeping() as tx:
            if not await tenant_removal.pending(tx):
                return
    raise AssertionError("it is not removed")


async def test_a_deleted_tenant_leaves_its_receipt_and_its_audit_log(
    database: Database,
) -> None:
    name, twin = f"t{uuid4().hex}", f"t{uuid4().hex}"
    tenant, other = await make_tenant(database, name, 25), await make_tenant(database, twin, 2)
    before = await rows(database, other)
    assert {"session", "api_key", "audit_event"} <= set(before)
    made = await erasures_of(database).delete_tenant(name, "they asked")
    assert (made.kind, made.target_session, made.reason) == (ErasureKind.TENANT, None, "they asked")
    with pytest.raises(FailedPrecondition) as caught:
        await erasures_of(database).receipt(str(tenant), str(made.erasure_id))
    assert caught.value.reason is Reason.ERASURE_NOT_COMPLETE
    await work(database, tenant, 25)
    assert set(await rows(database, tenant)) == KEPT
    receipt, _ = await erasures_of(database).receipt(str(tenant), str(made.erasure_id))
    check_signature(receipt)
    assert receipt.kind is ErasureKind.TENANT
    assert receipt.body["removed"]["api_key"] == 1
    page = await erasures_of(database).page(str(tenant), None, 100)
    assert len(page.erasures) == 26
    assert page.public_key == receipt.public_key
    wanted = replace(EVERYTHING, action="tenant.delete")
    log = AuditLog(database, Tenants(database))
    found = await log.page(str(tenant), wanted, after=0, newest_first=False, limit=9)
    assert [one.entry.target for one in found.events] == [name]
    # An operator who knows no id of it proves its deletion.
    system = await log.page("system", wanted, after=0, newest_first=True, limit=9)
    (event,) = [one for one in system.events if one.entry.target == name]
    assert event.principal == made.principal
    assert event.entry.details == {"erasure": str(made.erasure_id), "tenant_uid": str(tenant)}
    again, _ = await erasures_of(database).receipt("system", str(made.erasure_id))
    assert again == receipt
    async with database.transaction(tenant) as tx:
        ((said,),) = await tx.fetch("SELECT display_name FROM tenant")
    assert said == ""
    assert await rows(database, other) == before, "the twin stays"
    with pytest.raises(NotFound):
        await erasures_of(database).delete_tenant(name, "")
    assert await make_tenant(database, name, 1) != tenant, "the name is free"


async def test_the_system_tenant_lists_the_deletions_of_all(database: Database) -> None:
    erasures = erasures_of(database)
    made = []
    for name in (f"t{uuid4().hex}", f"t{uuid4().hex}"):
        await make_tenant(database, name, 1)
        made.append(await erasures.delete_tenant(name, ""))
    listed: list[Erasure] = []
    after = None
    while page := (await erasures.page("system", after, 1)).erasures:
        listed += page
        after = page[-1].requested_at, page[-1].erasure_id
    assert listed == sorted(listed, key=lambda one: (one.requested_at, one.erasure_id))
    ids = [one.erasure_id for one in listed]
    assert [one for one in listed if one.erasure_id in {two.erasure_id for two in made}] == made
    assert len(ids) == len(set(ids))
    assert all(one.kind is ErasureKind.TENANT for one in listed if one.tenant_id != SYSTEM_TENANT)
    own = (await erasures.page("", None, 1000)).erasures
    assert not {one.erasure_id for one in own} & {one.erasure_id for one in made}
    with pytest.raises(NotFound):
        await erasures.receipt("", str(made[0].erasure_id))


HEADER = Header(
    session="s", export_id=uuid4(), exported_at=datetime.now(UTC), head=0, memories=0
).to_line()
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"


async def refused(work: Awaitable[object]) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await work
    assert (caught.value.reason, caught.value.metadata) == (
        Reason.CREDENTIALS_INVALID,
        {"cause": "tenant"},
    )


async def test_a_server_that_trusts_a_key_still_adds_no_session(database: Database) -> None:
    name = f"t{uuid4().hex}"
    tenant = await make_tenant(database, name, 1)
    await erasures_of(database).delete_tenant(name, "")
    importer = Importer(database, use_cases(), Limits())
    for is_removed in (False, True):
        await refused(sessions.create(database, tenant, "new", language="english"))
        await refused(importer.open(tenant, HEADER, "new"))
        if not is_removed:
            await work(database, tenant, 1)
    assert set(await rows(database, tenant)) == KEPT


async def test_an_import_that_is_not_finished_is_removed_with_its_tenant(
    database: Database,
) -> None:
    name = f"t{uuid4().hex}"
    tenant = await make_tenant(database, name, 0)
    importer = Importer(database, use_cases(), Limits())
    run = await importer.open(tenant, HEADER, "s0")
    await erasures_of(database).delete_tenant(name, "")
    block = BlockWriter().close(ExportPlace(kind="session"))
    with pytest.raises(Conflict) as caught:
        async for _ in run.feed(block):
            pass
    assert caught.value.reason is Reason.IMPORT_CONFLICT
    await work(database, tenant, 1)
    assert set(await rows(database, tenant)) == KEPT


async def test_a_session_that_is_added_beside_a_deletion_waits_for_it(
    database: Database,
) -> None:
    tenant = await make_tenant(database, f"t{uuid4().hex}", 0)
    async with database.transaction(tenant) as tx:
        await tenant_removal.delete_tenant(tx)
        adding = asyncio.create_task(sessions.create(database, tenant, "new", language="english"))
        async with database.sweeping() as other:
            while await other.fetch(WAITING) == [(0,)]:
                assert not adding.done()
    await refused(adding)


@pytest.mark.parametrize("name", ["default", "system"])
async def test_tenants_that_every_deployment_has_are_refused(database: Database, name: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        await erasures_of(database).delete_tenant(name, "")
    assert caught.value.reason is Reason.TENANT_PROTECTED


async def test_only_operators_delete_tenants_and_read_what_is_left_of_them(
    database: Database,
) -> None:
    name = f"t{uuid4().hex}"
    tenant = await make_tenant(database, name, 0)
    other = await make_tenant(database, f"t{uuid4().hex}", 0)
    admin = Identity(tenant_id=other, principal="key:x", scopes=ALL_SCOPES)
    made = await erasures_of(database).delete_tenant(name, "")
    with acting_as(admin):
        with pytest.raises(PermissionDenied):
            await erasures_of(database).delete_tenant(name, "")
        for tenant_name in (name, str(tenant)):
            with pytest.raises(NotFound) as caught:
                await erasures_of(database).receipt(tenant_name, str(made.erasure_id))
            assert caught.value.reason is Reason.TENANT_NOT_FOUND
            log = AuditLog(database, Tenants(database))
            with pytest.raises(NotFound):
                await log.page(tenant_name, EVERYTHING, after=0, newest_first=False, limit=9)
    with acting_as(replace(admin, tenant_id=DEFAULT_TENANT)), pytest.raises(NotFound) as caught:
        await erasures_of(database).receipt("", str(made.erasure_id))
    assert caught.value.reason is Reason.ERASURE_NOT_FOUND


async def test_rows_of_a_tenant_that_is_not_deleted_stay(database: Database) -> None:
    tenant = await make_tenant(database, f"t{uuid4().hex}", 1)
    async with database.transaction(tenant) as tx:
        for table in ("session", "api_key", "tenant_spend_sum", "retention_turn"):
            assert await tx.execute(f"DELETE FROM {table}") == 0
    assert {"session", "api_key"} <= set(await rows(database, tenant))
