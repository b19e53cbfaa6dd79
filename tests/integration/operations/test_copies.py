"""Sessions that were imported from others: what erasures list of them, and delete with them."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from service.app.kinds import use_cases
from service.domain.access.audit import AuditAction
from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.log.erasures import Erasure, ErasureRequest
from service.domain.values.tenancy import DEFAULT_TENANT, SYSTEM_TENANT, session_key
from service.settings.config import Limits
from service.usecases.access.erasures import Erasures
from service.usecases.access.tenants import Tenants
from service.usecases.log import sessions as session_usecase
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.erasure_journal import ErasureJournal
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.importing import Importer
from service.usecases.operations.redacting import RedactionRequest, Redactor
from storage.access import audit
from storage.engine.database import Database
from storage.log import erasures, sessions
from storage.log.selecting import Selection
from tests.integration.support.writing import append_texts, drop_wake_ups


async def session(database: Database, name: str) -> None:
    await session_usecase.create(database, DEFAULT_TENANT, name, language="simple")
    await append_texts(database, name, [f"a fact of {name}", "another"])


async def exported(database: Database, name: str) -> bytes:
    return b"".join([part async for part in Exporter(database).export(DEFAULT_TENANT, name)])


async def imported(
    database: Database,
    file: bytes,
    name: str,
    *,
    tenant: UUID = DEFAULT_TENANT,
    lines: int = 0,
    restore_deleted: bool = False,
) -> None:
    """Imports a file; with `lines` only the first ones."""
    importer = Importer(database, use_cases(), Limits(), token_key=b"token-key")
    header, *rest = file.splitlines(keepends=True)
    run = await importer.open(tenant, header, name, restore_deleted=restore_deleted)
    data = b"".join(rest[: lines - 1] if lines else rest)
    async for _ in run.feed(data):
        pass
    if not lines:
        run.end()


async def copied(database: Database, name: str, to: str) -> None:
    await imported(database, await exported(database, name), to)


def deleter(database: Database) -> Deleter:
    return Deleter(database, WakeUps(drop_wake_ups))


async def delete(database: Database, name: str, *, with_imports: bool = False) -> None:
    await deleter(database).delete_session(
        DEFAULT_TENANT, name, allow_missing=False, reason="asked", include_imports=with_imports
    )


def key(name: str) -> UUID:
    return session_key(DEFAULT_TENANT, name)


async def recorded(database: Database) -> Mapping[UUID | None, Erasure]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return {one.target_session: one for one in await erasures.list_after(tx, None, 100)}


def listed(erasure: Erasure) -> list[UUID]:
    return [UUID(one["session"]) for one in erasure.detail.get("imports", ())]


async def left(database: Database) -> set[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return {one.name for one in await sessions.list_after(tx, "", 100)}


async def named(database: Database, erasure: Erasure) -> list[str]:
    """Returns the sessions that a receipt names."""
    usecase = Erasures(database, Tenants(database), ErasureJournal(database, None), journals=False)
    with acting_as(LOCAL_IDENTITY):
        _, names = await usecase.receipt("", str(erasure.erasure_id))
    return list(names)


async def test_the_record_of_an_erasure_lists_the_imports_by_id(database: Database) -> None:
    await session(database, "s")
    await session(database, "other")
    await copied(database, "s", "a")
    await copied(database, "a", "b")
    await copied(database, "other", "c")
    await delete(database, "s")
    (erasure,) = (await recorded(database)).values()
    assert listed(erasure) == [key("a"), key("b")]
    assert "'a'" not in str(erasure.detail), "a record has no names"
    assert await named(database, erasure) == ["a", "b"]


async def test_a_copy_is_found_after_the_one_between_was_deleted(database: Database) -> None:
    await session(database, "s")
    await copied(database, "s", "a")
    await copied(database, "a", "b")
    await delete(database, "a")
    await delete(database, "s")
    found = await recorded(database)
    assert listed(found[key("a")]) == listed(found[key("s")]) == [key("b")]
    # What is imported later is named, too, and what was deleted is not.
    assert await named(database, found[key("s")]) == ["b"]
    await copied(database, "b", "d")
    await delete(database, "b")
    assert await named(database, found[key("s")]) == ["d"]


async def test_a_redaction_lists_the_imports(database: Database) -> None:
    await session(database, "s")
    await copied(database, "s", "a")
    redactor = Redactor(database, WakeUps(drop_wake_ups), b"key", max_chunks=100)
    wanted = RedactionRequest(session="s", selection=Selection(ranges=[(1, 1)]))
    await redactor.redact(DEFAULT_TENANT, wanted, ErasureRequest(reason="asked"))
    assert listed((await recorded(database))[key("s")]) == [key("a")]


async def test_imports_are_deleted_first_each_with_its_own_record(database: Database) -> None:
    for name in ("s", "other"):
        await session(database, name)
    file = await exported(database, "s")
    await imported(database, file, "a")
    await copied(database, "a", "b")
    # It has more than it was imported with.
    await append_texts(database, "b", ["its own"], first=3)
    await imported(database, file, "begun", lines=file.count(b"\n") - 1)
    await copied(database, "other", "c")
    with acting_as(replace(LOCAL_IDENTITY, principal="key:abc")):
        await delete(database, "s", with_imports=True)
    assert await left(database) == {"other", "c"}
    found = await recorded(database)
    assert set(found) == {key("s"), key("a"), key("b"), key("begun")}
    assert {(one.principal, one.reason) for one in found.values()} == {("key:abc", "asked")}
    assert listed(found[key("s")]) == [], "nothing is left of it"
    async with database.transaction(DEFAULT_TENANT) as tx:
        wanted = audit.AuditFilter(action=AuditAction.SESSION_DELETE)
        events = await audit.list_events(tx, wanted, after=0, newest_first=False, limit=100)
    deleted = [one.entry.session for one in events]
    assert sorted(deleted) == ["a", "b", "begun", "s"]
    assert deleted[-1] == "s"


async def test_without_it_imports_stay(database: Database) -> None:
    await session(database, "s")
    await copied(database, "s", "a")
    await delete(database, "s")
    assert await left(database) == {"a"}


async def test_all_pages_of_imports_are_deleted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.usecases.operations.deleting.PAGE_IMPORTS", 2)
    await session(database, "s")
    file = await exported(database, "s")
    for number in range(5):
        await imported(database, file, f"copy-{number}")
    await delete(database, "s", with_imports=True)
    assert await left(database) == set()


async def test_a_new_session_of_a_copys_name_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session(database, "s")
    await copied(database, "s", "a")
    of = deleter(database)
    find = of._imported

    async def meanwhile(tenant_id: UUID, of_session: UUID) -> object:
        found = await find(tenant_id, of_session)
        if found:
            await delete(database, "a")
            await session(database, "a")
        return found

    monkeypatch.setattr(of, "_imported", meanwhile)
    await of.delete_session(DEFAULT_TENANT, "s", allow_missing=False, include_imports=True)
    assert await left(database) == {"a"}


async def test_a_lineage_is_of_one_tenant(database: Database) -> None:
    other = SYSTEM_TENANT
    await session(database, "s")
    await imported(database, await exported(database, "s"), "a", tenant=other)
    await delete(database, "s", with_imports=True)
    assert listed((await recorded(database))[key("s")]) == []
    async with database.transaction(other) as tx:
        assert await sessions.get(tx, session_key(other, "a")) is not None
