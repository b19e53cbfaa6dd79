"""The audit log: written with the action, in order, and never changed."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from uuid import uuid4

import psycopg
import pytest

from service.domain.access.audit import (
    NO_DIGEST,
    AuditAction,
    AuditEntry,
    AuditEvent,
    broken_at,
)
from service.domain.access.identity import ALL_SCOPES, Identity, acting_as
from service.domain.spend.budgets import BudgetLimits, BudgetOwner, BudgetPeriod, BudgetScope
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.deleting import Deleter
from service.usecases.spend.budgets import Budgets
from storage.access import audit
from storage.access.audit import AuditFilter
from storage.engine.database import Database
from tests.integration.support.scripted import make
from tests.integration.support.writing import drop_wake_ups
from tests.support.harness import Servers

REFUSALS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.RestrictViolation)
ADMIN = Identity(tenant_id=DEFAULT_TENANT, principal="key:k1", scopes=ALL_SCOPES)


async def recorded(
    database: Database,
    wanted: AuditFilter | None = None,
    *,
    after: int = 0,
    newest_first: bool = False,
    limit: int = 100,
) -> Sequence[AuditEvent]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return await audit.list_events(
            tx, wanted or AuditFilter(), after=after, newest_first=newest_first, limit=limit
        )


def entry(target: str) -> AuditEntry:
    return AuditEntry(action=AuditAction.KEY_CREATE, target=target)


async def test_an_event_commits_with_its_action_or_not_at_all(database: Database) -> None:
    async def write() -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await audit.record(tx, entry("a"))

    # Outside of all calls.
    await asyncio.create_task(write(), context=Context())

    async def fail() -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await audit.record(tx, entry("b"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.transaction(DEFAULT_TENANT) as tx:
        await audit.record(tx, entry("c"), principal="jwt:ann")
    found = await recorded(database)
    assert [(one.sequence, one.entry.target, one.principal) for one in found] == [
        (1, "a", "service"),
        (2, "c", "jwt:ann"),
    ]
    assert broken_at(found, after=(0, NO_DIGEST)) is None
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await audit.head(tx) == (2, found[1].digest)


async def test_events_of_many_writers_are_one_chain(database: Database) -> None:
    async def write(number: int) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await audit.record(tx, entry(f"k{number}"))

    await asyncio.gather(*(write(number) for number in range(20)))
    found = await recorded(database)
    assert [one.sequence for one in found] == list(range(1, 21))
    assert {one.entry.target for one in found} == {f"k{number}" for number in range(20)}
    assert broken_at(found, after=(0, NO_DIGEST)) is None


async def test_pages_and_filters(database: Database) -> None:
    for number in range(1, 8):
        async with database.transaction(DEFAULT_TENANT) as tx:
            action = AuditAction.KEY_REVOKE if number % 2 else AuditAction.BUDGET_SET
            one = AuditEntry(action=action, session="s" if number == 4 else "")
            await audit.record(tx, one, principal=f"key:{number}")
    found = await recorded(database, after=3, limit=2)
    assert [one.sequence for one in found] == [4, 5]
    found = await recorded(database, newest_first=True, limit=2)
    assert [one.sequence for one in found] == [7, 6]
    found = await recorded(database, after=6, newest_first=True, limit=2)
    assert [one.sequence for one in found] == [5, 4]
    for wanted, sequences in (
        (AuditFilter(action="key."), [1, 3, 5, 7]),
        (AuditFilter(action="budget.set"), [2, 4, 6]),
        (AuditFilter(session="s"), [4]),
        (AuditFilter(principal="key:6"), [6]),
        (AuditFilter(first_time=found[1].occurred_at), [4, 5, 6, 7]),
        (AuditFilter(last_time=found[1].occurred_at), [1, 2, 3, 4]),
    ):
        assert [one.sequence for one in await recorded(database, wanted)] == sequences


async def test_an_event_cannot_be_changed_nor_removed(
    database: Database, servers: Servers, url: str
) -> None:
    for target in "ab":
        async with database.transaction(DEFAULT_TENANT) as tx:
            await audit.record(tx, entry(target))
    statements = (
        "UPDATE audit_event SET principal = 'x'",
        "DELETE FROM audit_event",
        "DELETE FROM audit_head",
        "UPDATE audit_head SET sequence = 0",
        "TRUNCATE audit_event",
        "TRUNCATE audit_head",
    )
    for statement in statements:
        with psycopg.connect(url) as app:
            app.execute("SET ROLE palimpsest_app")
            app.execute(f"SET app.tenant = '{DEFAULT_TENANT}'")
            with pytest.raises(REFUSALS):
                app.execute(statement)
        # Nor by an administrator of the database, who would have to drop the trigger first.
        with (
            psycopg.connect(servers.as_superuser(url)) as admin,
            pytest.raises(psycopg.errors.RestrictViolation, match="append-only"),
        ):
            admin.execute(statement)
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute("ALTER TABLE audit_event DISABLE TRIGGER USER")
        admin.execute("UPDATE audit_event SET principal = 'x' WHERE sequence = 1")
    assert broken_at(await recorded(database), after=(0, NO_DIGEST)) == 1


async def test_the_log_of_a_tenant_is_its_own_and_goes_with_it(
    database: Database, servers: Servers, url: str
) -> None:
    other = uuid4()
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other')", (other,))
    async with database.transaction(other) as tx:
        await audit.record(tx, entry("theirs"))
    async with database.transaction(DEFAULT_TENANT) as tx:
        await audit.record(tx, entry("ours"))
    (ours,) = await recorded(database)
    assert (ours.sequence, ours.entry.target) == (1, "ours")
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute("UPDATE tenant SET deleted_at = now() WHERE tenant_id = %s", (other,))
        for table in ("audit_event", "audit_head"):
            admin.execute(f"DELETE FROM {table} WHERE tenant_id = %s", (other,))
    assert await recorded(database) == [ours]


async def test_deletions_and_budgets_are_recorded_and_what_was_missing_is_not(
    database: Database,
) -> None:
    await make(database, ["The harbour museum is closed on Mondays."])
    wake_ups = WakeUps(drop_wake_ups)
    deleter, budgets = Deleter(database, wake_ups), Budgets(database, wake_ups)
    owner = BudgetOwner(scope=BudgetScope.SESSION, session="s")
    with acting_as(ADMIN):
        limits = BudgetLimits(tokens=5, micro_usd=None)
        await budgets.put(DEFAULT_TENANT, owner, BudgetPeriod.DAY, limits)
        await budgets.delete(DEFAULT_TENANT, owner, BudgetPeriod.DAY, allow_missing=False)
        await budgets.delete(DEFAULT_TENANT, owner, BudgetPeriod.DAY, allow_missing=True)
        for _ in range(2):
            await deleter.delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=True)
            await deleter.delete_answer(DEFAULT_TENANT, "s", uuid4(), allow_missing=True)
        for _ in range(2):
            await deleter.delete_session(DEFAULT_TENANT, "s", allow_missing=True)
    found = await recorded(database)
    assert {one.principal for one in found} == {"key:k1"}
    assert [
        (one.entry.action, one.entry.session, one.entry.memory, dict(one.entry.details))
        for one in found
    ] == [
        ("budget.set", "s", "", {"period": "day", "tokens": 5}),
        ("budget.delete", "s", "", {"period": "day"}),
        ("memory.delete", "s", "m", {}),
        ("session.delete", "s", "", {}),
    ]
    assert broken_at(found, after=(0, NO_DIGEST)) is None
