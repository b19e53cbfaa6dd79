"""Tests that the import of an old export has nothing that was erased after it."""

from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from service.app.kinds import use_cases
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.importing import Importer
from service.usecases.operations.redacting import RedactionRequest, Redactor
from storage.engine.database import Database
from storage.log import chunks
from storage.log.selecting import Selection
from tests.integration.operations.test_copies import (
    copied,
    delete,
    exported,
    imported,
    key,
    left,
    session,
)
from tests.integration.operations.test_retention import admin as admin
from tests.integration.support.writing import append_texts, drop_wake_ups

TOKEN_KEY = b"token-key"
FACTS = ["a fact of s", "another"]


async def forget(database: Database, name: str, text: str) -> None:
    redactor = Redactor(database, WakeUps(drop_wake_ups), TOKEN_KEY, max_chunks=100, max_rules=10)
    selection = Selection(text=text)
    wanted = RedactionRequest(session=name, selection=selection, keep_out=True)
    assert (await redactor.redact(DEFAULT_TENANT, wanted)).positions


async def texts(database: Database, name: str, tenant: UUID = DEFAULT_TENANT) -> list[str]:
    async with database.transaction(tenant) as tx:
        found = await chunks.read(tx, session_key(tenant, name), 0, 100)
    return [one.chunk.text for one in found]


async def refused(done: Awaitable[None]) -> str:
    with pytest.raises(InvalidInput) as caught:
        await done
    assert caught.value.reason is Reason.IMPORT_INVALID
    return caught.value.message


async def test_a_deleted_session_comes_back_only_if_it_is_wanted(database: Database) -> None:
    await session(database, "s")
    await session(database, "twin")
    file, other = await exported(database, "s"), await exported(database, "twin")
    await delete(database, "s")
    said = await refused(imported(database, file, "back"))
    assert "the session was deleted at" in said
    assert "set restore_deleted" in said
    await imported(database, other, "second")
    assert await left(database) == {"twin", "second"}
    await imported(database, file, "back", restore_deleted=True)
    assert await texts(database, "back") == FACTS


async def test_a_deletion_during_an_import_ends_it(database: Database) -> None:
    await session(database, "s")
    file = await exported(database, "s")
    await imported(database, file, "back", lines=2)
    await delete(database, "s")
    assert "restore_deleted" in await refused(imported(database, file, "back"))
    importer = Importer(database, use_cases(), Limits())
    await session(database, "t")
    other = await exported(database, "t")
    header, *rest = other.splitlines(keepends=True)
    run = await importer.open(DEFAULT_TENANT, header, "late")
    await delete(database, "t")

    async def sent() -> None:
        async for _ in run.feed(b"".join(rest)):
            pass

    assert "restore_deleted" in await refused(sent())
    assert await left(database) == set()


async def test_what_was_redacted_is_redacted_in_the_copy(database: Database) -> None:
    await session(database, "s")
    file = await exported(database, "s")
    await forget(database, "s", "a fact")
    await imported(database, file, "copy")
    assert await texts(database, "copy") == ["", "another"]
    await append_texts(database, "copy", ["A FACT, again", "else"], first=3)
    assert await texts(database, "copy") == ["", "another", "", "else"], "it is kept out as well"
    async with database.transaction(DEFAULT_TENANT) as tx:
        query = "SELECT count(*) FROM erasure WHERE target_session = %s"
        assert (await tx.fetch(query, (key("copy"),)))[0][0] == 1


async def test_of_a_session_that_is_restored_redacted_texts_stay_away(database: Database) -> None:
    await session(database, "s")
    file = await exported(database, "s")
    await forget(database, "s", "a fact")
    await forget(database, "s", "another")
    await delete(database, "s")
    await imported(database, file, "back", restore_deleted=True)
    assert await texts(database, "back") == ["", ""]
    await append_texts(database, "back", ["a fact of mine", "more"], first=3)
    assert await texts(database, "back") == ["", "", "", "more"]


async def test_what_is_not_recorded_with_positions_is_refused(
    database: Database, admin: Callable[..., Awaitable[object]]
) -> None:
    await session(database, "s")
    file = await exported(database, "s")
    await forget(database, "s", "a fact")
    await admin("UPDATE erasure SET detail = detail - 'exports'")
    said = await refused(imported(database, file, "copy"))
    assert "redacted since this export: export it again" in said


async def test_a_copy_that_was_left_can_be_moved_on(database: Database) -> None:
    await session(database, "s")
    await copied(database, "s", "a")
    await delete(database, "s")
    await copied(database, "a", "b")
    assert await texts(database, "b") == FACTS


async def test_another_tenant_knows_nothing_of_it(database: Database) -> None:
    await session(database, "s")
    file = await exported(database, "s")
    await delete(database, "s")
    other = uuid4()
    async with database.transaction(other) as tx:
        await tx.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, %s)", (other, other.hex))
    await imported(database, file, "s", tenant=other)
    assert await texts(database, "s", other) == FACTS
