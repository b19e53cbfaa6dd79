"""Tests that the trust in sources moves with a session, and raises none of the importing tenant."""

import json
from collections.abc import Mapping
from hashlib import sha256
from uuid import uuid4

import pytest

from service.app.kinds import use_cases
from service.domain.access.trust import Trust
from service.domain.operations.transfer.blocks import BlockWriter, ExportPlace, line_of
from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.access.sources import Sources
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.importing import Importer
from storage.access import source_trust
from storage.engine.database import Database
from tests.integration.access.test_quarantine import drain, poisoned, quarantine
from tests.integration.access.test_source_trust import said, trust
from tests.integration.operations.test_moved_quarantines import Sql, digest_first
from tests.integration.operations.test_retention import admin as admin
from tests.integration.operations.test_transfers import content, exported, imported
from tests.integration.support.scripted import make
from tests.integration.support.writing import append_chunks, drop_wake_ups

B, U, T = Trust.BLOCKED, Trust.UNVERIFIED, Trust.TRUSTED


async def append_of(database: Database, admin: Sql, *sources: str) -> None:
    await make(database, [])
    await digest_first(admin)
    await append_chunks(database, "s", [said("x", one) for one in sources])


async def levels(database: Database, session: str = "copy") -> dict[str, Trust]:
    """Returns how much each source is trusted that a session has."""
    key = session_key(DEFAULT_TENANT, session)
    async with database.transaction(DEFAULT_TENANT) as tx:
        query = f"SELECT c.source, {source_trust.of_chunk()} FROM chunk c WHERE session_key = %s"
        rows = await tx.fetch(query, (key,))
    return {source or "": Trust(level or "trusted") for source, level in rows}


async def rules(database: Database, session: str = "copy") -> dict[str, Trust]:
    """Returns the rules of a session itself."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await source_trust.list_rules(tx, session_key(DEFAULT_TENANT, session))
    return {one.source: one.trust for one in found if not one.is_tenant_wide}


async def forget_rules(database: Database) -> None:
    """Leaves the tenant without rules, as another one may be."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("DELETE FROM source_trust WHERE session_key = tenant_id")


def records_of(file: bytes) -> Mapping[str, str]:
    lines = [json.loads(one) for one in file.splitlines()]
    return {one["source"]: one["trust"] for one in lines if one["record"] == "source_rule"}


async def test_rules_of_session_and_tenant_become_those_of_the_copy(
    database: Database, admin: Sql
) -> None:
    await append_of(database, admin, "web:a", "web:b", "mail", "")
    await trust(database, "web:a", B)
    await trust(database, "later", U)
    await trust(database, "mail", T)
    await trust(database, "web:*", U, tenant_wide=True)
    await trust(database, "mail", B, tenant_wide=True)
    await trust(database, "else:*", B, tenant_wide=True)
    before = await levels(database, "s")
    file = await exported(database, "s")
    assert records_of(file) == {"later": U, "mail": T, "web:*": U, "web:a": B}
    await forget_rules(database)
    await imported(database, file, "copy")
    assert await levels(database) == before == {"web:a": B, "web:b": U, "mail": T, "": T}
    assert await rules(database) == {"later": U, "web:*": U, "web:a": B}


async def test_no_source_is_raised_above_the_importing_tenants_level(
    database: Database, admin: Sql
) -> None:
    await append_of(database, admin, "web:a", "web:b", "mail")
    await trust(database, "web:*", T)
    await trust(database, "mail", U)
    file = await exported(database, "s")
    await trust(database, "web:a", B, tenant_wide=True)
    await trust(database, "m*", B, tenant_wide=True)
    await imported(database, file, "copy")
    assert await levels(database) == {"web:a": B, "web:b": T, "mail": B}
    assert await rules(database) == {}


async def test_what_the_tenant_blocks_during_an_import_is_blocked(
    database: Database, admin: Sql
) -> None:
    await append_of(database, admin, "web:a")
    await trust(database, "web:*", U)
    file = await exported(database, "s")
    lines = file.splitlines(keepends=True)
    importer = Importer(database, use_cases(), Limits())
    run = await importer.open(DEFAULT_TENANT, lines[0], "copy")
    async for _ in run.feed(b"".join(lines[1:-1])):
        pass
    await trust(database, "web:a", B, tenant_wide=True)
    assert [one async for one in run.feed(lines[-1])]
    assert await rules(database) == {"web:*": U, "web:a": B}


async def test_a_quarantined_source_stays_so_until_it_is_released(
    database: Database, admin: Sql
) -> None:
    await poisoned(database, chunk_tokens=1000)
    await digest_first(admin)
    await quarantine(database)
    await drain(database)
    file = await exported(database, "s")
    await imported(database, file, "copy")
    assert content(await exported(database, "copy")) == content(file)
    assert (await levels(database))["web"] is B
    sources = Sources(database, WakeUps(drop_wake_ups), max_memory_bytes=1024 * 1024)
    released = await sources.release(DEFAULT_TENANT, "copy", "web")
    assert released.trust is T
    (memory,) = released.memories
    assert memory.undone is not None, "what the quarantine undid is there again"
    assert await rules(database) == {}


async def test_a_quarantine_after_the_cut_is_not_in_the_file(
    database: Database, admin: Sql
) -> None:
    await poisoned(database, chunk_tokens=1000)
    await digest_first(admin)
    parts = Exporter(database).export(DEFAULT_TENANT, "s")
    header = await anext(parts)
    await quarantine(database)
    file = header + b"".join([part async for part in parts])
    assert records_of(file) == {}


async def test_too_many_rules_with_those_of_the_tenant_are_refused(
    database: Database, admin: Sql
) -> None:
    await append_of(database, admin, "web:a")
    most = source_trust.MAX_RULES
    for number in range(most):
        await trust(database, f"a{number}", B)
    await trust(database, "*", U, tenant_wide=True)
    file = await exported(database, "s")
    await forget_rules(database)
    with pytest.raises(Exhausted) as refused:
        await imported(database, file, "copy")
    assert refused.value.reason is Reason.TOO_MANY_SOURCE_RULES


async def test_an_export_of_version_1_is_imported_without_rules(
    database: Database, admin: Sql
) -> None:
    await append_of(database, admin, "web:a")
    file = await exported(database, "s")
    lines = [json.loads(one) for one in file.splitlines()]
    header = {key: one for key, one in lines[0].items() if key != "sha256"}
    writer, old = BlockWriter(), b""
    for one in lines[1:]:
        if one["record"] not in ("check", "end"):
            writer.add(one)
    kind, memory, *keys = lines[-2]["after"]
    old = writer.close(ExportPlace(kind=kind, memory=memory, keys=tuple(keys))) + writer.end()
    header = {**header, "version": 1, "export_id": str(uuid4())}
    first = line_of({**header, "sha256": sha256(line_of(header)).hexdigest()})
    await imported(database, first + old, "copy")
    assert await rules(database) == {}
    assert await levels(database) == {"web:a": T}
