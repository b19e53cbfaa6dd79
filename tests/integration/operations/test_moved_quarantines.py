"""Tests that quarantines and their effects move with a session, and keep what they need."""

from collections.abc import Awaitable, Callable

import pytest

from service.app.kinds import use_cases
from service.domain.values.errors import Conflict
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.usecases.operations.exporting import Exporter
from storage.engine.database import Database
from tests.integration.access import test_quarantined_kinds
from tests.integration.access.test_quarantine import drain, poisoned, quarantine, release, said
from tests.integration.operations.test_retention import admin as admin
from tests.integration.operations.test_retention import age, retain, run, texts
from tests.integration.operations.test_transfers import content, exported, imported
from tests.integration.support.scripted import SPEC, read
from tests.integration.support.writing import append_chunks

Sql = Callable[..., Awaitable[list[tuple[object, ...]]]]


async def digest_first(admin: Sql) -> None:
    """Writes the digest of the first revision, which `make` leaves out."""
    first = use_cases()["prism"].first(SPEC)
    await admin("UPDATE revision SET digest = %s WHERE revision = 0", first.digest)


async def again(database: Database, session: str = "s") -> list[int] | None:
    key = session_key(DEFAULT_TENANT, session)
    query = "SELECT reread_positions FROM memory WHERE session_key = %s AND memory_id = %s"
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(query, (key, memory_id(key, "m")))
    found: list[int] | None = rows[0][0]
    return found


@pytest.mark.parametrize("is_read_again", [False, True])
async def test_a_quarantine_moves_with_its_session(
    database: Database, admin: Sql, is_read_again: bool
) -> None:
    await poisoned(database, chunk_tokens=1000)
    await digest_first(admin)
    await quarantine(database)
    assert await again(database) == [1, 3]
    if is_read_again:
        await drain(database)
    file = await exported(database, "s")
    await imported(database, file, "copy")
    assert await again(database, "copy") == ([] if is_read_again else [1, 3])
    assert content(await exported(database, "copy")) == content(file)


async def test_the_cursor_is_that_of_the_cut(database: Database, admin: Sql) -> None:
    await poisoned(database, chunk_tokens=1000)
    await digest_first(admin)
    await quarantine(database)
    parts = Exporter(database).export(DEFAULT_TENANT, "s")
    header = await anext(parts)
    await drain(database)
    file = header + b"".join([part async for part in parts])
    await imported(database, file, "copy")
    assert await again(database, "copy") == [1, 3]


async def during(database: Database, change: Callable[[], Awaitable[object]]) -> bytes:
    """Returns an export during which something changes."""
    parts = Exporter(database).export(DEFAULT_TENANT, "s")
    header = await anext(parts)
    await change()
    return header + b"".join([part async for part in parts])


@pytest.mark.parametrize("kind", ["state", "tree"])
async def test_a_memory_that_is_taken_back_ends_its_export(database: Database, kind: str) -> None:
    await test_quarantined_kinds.poisoned(database, kind)
    with pytest.raises(Conflict) as refused:
        await during(database, lambda: quarantine(database))
    assert refused.value.reason is Reason.EXPORT_CHANGED
    assert await exported(database, "s")


@pytest.mark.parametrize("kind", ["state", "tree"])
@pytest.mark.parametrize("is_released", [False, True])
async def test_a_memory_that_was_taken_back_moves(
    database: Database, kind: str, is_released: bool
) -> None:
    kept = await test_quarantined_kinds.poisoned(database, kind)
    await quarantine(database)
    await kept.drain()
    if is_released:
        await release(database)
        await kept.drain()
    file = await exported(database, "s")
    await imported(database, file, "copy")
    assert content(await exported(database, "copy")) == content(file)


async def test_a_tree_that_is_closed_during_an_export_is_open_in_it(
    database: Database, admin: Sql
) -> None:
    await test_quarantined_kinds.poisoned(database, "tree")
    file = await during(database, lambda: admin("UPDATE memory SET seal_position = 2"))
    (cursor,) = [one for one in file.splitlines() if b'"record":"cursor"' in one]
    assert b"seal_position" not in cursor


async def test_chunks_that_are_to_be_read_again_do_not_expire(
    database: Database, admin: Sql
) -> None:
    await poisoned(database, chunk_tokens=1000)
    await quarantine(database)
    await append_chunks(database, "s", [said("Dan: sings", "user")], first=5)
    await age(admin, "chunk", 31)
    await retain(database, chunk_days=30)
    await run(database, admin)
    assert "" not in await texts(admin)
    await drain(database)
    assert (await read(database)).applied_position == 5
    await run(database, admin)
    assert await texts(admin) == [""] * 5
