"""How much is stored: counted for small sessions, estimated for large ones and for tenants."""

from collections.abc import Mapping
from uuid import UUID

import psycopg
import pytest

from service.domain.operations.storage import StorageKind, StoredSize
from service.domain.values.errors import NotFound
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.operations.storage_usage import StorageUsage
from storage.engine.database import Database
from storage.operations import sizes
from tests.integration.support.scripted import ITEM, Script, make, prism_method
from tests.support.harness import Servers


def test_the_tables_that_grow_are_measured() -> None:
    growing = {"chunk", "call", "revision", "amendment", "chunk_vector", "answer", "tree_node"}
    assert growing <= {name for name, kind in sizes.TABLES.items() if kind is not StorageKind.OTHER}


async def measured(database: Database, session: str = "s") -> Mapping[StorageKind, StoredSize]:
    return await StorageUsage(database).sizes(DEFAULT_TENANT, session)


async def test_the_rows_of_a_session_are_counted(database: Database) -> None:
    text = "".join(chr(32 + number * 7919 % 90) for number in range(1500))
    await make(database, [text, "b", "c"], chunk_tokens=2000)
    await prism_method(database, Script()).drain(ITEM)
    found = await measured(database)
    log = found[StorageKind.LOG]
    assert (log.rows, log.is_estimated) == (3, False)
    assert 1500 < log.bytes < 3000
    # The memory and its value.
    assert found[StorageKind.MEMORIES].rows == 2
    assert found[StorageKind.LEDGER].rows >= 2
    assert found[StorageKind.ANSWERS] == StoredSize()
    with pytest.raises(NotFound):
        await measured(database, "nobody")


async def test_more_rows_are_estimated(
    database: Database, servers: Servers, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, [f"text {number} " * 20 for number in range(600)])
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("ANALYZE")
    monkeypatch.setattr(sizes, "COUNTED_ROWS", 100)
    monkeypatch.setattr(sizes, "_MEASURED", tuple(map(sizes._measured, sizes.TABLES)))
    log = (await measured(database))[StorageKind.LOG]
    assert log.is_estimated
    assert log.rows == pytest.approx(600, rel=0.1)
    assert log.bytes == pytest.approx(600 * 250, rel=0.5)
    async with database.without_tenant() as tx:
        total, largest = await sizes.largest_tables(tx, 3)
    assert [one.bytes for one in largest] == sorted((one.bytes for one in largest), reverse=True)
    assert 0 < largest[0].bytes < total


async def test_the_rows_of_a_tenant_are_measured_before_any_statistics(
    database: Database, servers: Servers, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, [f"text {number} " * 20 for number in range(600)])
    other = UUID(int=7)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other')", (other,))
        analyzed = "SELECT reltuples FROM pg_class WHERE relname = 'chunk'"
        assert connection.execute(analyzed).fetchone() == (-1,)
    log = (await measured(database))[StorageKind.LOG]
    whole = (await measured(database, ""))[StorageKind.LOG]
    assert (whole.rows, whole.is_estimated) == (log.rows, False)
    assert log.bytes < whole.bytes < 5 * log.bytes, "with indexes"
    apart = await StorageUsage(database).sizes(other, "")
    assert set(apart.values()) == {StoredSize()}
    monkeypatch.setattr(sizes, "SAMPLED_PAGES", 8)
    sampled = (await measured(database, ""))[StorageKind.LOG]
    assert sampled.is_estimated
    assert sampled.rows == pytest.approx(whole.rows, rel=0.5)
    assert sampled.bytes == pytest.approx(whole.bytes, rel=0.5)
