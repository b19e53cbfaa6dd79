"""The schema itself refuses other tenants' rows, and any second application of a chunk."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text

import migrations
from service.domain.prism.spec import PrismSpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage import tables
from storage.engine.claims import Claim, Fenced
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from storage.engine.errors import Violated
from storage.log import sessions
from storage.memories import memories, revisions
from storage.memories.revisions import NewRevision
from tests.integration.support.writing import append_texts
from tests.support.harness import Servers
from tests.support.runnable import runnable as runnable_now

KEY = session_key(DEFAULT_TENANT, "s")
MEMORY = memory_id(KEY, "m")
OTHER = UUID(int=7)
SPEC = PrismSpec(schema_source="class N:\n    a: int\n")


@pytest.fixture
async def held(database: Database) -> Claim:
    """Returns a memory over three chunks, in our hands."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    await append_texts(database, "s", ["a", "b", "c"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=KEY,
            memory_id=MEMORY,
            name="m",
            spec=SPEC,
            head=3,
            value="{}",
            digest=b"",
        )
        claimed = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
    assert claimed is not None
    return claimed


async def commit(database: Database, held: Claim, to_position: int, kind: str = "step") -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        new = NewRevision(kind=kind, to_position=to_position, digest=b"", value='{"a":1}')
        await revisions.commit_revision(tx, held, new, has_work=True)


async def test_a_step_is_committed_once(database: Database, held: Claim) -> None:
    await commit(database, held, 2)
    with pytest.raises(Fenced):
        await commit(database, held, 2)
    with pytest.raises(Fenced):
        await commit(database, held, 3)


async def test_a_worker_that_lost_the_memory_commits_nothing(
    database: Database, held: Claim
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        later = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
    assert later is not None
    assert later.epoch == held.epoch + 1
    with pytest.raises(Fenced):
        await commit(database, held, 2)
    await commit(database, later, 2)


async def test_of_two_commits_at_once_one_wins(database: Database, held: Claim) -> None:
    outcomes = await asyncio.gather(
        *(commit(database, held, 2) for _ in range(4)), return_exceptions=True
    )
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 3


#: Revisions that must be impossible even for code that checks nothing.
FORGED = [
    ("a second root", {"revision": 0, "parent": None, "a": 0, "b": 0, "kind": "create"}),
    ("a gap in revisions", {"revision": 2, "parent": 1, "a": 0, "b": 1, "kind": "step"}),
    ("a skipped parent", {"revision": 1, "parent": None, "a": 0, "b": 1, "kind": "step"}),
    ("a gap in positions", {"revision": 1, "parent": 0, "a": 1, "b": 2, "kind": "step"}),
    ("a range beyond the log", {"revision": 1, "parent": 0, "a": 0, "b": 4, "kind": "step"}),
    ("an empty step", {"revision": 1, "parent": 0, "a": 0, "b": 0, "kind": "step"}),
    ("a fold that reads", {"revision": 1, "parent": 0, "a": 0, "b": 1, "kind": "fold"}),
    ("a range backwards", {"revision": 1, "parent": 0, "a": 0, "b": -1, "kind": "step"}),
]


@pytest.mark.parametrize(("what", "forged"), FORGED, ids=[name for name, _ in FORGED])
async def test_a_forged_revision_is_refused(
    database: Database, held: Claim, what: str, forged: dict[str, Any]
) -> None:
    with pytest.raises(Violated):
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(
                text(
                    "INSERT INTO revision (session_key, memory_id, tenant_id, revision,"
                    " parent_revision, from_position, to_position, kind, epoch, digest)"
                    " VALUES (:key, :memory, :tenant, :revision, :parent, :a, :b, :kind, 1, '')"
                ),
                {"key": KEY, "memory": MEMORY, "tenant": DEFAULT_TENANT, **forged},
            )


async def test_a_repeated_range_is_refused_by_the_chain_and_by_its_own_key(
    database: Database, held: Claim, servers: Servers, url: str
) -> None:
    await commit(database, held, 2)
    insert = (
        "INSERT INTO revision (session_key, memory_id, tenant_id, revision, parent_revision,"
        " from_position, to_position, kind, epoch, digest)"
        " VALUES (%s, %s, %s, 2, 1, 0, 2, 'step', 1, '')"
    )
    with psycopg.connect(servers.as_superuser(url)) as connection:
        with pytest.raises(psycopg.IntegrityError) as once:
            connection.execute(insert, (KEY, MEMORY, DEFAULT_TENANT))
        assert once.value.diag.constraint_name == "revision_once"
        connection.rollback()
        connection.execute("DROP INDEX revision_once")
        with pytest.raises(psycopg.IntegrityError) as chain:
            connection.execute(insert, (KEY, MEMORY, DEFAULT_TENANT))
        assert chain.value.diag.constraint_name == "revision_chain_fkey"


async def test_a_cursor_without_its_revision_is_refused(database: Database, held: Claim) -> None:
    with pytest.raises(Violated) as refused:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(text("UPDATE memory SET applied_position = 3"))
    assert refused.value.constraint == "memory_revision_fkey"


async def test_a_stored_sequence_is_refused_a_second_time(database: Database, held: Claim) -> None:
    with pytest.raises(Violated) as refused:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(
                text(
                    "INSERT INTO chunk (session_key, position, tenant_id, producer_id,"
                    " producer_sequence, kind, role, text, observation, thought, action, digest)"
                    " SELECT session_key, 4, tenant_id, producer_id, producer_sequence, kind,"
                    " role, text, observation, thought, action, digest FROM chunk LIMIT 1"
                )
            )
    assert refused.value.constraint == "chunk_once"


PAST = ["chunk", "revision", "amendment", "prism_base", "prism_snapshot", "call"]


@pytest.mark.parametrize("table", PAST)
@pytest.mark.parametrize("change", ["UPDATE {} SET created_at = now()", "TRUNCATE {}"])
async def test_the_past_cannot_be_changed(database: Database, table: str, change: str) -> None:
    with pytest.raises(Exception, match=r"permission denied|does not exist"):
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(text(change.format(table)))


@pytest.mark.parametrize("table", ["chunk", "revision", "prism_base", "producer", "memory"])
async def test_nothing_goes_but_what_was_deleted(
    database: Database, held: Claim, table: str
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        there = await tx.fetch(text(f"SELECT count(*) FROM {table}"))
        assert there[0][0] > 0
        gone = await tx.execute(text(f"DELETE FROM {table}"))
        assert gone == 0


async def test_every_row_of_a_tenant_is_hidden_from_others(database: Database, held: Claim) -> None:
    await commit(database, held, 2)
    # Those of the queue are visible to no tenant.
    of_queue = (tables.tenant_turn, tables.wanted)
    tenant_tables = [
        t for t in tables.metadata.sorted_tables if "tenant_id" in t.c and t not in of_queue
    ]
    assert len(tenant_tables) > 10
    async with database.transaction(DEFAULT_TENANT) as tx:
        seen = await tx.fetch(text("SELECT count(*) FROM chunk"))
        assert seen[0][0] == 3
    async with database.transaction(OTHER) as tx:
        for table in tenant_tables:
            found = await tx.fetch(text(f"SELECT count(*) FROM {table.name}"))
            assert found[0][0] == 0, table.name
        changed = await tx.execute(text("UPDATE memory SET epoch = 99"))
        assert changed == 0
        assert await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind) is None


@pytest.mark.parametrize("table", ["claim", "tenant_turn", "wanted", "worker"])
async def test_the_queue_is_seen_in_no_tenants_name(database: Database, table: str) -> None:
    with pytest.raises(Exception, match=f"permission denied for table {table}"):
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(text(f"SELECT count(*) FROM {table}"))


async def test_rows_for_another_tenant_are_refused(database: Database, held: Claim) -> None:
    with pytest.raises(Exception, match="row-level security"):
        async with database.transaction(OTHER) as tx:
            await tx.execute(
                text("INSERT INTO session (session_key, tenant_id, name) VALUES (:k, :t, 'x')"),
                {"k": uuid4(), "t": DEFAULT_TENANT},
            )


async def test_without_a_tenant_nothing_is_read(database: Database, held: Claim) -> None:
    async with database.without_tenant() as tx:
        with pytest.raises(Exception, match=r"app\.tenant|22P02"):
            await tx.execute(text("SELECT * FROM chunk"))


def test_every_table_with_a_tenant_is_separated_for_good(servers: Servers, url: str) -> None:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        rows = connection.execute(
            "SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity,"
            " EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid)"
            " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE a.attname = 'tenant_id' AND c.relkind = 'r'"
        ).fetchall()
        assert {name for name, _, _ in rows} == {
            table.name for table in tables.metadata.sorted_tables if "tenant_id" in table.c
        }
        assert all(forced and policed for _, forced, policed in rows), rows
        roles = connection.execute(
            "SELECT rolsuper OR rolbypassrls OR rolcanlogin FROM pg_roles"
            " WHERE rolname IN ('palimpsest_app', 'palimpsest_sweeper')"
        ).fetchall()
        assert roles == [(False,), (False,)]
        owners = connection.execute(
            "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        assert owners == [("palimpsest",)]


async def test_the_sweeper_sees_what_is_runnable_and_nothing_else(
    database: Database, held: Claim
) -> None:
    async with database.sweeping() as connection:
        (item,) = await runnable_now(connection, 10)
        assert (item.session_key, item.item_id) == (KEY, MEMORY)
        with pytest.raises(Exception, match="permission denied"):
            await connection.execute(text("SELECT spec FROM memory"))
    async with database.transaction(DEFAULT_TENANT) as tx:
        await revisions.clear_work(tx, held)
    async with database.sweeping() as connection:
        assert await runnable_now(connection, 10) == []


def test_tables_and_migrations_agree(servers: Servers, url: str) -> None:
    from sqlalchemy import create_engine

    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as connection:
        assert migrations.differences(connection) == []
    engine.dispose()
    assert migrations.upgrade(sqlalchemy_url(url)) == (migrations.newest(),) * 2
