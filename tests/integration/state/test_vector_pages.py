"""Listing a state memory's vectors costs what the page costs, however many there are."""

from service.domain.state.spec import StateSpec
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.state import vectors
from tests.integration.support.statements import statements
from tests.integration.support.vector_rows import Keeper
from tests.integration.tree.test_tree_views import explained, rows_read

MANY = 2000
PAGE = 50

#: As after the first steps of a long session, before any statistics.
_FILL = (
    "SET CONSTRAINTS ALL DEFERRED",
    "INSERT INTO revision (session_key, memory_id, revision, tenant_id, parent_revision,"
    " from_position, to_position, kind, epoch, digest)"
    " SELECT %(session)s, %(memory)s, n, %(tenant)s, n - 1, n - 1, n, 'step', 0, ''"
    " FROM generate_series(1, %(many)s) AS n",
    "INSERT INTO state_vector (session_key, memory_id, revision, tenant_id, level, text, tokens,"
    " made, after_position, from_position, to_position, children, replies, appended)"
    " SELECT %(session)s, %(memory)s, n, %(tenant)s, 1, 'vector ' || n, 3, 'model', 0, n - 1, n,"
    " '{}', 1, '{}' FROM generate_series(1, %(many)s) AS n",
)


async def test_a_page_of_many_vectors_reads_its_own_vectors_only(database: Database) -> None:
    kept = Keeper(database=database, spec=StateSpec(period=1))
    await kept.create()
    await kept.append(MANY)
    values = dict(zip(("session", "memory"), kept.key, strict=True))
    async with database.transaction(DEFAULT_TENANT) as tx:
        for statement in _FILL:
            filled = {**values, "tenant": DEFAULT_TENANT, "many": MANY}
            await tx.execute(statement, filled)
    async with database.transaction(DEFAULT_TENANT) as tx:
        with statements() as sent:
            found = await vectors.list_page(
                tx, kept.key, level=0, after_revision=9, limit=PAGE, max_bytes=1024 * 1024
            )
    assert [vector.revision for vector, _ in found] == list(range(10, 10 + PAGE))
    (statement,) = sent
    plan = await explained(database, statement)
    assert rows_read(plan) <= 3 * PAGE, plan
