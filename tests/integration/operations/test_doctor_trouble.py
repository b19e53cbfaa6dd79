"""Deployments that are broken, one way each: the doctor has to say so, and nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

import migrations
from service.cli.commands import app
from service.domain.operations.doctor import Finding, Severity
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.settings.config import Config, Limits
from service.usecases.operations.doctor import Doctor, Migrations
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from storage.operations import doctor as look_at
from tests.integration.operations.test_doctor import levels, look
from tests.integration.support.scripted import KEY, SPEC, make
from tests.support.harness import Servers

OTHER = UUID("9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a00ff")
Admin = psycopg.AsyncConnection[Any]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers whose commits wait for the disk: doctor complains about others."""
    with Servers.started() as started:
        yield started


@pytest.fixture
def config(servers: Servers, url: str) -> Config:
    return Config(database_url=SecretStr(url), redis_url=SecretStr(servers.valkey.url))


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator[Admin]:
    connection = await psycopg.AsyncConnection.connect(servers.as_superuser(url), autocommit=True)
    async with connection:
        yield connection


@pytest.fixture
async def stored(database: Database) -> None:
    """A memory of two chunks, of which it has read none."""
    await make(database, ["a", "b"])


_ANSWER = """
INSERT INTO answer (session_key, answer_id, tenant_id, query, revision, applied_position,
    created_at)
VALUES ('{key}', gen_random_uuid(), '{tenant}', '?', 0, 0, now() - interval '11 minutes')
"""
_DRAFT = """
INSERT INTO schema_draft (session_key, draft_id, tenant_id, domain, example_query, model,
    created_at)
VALUES ('{key}', gen_random_uuid(), '{tenant}', 'd', '?', 'm', now() - interval '11 minutes')
"""
_INTENT = """
INSERT INTO intent (session_key, key, tenant_id, purpose, model, lease_until, reserved_tokens,
    reserved_micro_usd)
VALUES ('{key}', '\\x01', '{tenant}', 'revise', 'm', now() - interval '2 hours', 1, 1)
"""
_WORKER = "INSERT INTO worker (worker_id, beat_at) VALUES (gen_random_uuid(), {at})"
#: What is broken by a statement: the finding's name, its level, and a part of what is said.
BROKEN = {
    "a late answer": (_ANSWER, "answers", Severity.WARN, "1 of 1 wait since more than 10 minutes"),
    "a late draft": (_DRAFT, "drafts", Severity.WARN, "1 of 1 wait since more than 10 minutes"),
    "a forgotten intent": (_INTENT, "intents", Severity.WARN, "1 calls were begun and never ended"),
    "sums that are off": (
        "INSERT INTO tenant_spend_sum VALUES ('{tenant}', 3, 1, 0, 0, now()::date, 0, 0, 0)",
        "spend",
        Severity.BAD,
        "the running sums are not what calls cost",
    ),
    "a full memory": (
        'UPDATE memory SET losses = \'{{"no_room":'
        ' {{"count": 7, "steps": 2, "since_position": 1}}}}\'',
        "losses",
        Severity.WARN,
        "s/m are full and lose proposals",
    ),
    "a memory that rejects": (
        'UPDATE memory SET losses = \'{{"invalid":'
        ' {{"count": 7, "steps": 3, "since_position": 1}}}}\'',
        "losses",
        Severity.WARN,
        "s/m reject most proposals",
    ),
    "vectors that fail": (
        "UPDATE session SET has_unindexed = true, index_failure = 'no such model'",
        "index",
        Severity.WARN,
        "vectors fail: no such model",
    ),
    "words that nobody indexes": (
        "UPDATE session SET has_unindexed = true, head = 20000; UPDATE memory SET has_work = false",
        "index",
        Severity.WARN,
        "1 sessions have 20000 chunks without words",
    ),
    "a database that is ahead": (
        "UPDATE alembic_version SET version_num = '9999'",
        "migrations",
        Severity.WARN,
        "at 9999, ahead",
    ),
    "commits that are not waited for": (
        "ALTER DATABASE {database} SET synchronous_commit = off",
        "durability",
        Severity.WARN,
        "synchronous_commit is off for others",
    ),
    "a worker that fell silent": (
        _WORKER.format(at="now()") + "; " + _WORKER.format(at="now() - interval '1 hour'"),
        "workers",
        Severity.WARN,
        "1 live; 1 fell silent",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_what_is_broken_is_found_and_nothing_else(
    config: Config, stored: None, admin: Admin, broken: str
) -> None:
    statement, name, level, said = BROKEN[broken]
    database = admin.info.dbname
    values = {"key": KEY, "tenant": DEFAULT_TENANT, "database": f'"{database}"'}
    await admin.execute(statement.format(**values).encode())
    found = await look(config)
    assert level in [one.level for one in found[name]]
    assert said in " ".join(one.said for one in found[name])
    assert levels(found).keys() - {"workers"} <= {name}


async def test_work_that_waits_for_long_says_that_workers_are_few(
    config: Config, stored: None, admin: Admin
) -> None:
    await admin.execute(
        "UPDATE memory SET has_work = true, ready_at = now() - interval '2 minutes'"
    )
    await admin.execute("UPDATE session SET has_unindexed = false")
    await admin.execute(_WORKER.format(at="now()").encode())
    found = await look(config)
    assert levels(found) == {"queue": [Severity.WARN]}
    assert found["queue"][0].said.startswith("1 items wait, the oldest for 12")


async def test_a_memory_far_behind_is_named_with_what_it_leads_to(
    config: Config, stored: None
) -> None:
    small = config.model_copy(update={"limits": Limits(backlog_chunks=10)})
    (found,) = (await look(small))["memories"]
    assert (found.level, found.said) == (
        Severity.WARN,
        "s/m is 2 chunks behind; at 10 appends are refused",
    )


@pytest.mark.parametrize(("off", "way"), [(-5.0, "behind"), (5.0, "ahead of")])
async def test_a_clock_that_is_off_is_reported(config: Config, off: float, way: str) -> None:
    class Wrong:
        """A machine's clock."""

        @staticmethod
        def time() -> float:
            return time.time() + off

    with mock.patch.object(look_at, "time", Wrong):
        (found,) = (await look(config))["clock"]
    assert found.level is Severity.WARN
    assert f"s {way} the database" in found.said


async def test_an_empty_database_is_reported(servers: Servers, config: Config) -> None:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER palimpsest".encode())
    assert config.database_url is not None
    url = config.database_url.get_secret_value().rpartition("/")[0] + f"/{name}"
    found = await look(config.model_copy(update={"database_url": SecretStr(url)}))
    assert levels(found) == {"migrations": [Severity.BAD]}
    assert found["migrations"][0].said == "the database is not migrated"


async def test_a_role_that_passes_separation_by_is_bad(config: Config, admin: Admin) -> None:
    await admin.execute("ALTER ROLE palimpsest_app BYPASSRLS")
    try:
        (found,) = (await look(config))["rights"]
    finally:
        await admin.execute("ALTER ROLE palimpsest_app NOBYPASSRLS")
    assert (found.level, found.said) == (
        Severity.BAD,
        "the role palimpsest_app may pass row-level security by",
    )


@pytest.fixture
async def neighbour(database: Database, stored: None, admin: Admin) -> None:
    """Another tenant, with a session and a memory of the same names, whose memory gave up."""
    await admin.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other')", (OTHER,))
    key = session_key(OTHER, "s")
    async with database.transaction(OTHER) as tx:
        await sessions.create(tx, key, "s")
        made = memory_id(key, "m")
        await memories.create(
            tx,
            session_key=key,
            memory_id=made,
            name="m",
            spec=SPEC,
            head=0,
            value="{}",
            digest=b"",
        )
    await admin.execute("UPDATE memory SET status = 'stalled' WHERE memory_id = %s", (made,))


async def only(config: Config, tenant: str) -> list[Finding]:
    known = Migrations(newest=migrations.newest(), known=migrations.known())
    return [one async for one in Doctor(config, known, tenant=tenant).findings()]


async def test_every_tenant_is_looked_at_and_named(config: Config, neighbour: None) -> None:
    found = await look(config)
    assert [one.said for one in found["memories"]] == ["tenant other: s/m gave up: "]
    assert found["answers"][0].said == "nothing looks wrong in 3 tenants"


async def test_one_tenant_can_be_looked_at_alone(config: Config, neighbour: None) -> None:
    for wanted, level in (
        ("other", Severity.BAD),
        (str(OTHER), Severity.BAD),
        ("default", Severity.OK),
    ):
        found = [one for one in await only(config, wanted) if one.name == "memories"]
        assert [one.level for one in found] == [level]
    (found_not,) = [one for one in await only(config, "nobody") if one.name == "tenants"]
    assert (found_not.level, found_not.said) == (
        Severity.BAD,
        "cannot be seen: there is no tenant 'nobody'",
    )


async def test_a_deleted_tenant_of_the_same_name_is_found_by_its_id(
    config: Config, neighbour: None, admin: Admin
) -> None:
    await admin.execute(
        "UPDATE tenant SET name = 'default', deleted_at = now() WHERE tenant_id = %s", (OTHER,)
    )
    (found,) = [one for one in await only(config, "default") if one.name == "memories"]
    assert found.level is Severity.OK
    (found,) = [one for one in await only(config, str(OTHER)) if one.name == "memories"]
    assert found.level is not Severity.OK


async def test_verify_takes_a_tenant_and_all_of_them(
    url: str, neighbour: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", url)

    async def verified(*arguments: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, ["verify", *arguments])

    of_all = await verified("--all")
    assert "2 sessions verified" in of_all.stdout
    assert "other/s: log 0" in of_all.stderr
    assert "1 session verified" in (await verified("--all", "--tenant", "other")).stdout
    assert "s: log 2" in (await verified("s", "--tenant", str(DEFAULT_TENANT))).stderr
    assert "other/s: log 0" in (await verified("s", "--tenant", "other")).stderr
    refused = await verified("s", "--tenant", "nobody")
    assert refused.exit_code == 1
    assert str(refused.exception) == "there is no tenant 'nobody'"
