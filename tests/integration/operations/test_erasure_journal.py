"""A restored database repeats the erasures that it has missed, from the journal outside of it."""

import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.log.erasures import Erasure, ErasureKind
from service.domain.log.journal_lines import JournalBroken, journal_key
from service.domain.values.errors import NotFound, Unavailable
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.access.audit_log import AuditLog
from service.usecases.access.erasures import Erasures
from service.usecases.access.tenants import Tenants
from service.usecases.log import sessions
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.erasure_journal import ErasureJournal, JournalComparison
from service.usecases.operations.journal_file import JournalFile
from service.usecases.operations.redacting import RedactionRequest, Redactor
from storage.access.audit import AuditFilter
from storage.engine.database import Database
from storage.engine.errors import Full
from storage.log import erasures
from storage.log.selecting import Selection
from tests.integration.support.scripted import ITEM, Script, make, prism_method
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.harness import Servers, with_database

KEY = journal_key(b"token")


@dataclass
class Deployment:
    """A database with a journal, and copies of it as a backup restores them."""

    servers: Servers
    url: str
    file: JournalFile
    database: Database

    def journal(self, database: Database | None = None) -> ErasureJournal:
        return ErasureJournal(database or self.database, self.file)

    async def delete(self, session: str, memory: str = "") -> None:
        deleter = Deleter(self.database, WakeUps(drop_wake_ups), self.journal())
        if memory:
            await deleter.delete_memory(DEFAULT_TENANT, session, memory, allow_missing=False)
        else:
            await deleter.delete_session(DEFAULT_TENANT, session, allow_missing=False)

    async def back_up(self) -> str:
        """Returns the URL of a copy of the database as it is now."""
        await self.database.close()
        name = f"copy_{uuid4().hex}"
        template = psycopg.conninfo.conninfo_to_dict(self.url)["dbname"]
        with psycopg.connect(self.servers.postgres.superuser_url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER palimpsest").format(
                    sql.Identifier(name), sql.Identifier(str(template))
                )
            )
        self.database = Database.connect(self.url, pool_size=2, name="test")
        return with_database(self.url, name)


@pytest.fixture
async def deployment(servers: Servers, tmp_path: Path) -> AsyncIterator[Deployment]:
    url = servers.new_database()
    file = JournalFile(tmp_path / "erasures.journal", KEY)
    database = Database.connect(url, pool_size=2, name="test")
    found = Deployment(servers, url, file, database)
    yield found
    await found.database.close()


async def names(database: Database) -> list[str]:
    return [one.name for one in await sessions.list_after(database, DEFAULT_TENANT, "", 10)]


async def recorded(database: Database) -> list[Erasure]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return list(await erasures.list_after(tx, None, 10))


async def test_a_restored_database_repeats_what_it_has_missed(deployment: Deployment) -> None:
    await make(deployment.database, ["a secret of a session that goes"])
    await prism_method(deployment.database, Script()).drain(ITEM)
    await sessions.create(deployment.database, DEFAULT_TENANT, "twin", language="english")
    await append_texts(deployment.database, "twin", ["what stays"])
    await sessions.create(deployment.database, DEFAULT_TENANT, "before", language="english")
    await deployment.delete("before")
    url = await deployment.back_up()
    await sessions.create(deployment.database, DEFAULT_TENANT, "later", language="english")
    await deployment.delete("s", "m")
    await deployment.delete("s")
    await deployment.delete("later")
    assert len(list(deployment.file.read())) == 4
    restored = Database.connect(url, pool_size=2, name="restored")
    assert await names(restored) == ["s", "twin"], "the backup has it"
    assert await deployment.journal(restored).compare() == JournalComparison(repeated=2)
    assert await names(restored) == ["twin"]
    with pytest.raises(NotFound):
        await sessions.get(restored, DEFAULT_TENANT, "s")
    old, new = await recorded(deployment.database), await recorded(restored)
    assert [one.erasure_id for one in new] == [one.erasure_id for one in old]
    assert [one.requested_at for one in new] == [one.requested_at for one in old]
    assert [one.is_replayed for one in new] == [False, True, True, True]
    assert new[-1].is_complete, "there was nothing to remove"
    assert not new[1].is_complete, "workers remove the rows"
    # A second start finds nothing to do, and the first database never had.
    assert await deployment.journal(restored).compare() == JournalComparison()
    assert await deployment.journal().compare() == JournalComparison()
    await restored.close()


async def test_a_restored_database_repeats_the_deletion_of_a_tenant(
    deployment: Deployment,
) -> None:
    with acting_as(LOCAL_IDENTITY):
        await Tenants(deployment.database).create("acme", display_name="", is_suspended=False)
        url = await deployment.back_up()
        tenants = Tenants(deployment.database)
        of_tenants = Erasures(deployment.database, tenants, deployment.journal(), journals=True)
        made = await of_tenants.delete_tenant("acme", "they asked")
        restored = Database.connect(url, pool_size=2, name="restored")
        assert await deployment.journal(restored).compare() == JournalComparison(repeated=1)
        copies = Erasures(restored, Tenants(restored), deployment.journal(restored), journals=True)
        (again,) = (await copies.page("system", None, 10)).erasures
        assert (again.erasure_id, again.is_replayed) == (made.erasure_id, True)
        found = await AuditLog(restored, Tenants(restored)).page(
            "system", AuditFilter(action="tenant.delete"), after=0, newest_first=True, limit=9
        )
        (event,) = found.events
        assert (event.principal, event.entry.target) == (made.principal, "acme")
        assert event.entry.details["replayed"] is True
        await restored.close()


async def test_a_restored_database_repeats_a_redaction(deployment: Deployment) -> None:
    await make(deployment.database, ["a fact that stays", "a secret that goes", "another"])
    await prism_method(deployment.database, Script()).drain(ITEM)
    url = await deployment.back_up()
    redactor = redactor_of(deployment.database, deployment.journal())
    wanted = RedactionRequest(session="s", selection=Selection(text="secret"))
    assert (await redactor.redact(DEFAULT_TENANT, wanted)).positions == [2]
    restored = Database.connect(url, pool_size=2, name="restored")
    assert await texts(restored) == ["a fact that stays", "a secret that goes", "another"]
    journal = ErasureJournal(restored, deployment.file, b"token")
    assert await journal.compare() == JournalComparison(repeated=1)
    assert await texts(restored) == ["a fact that stays", "", "another"]
    (one,) = await recorded(restored)
    assert (one.kind, one.is_replayed) == (ErasureKind.CHUNKS, True)
    assert one.erasure_id == (await recorded(deployment.database))[0].erasure_id
    assert await journal.compare() == JournalComparison()
    await restored.close()


def redactor_of(database: Database, journal: ErasureJournal | None = None) -> Redactor:
    wake_ups = WakeUps(drop_wake_ups)
    return Redactor(database, wake_ups, b"token", max_chunks=100, journal=journal)


async def texts(database: Database) -> list[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch("SELECT text FROM chunk ORDER BY position")
    return [row[0] for row in rows]


async def test_without_a_journal_the_value_is_back(deployment: Deployment) -> None:
    """The twin of the test above: the restore itself does not remove it."""
    await make(deployment.database, ["a secret"])
    url = await deployment.back_up()
    await deployment.delete("s")
    restored = Database.connect(url, pool_size=2, name="restored")
    assert await ErasureJournal(restored, None).compare() == JournalComparison()
    assert await names(restored) == ["s"]
    await restored.close()


async def test_a_journal_that_cannot_be_written_is_written_later(
    deployment: Deployment,
) -> None:
    await make(deployment.database, ["a"])
    path = deployment.file.path
    path.mkdir()
    with pytest.raises(Unavailable) as caught:
        await deployment.delete("s")
    assert caught.value.reason is Reason.ERASURE_JOURNAL_UNAVAILABLE
    assert await names(deployment.database) == [], "it is deleted all the same"
    assert (await recorded(deployment.database))[0].journalled_at is None
    path.rmdir()
    assert await deployment.journal().compare() == JournalComparison(appended=1)
    assert (await recorded(deployment.database))[0].journalled_at is not None
    assert len(list(deployment.file.read())) == 1


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("os.fsync", OSError(errno.ENOSPC, "No space left on device")),
        ("storage.log.erasures.mark_journalled", Full("no space left on device")),
    ],
    ids=["journal", "database"],
)
async def test_a_full_disk_keeps_no_process_from_starting(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, target: str, error: Exception
) -> None:
    await make(deployment.database, ["a"])
    await sessions.create(deployment.database, DEFAULT_TENANT, "later", language="english")
    await deployment.delete("s")
    with monkeypatch.context() as patched:
        patched.setattr(target, Mock(side_effect=error))
        with pytest.raises((Unavailable, Full)):
            await deployment.delete("later")
        assert await deployment.journal().compare() == JournalComparison()
    assert await deployment.journal().compare() == JournalComparison(appended=1)
    assert (await recorded(deployment.database))[1].journalled_at is not None


async def test_a_journal_that_may_not_be_written_is_refused(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(deployment.database, ["a"])
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(Unavailable):
            await deployment.delete("s")
        with pytest.raises(JournalBroken, match="cannot be used: input/output error"):
            await deployment.journal().compare()


async def test_a_journal_that_is_gone_is_refused_until_one_begins_anew(
    deployment: Deployment,
) -> None:
    await make(deployment.database, ["a"])
    await deployment.delete("s")
    deployment.file.path.unlink()
    with pytest.raises(JournalBroken, match="is missing"):
        await deployment.journal().compare()
    deployment.file.path.touch()
    assert await deployment.journal().compare() == JournalComparison(appended=1)
    assert len(list(deployment.file.read())) == 1


async def test_a_journal_that_was_changed_is_refused(deployment: Deployment) -> None:
    await make(deployment.database, ["a"])
    await deployment.delete("s")
    path = deployment.file.path
    path.write_bytes(path.read_bytes().replace(b'"session"', b'"memory"', 1))
    with pytest.raises(JournalBroken, match="line 1 was changed"):
        await deployment.journal().compare()


async def test_the_journal_holds_no_text(deployment: Deployment) -> None:
    await make(deployment.database, ["a secret of a session that goes"])
    await deployment.delete("s")
    written = deployment.file.path.read_text()
    assert "secret" not in written
    assert '"s"' not in written, "nor the name"


async def test_a_restored_database_redacts_what_it_has_missed(deployment: Deployment) -> None:
    await make(deployment.database, ["a twin", "the zanzibar code", "c"])
    await prism_method(deployment.database, Script()).drain(ITEM)
    copy = await deployment.back_up()
    redactor = Redactor(
        *(deployment.database, WakeUps(drop_wake_ups), b"token-key"),
        max_chunks=10,
        max_rules=10,
        journal=deployment.journal(),
    )
    wanted = RedactionRequest(session="s", selection=Selection(text="zanzibar"), keep_out=True)
    assert list((await redactor.redact(DEFAULT_TENANT, wanted)).positions) == [2]
    absent = RedactionRequest(session="s", selection=Selection(text="is nowhere"), keep_out=True)
    assert (await redactor.redact(DEFAULT_TENANT, absent)).kept_out == 1
    restored = Database.connect(copy, pool_size=2, name="test")
    try:
        assert (await deployment.journal(restored).compare()).repeated == 1
        page = await sessions.read_chunks(
            restored, DEFAULT_TENANT, "s", from_position=1, limit=10, max_bytes=10_000
        )
        assert [one.chunk.text for one in page.chunks] == ["a twin", "", "c"]
        async with restored.transaction(DEFAULT_TENANT) as tx:
            assert await tx.fetch("SELECT words FROM keep_out ORDER BY words") == [(1,), (2,)]
            assert await tx.fetch("SELECT applied_position FROM memory") == [(1,)]
        assert (await deployment.journal(restored).compare()).repeated == 0
    finally:
        await restored.close()
