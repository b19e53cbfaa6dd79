"""The doctor checks real servers, well and unwell."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

import migrations
from service.domain.operations.doctor import Finding, Severity
from service.domain.prism.spec import PrismSpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.settings.config import Config
from service.usecases.operations.doctor import Doctor, Migrations
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from tests.integration.support.writing import append_texts
from tests.support.harness import Servers
from tests.support.status_server import answering

KEY = session_key(DEFAULT_TENANT, "s")
SPEC = PrismSpec(schema_source="class N:\n    a: int\n")


async def look(config: Config, *more: str) -> dict[str, list[Finding]]:
    """Returns what a doctor finds, by name, whose release has `more` migrations than this one."""
    newest = more[-1] if more else migrations.newest()
    known = Migrations(newest=newest, known=migrations.known() | {*more})
    found: dict[str, list[Finding]] = {}
    async for one in Doctor(config, known).findings():
        found.setdefault(one.name, []).append(one)
    return found


def levels(found: dict[str, list[Finding]]) -> dict[str, list[Severity]]:
    """Returns what is not well, but for extensions, which some servers lack (see their test)."""
    return {
        name: [one.level for one in each]
        for name, each in found.items()
        if any(one.level is not Severity.OK for one in each) and name != "extensions"
    }


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers whose commits wait for the disk: doctor complains about others."""
    with Servers.started() as started:
        yield started


@pytest.fixture
def config(servers: Servers, url: str) -> Config:
    return Config(database_url=SecretStr(url), redis_url=SecretStr(servers.valkey.url))


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator["psycopg.AsyncConnection[Any]"]:
    connection = await psycopg.AsyncConnection.connect(servers.as_superuser(url), autocommit=True)
    async with connection:
        yield connection


@pytest.fixture
async def stored(database: Database) -> None:
    """A memory that has work."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    await append_texts(database, "s", ["a", "b"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=KEY,
            memory_id=memory_id(KEY, "m"),
            name="m",
            spec=SPEC,
            head=2,
            value="{}",
            digest=b"",
        )


async def test_servers_that_are_well_have_no_complaint_but_no_worker(config: Config) -> None:
    found = await look(config)
    assert levels(found) == {"workers": [Severity.WARN]}
    assert found["database"][0].said.startswith("PostgreSQL ")
    assert "Valkey" in found["redis"][0].said
    assert {"memories", "answers", "drafts", "intents", "spend", "index", "clock", "rights"} <= set(
        found
    )


async def test_what_is_down_is_a_line_each() -> None:
    config = Config(
        database_url=SecretStr("postgresql://login:secret-word@127.0.0.1:1/none"),
        redis_url=SecretStr("redis://:secret-word@127.0.0.1:1/0"),
        model="openai/gone",
        model_base_url="http://127.0.0.1:1/v1",
    )
    found = await look(config)
    assert levels(found) == {
        "database": [Severity.BAD],
        "redis": [Severity.WARN],
        "model": [Severity.OK, Severity.BAD],
    }
    assert "secret-word" not in repr(found)


async def test_a_memory_that_no_worker_touches_is_stuck(
    config: Config, stored: None, admin: "psycopg.AsyncConnection[Any]"
) -> None:
    assert "memories" not in levels(await look(config))
    await admin.execute("UPDATE memory SET ready_at = now() - interval '1 hour'")
    await admin.execute("UPDATE revision SET created_at = now() - interval '1 hour'")
    found = await look(config)
    assert found["memories"][0].level is Severity.BAD
    assert found["memories"][0].said.startswith("s/m have work")


async def test_memories_that_gave_up_or_are_held_are_named(
    config: Config, stored: None, admin: "psycopg.AsyncConnection[Any]"
) -> None:
    await admin.execute("UPDATE memory SET status = 'stalled'")
    assert (await look(config))["memories"][0].said == "s/m gave up: "
    await admin.execute(
        "UPDATE memory SET status = 'active', held_reason = 'x', ready_at = now() + interval '1 h'"
    )
    assert (await look(config))["memories"][0].said == "s/m are held by a budget"


async def test_a_schema_that_is_behind_is_reported_and_not_read(config: Config) -> None:
    found = await look(config, "9999")
    assert found["migrations"][0].level is Severity.BAD
    assert "memories" not in found


async def test_a_table_that_is_open_to_other_tenants_is_bad(
    config: Config, admin: "psycopg.AsyncConnection[Any]"
) -> None:
    await admin.execute("ALTER TABLE chunk NO FORCE ROW LEVEL SECURITY")
    (found,) = (await look(config))["rights"]
    assert found.level is Severity.BAD
    assert found.said.endswith("not forced on chunk")


async def test_extensions_that_are_not_there_are_named(
    config: Config, admin: "psycopg.AsyncConnection[Any]"
) -> None:
    made = await admin.execute("SELECT extname FROM pg_extension")
    there = {name for (name,) in await made.fetchall()}
    (found,) = (await look(config))["extensions"]
    assert found.level is (Severity.OK if {"btree_gin", "vector"} <= there else Severity.WARN)
    await admin.execute("DROP EXTENSION IF EXISTS vector CASCADE")
    await admin.execute("DROP EXTENSION IF EXISTS btree_gin CASCADE")
    (found,) = (await look(config))["extensions"]
    assert found.level is Severity.WARN
    assert "btree_gin" in found.said
    assert "vector" in found.said


async def test_what_the_role_may_not_see_is_said(
    config: Config, admin: "psycopg.AsyncConnection[Any]"
) -> None:
    await admin.execute("REVOKE SELECT ON intent FROM palimpsest_app")
    found = await look(config)
    assert levels(found)["intents"] == [Severity.WARN]
    assert "permission denied" in found["intents"][0].said
    assert levels(found).keys() == {"intents", "workers"}


async def test_work_that_waits_without_a_worker_is_bad(
    config: Config, admin: "psycopg.AsyncConnection[Any]"
) -> None:
    await admin.execute(
        "INSERT INTO session (session_key, tenant_id, name, has_unindexed)"
        " SELECT gen_random_uuid(), tenant_id, 'a', true FROM tenant WHERE name = 'default'"
    )
    found = await look(config)
    assert levels(found) == {"workers": [Severity.BAD]}
    assert found["queue"][0].said.startswith("1 items wait")


@pytest.mark.parametrize(
    ("status", "level"),
    [(200, Severity.OK), (404, Severity.OK), (401, Severity.BAD), (503, Severity.WARN)],
)
async def test_an_endpoint_is_asked_whether_it_takes_the_key(status: int, level: Severity) -> None:
    with answering(status) as url:
        config = Config(
            model="openai/x", model_base_url=f"{url}/v1", model_api_key=SecretStr("sk-secret-word")
        )
        found = await look(config)
    assert found["model"][-1].level is level
    assert "secret-word" not in repr(found)


async def test_a_key_that_only_the_processes_have_is_not_called_wrong() -> None:
    hidden = frozenset({"model_api_key", "deployment there", "redis_url", "database_url"})
    with answering(401) as url:
        place = {"name": "there", "model": "openai/y", "api_base": f"{url}/v1"}
        other = {"name": "other", "model": "openai/y", "api_base": f"{url}/v1"}
        config = Config(
            model="openai/x",
            model_base_url=f"{url}/v1",
            deployments=[place, other],  # type: ignore[arg-type]
        )
        found: dict[str, Finding] = {}
        known = Migrations(newest=migrations.newest(), known=migrations.known())
        async for one in Doctor(config, known, hidden=hidden).findings():
            found[one.name] = one
    assert "wants the key, which only the running `up` has" in found["model"].said
    levels = {name: found[name].level for name in ("model", "deployment there")}
    assert set(levels.values()) == {Severity.OK}
    assert found["deployment other"].level is Severity.BAD
    assert (found["redis"].level, found["database"].level) == (Severity.WARN, Severity.BAD)
    assert "PALIMPSEST_REDIS_URL" in found["redis"].advice
    assert "PALIMPSEST_DATABASE_URL" in found["database"].advice


async def test_settings_that_look_wrong_are_reported(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_FAULTS", "verification.chaos.switches:install")
    wrong = config.model_copy(update={"dead_after_seconds": 5.0})
    assert levels(await look(wrong))["settings"] == [Severity.BAD, Severity.BAD]
