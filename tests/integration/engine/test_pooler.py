"""A pooler in transaction mode: refused with the reason, or used without what it breaks."""

import asyncio
from collections.abc import Iterator

import pytest

from service.domain.operations.doctor import Severity
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Config
from service.usecases.operations.doctor import Doctor, Migrations
from storage.engine import database_state, pooling
from storage.engine.database import Database
from storage.tables import APP_ROLE
from tests.support.harness import Process, api, worker
from tests.support.pooler import live, needed, pooler

CLIENTS = 20


@pytest.fixture(params=[False, True], ids=["refuses", "drops"])
def either(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """Yields a pooler that refuses startup options, and one that drops them."""
    needed()
    with pooler(url, drops_options=request.param) as through:
        yield through


@pytest.fixture
def through(url: str) -> Iterator[str]:
    """Yields a pooler as it is installed."""
    needed()
    with pooler(url, drops_options=False) as found:
        yield found


async def test_a_server_keeps_sessions_and_a_pooler_does_not(url: str, either: str) -> None:
    assert await pooling.lost_sessions(url) == ""
    assert "a pooler" in await pooling.lost_sessions(either)


@pytest.mark.parametrize("command", ["serve", "work", "migrate"])
def test_a_pooler_that_no_setting_names_is_refused_with_the_reason(
    either: str, command: str
) -> None:
    with pytest.raises(RuntimeError, match="a pooler") as refused:
        Process(command, {"PALIMPSEST_DATABASE_URL": either}, "never")
    said = str(refused.value).strip().splitlines()[-1]
    setting = "MIGRATION_DATABASE_URL" if command == "migrate" else "DATABASE_POOLER=transaction"
    assert f"PALIMPSEST_{setting}" in said
    assert "docs/guides/running.md#poolers" in said


@pytest.mark.parametrize("signals", [False, True], ids=["none", "pooler"])
def test_wake_ups_need_the_server_itself(through: str, signals: bool) -> None:
    settings = {"PALIMPSEST_DATABASE_URL": through, "PALIMPSEST_DATABASE_POOLER": "transaction"}
    if signals:
        settings["PALIMPSEST_SIGNALS_DATABASE_URL"] = through
    with pytest.raises(RuntimeError, match="PALIMPSEST_SIGNALS_DATABASE_URL"):
        Process("serve", settings, "never")


@pytest.mark.prove
async def test_twenty_clients_behind_a_pooler_lose_and_mix_nothing(url: str, through: str) -> None:
    settings = {
        "PALIMPSEST_DATABASE_POOLER": "transaction",
        "PALIMPSEST_SIGNALS_DATABASE_URL": url,
    }
    with api(through, **settings) as (server, address), worker(through, **settings) as working:
        await asyncio.gather(*(live(address, number) for number in range(CLIENTS)))
        logs = server.log() + working.log()
    assert "prepared statement" not in logs
    assert '"level": "error"' not in logs


async def test_each_transaction_has_the_role_the_tenant_and_the_limits(through: str) -> None:
    database = Database.connect(through, pool_size=3, name="test", pooled=True)
    try:
        async with database.transaction(DEFAULT_TENANT) as tx:
            (row,) = await tx.fetch(_SETTINGS, {})
            assert row == (APP_ROLE, str(DEFAULT_TENANT), "5s", "30s")
        async with database.direct(DEFAULT_TENANT) as direct:
            assert await direct.fetch(_SETTINGS, ()) == [row]
            assert await direct.pipeline([_SETTINGS], (), snapshot=True) == [[row]]
        async with database.sweeping() as connection:
            found = (await connection.fetch("SELECT current_user"))[0][0]
            assert found == "palimpsest_sweeper"
        state = await database_state.read(database)
        assert (state.role, state.unfit) == (APP_ROLE, "")
    finally:
        await database.close()


_SETTINGS = """SELECT current_user::text, current_setting('app.tenant'),
    current_setting('lock_timeout'), current_setting('statement_timeout')"""


async def test_doctor_reports_a_pooler(url: str, through: str) -> None:
    known = Migrations(newest="", known=frozenset())

    async def levels(**settings: str) -> dict[str, Severity]:
        config = Config.model_validate(settings)
        found = Doctor(config, known).findings()
        return {one.name: one.level async for one in found}

    assert (await levels(database_url=url))["pooler"] is Severity.OK
    assert (await levels(database_url=through))["pooler"] is Severity.BAD
    pooled = {"database_url": through, "database_pooler": "transaction"}
    assert (await levels(**pooled))["pooler"] is Severity.BAD
    direct = await levels(**pooled, signals_database_url=url)
    assert (direct["pooler"], direct["signals"]) == (Severity.OK, Severity.OK)
