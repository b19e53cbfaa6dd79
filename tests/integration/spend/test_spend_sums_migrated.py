"""Running sums that a migration adds: of calls before it, beside it and after it was cut off."""

import threading
from datetime import date

import psycopg
from sqlalchemy import text

import migrations
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from tests.integration.operations.test_migrations import old, upgrade_to
from tests.integration.spend.test_spend_sums import wrong
from tests.integration.support.scripted import KEY, MEMORY
from tests.support.harness import Servers

__all__ = ["old"]

#: A call of the first release's memory, as the release before writes it.
CALL = """
INSERT INTO call (session_key, call_id, tenant_id, memory_id, occasion, key, purpose, template,
    model, reply, input_tokens, predicted_cached_tokens, output_tokens, cost_micro_usd, latency_ms)
VALUES (%(key)s, gen_random_uuid(), %(tenant)s, %(memory)s, '', gen_random_uuid()::text::bytea,
    'revise', 't/1', 'm', 'r', 5, 0, 1, 2, 1)
"""


async def test_calls_of_the_release_before_are_in_the_sums_whenever_they_are_written(
    servers: Servers, old: str
) -> None:
    values = {"key": KEY, "memory": MEMORY, "tenant": DEFAULT_TENANT}
    upgrade_to(old, "0017")
    with psycopg.connect(servers.as_superuser(old), autocommit=True) as connection:
        for _ in range(3):
            connection.execute(CALL, values)
    ended = threading.Event()
    written: list[int] = []

    def write() -> None:
        with psycopg.connect(servers.as_superuser(old), autocommit=True) as connection:
            while not ended.is_set() or len(written) < 5:
                connection.execute(CALL, values)
                written.append(1)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        outcome = migrations.upgrade(sqlalchemy_url(old))
    finally:
        ended.set()
        writing.join()
    assert outcome == ("0017", migrations.newest())
    await _assert_right(old, 3 + len(written))
    # The last step was cut off before it said that it was done.
    with psycopg.connect(servers.as_superuser(old), autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0024'")
    migrations.upgrade(sqlalchemy_url(old))
    await _assert_right(old, 3 + len(written))


async def test_what_the_sums_lack_when_a_migration_is_cut_off_is_added_by_the_next(
    servers: Servers, old: str
) -> None:
    upgrade_to(old, "0017")
    values = {"key": KEY, "memory": MEMORY, "tenant": DEFAULT_TENANT}
    with psycopg.connect(servers.as_superuser(old), autocommit=True) as connection:
        connection.execute(CALL, values)
        upgrade_to(old, "0024")
        connection.execute(CALL, values)
        connection.execute("DELETE FROM tenant_spend_sum")
        connection.execute("UPDATE alembic_version SET version_num = '0021'")
    migrations.upgrade(sqlalchemy_url(old))
    await _assert_right(old, 2)


async def _assert_right(url: str, calls: int) -> None:
    database = Database.connect(url, pool_size=1, name="test")
    try:
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert await wrong(tx, [KEY]) == []
            rows = await tx.connection.execute(
                text("SELECT sum(tokens), sum(day_tokens), max(day) FROM tenant_spend_sum")
            )
            tokens, of_day, day = rows.one()
            known = (await tx.connection.execute(text("SELECT max(day) FROM spend"))).scalar_one()
    finally:
        await database.close()
    assert tokens == calls * 6
    assert of_day <= tokens
    assert isinstance(day, date)
    assert day == known
