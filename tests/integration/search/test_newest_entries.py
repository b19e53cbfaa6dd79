"""The entries that were written last: as many as a budget has room for, and no others are read."""

import psycopg

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.search.entry_search import read_newest_entries
from tests.integration.support.scripted import KEY, MEMORY, TREE, make
from tests.integration.support.statements import statements
from tests.integration.tree.test_tree_views import explained, rows_read
from tests.support.harness import Servers

FILL = """
INSERT INTO memory_entry (session_key, memory_id, entry_id, tenant_id, path, part, value, words,
    length, revision, first_position, last_position)
SELECT session_key, memory_id, gen_random_uuid(), tenant_id, '0.' || n, 0, to_json(said)::text,
    to_tsvector('english', said), 1, n / 3, 0, 0
FROM memory, generate_series(1, %(count)s) AS n, repeat('x', %(size)s) AS said
"""


def fill(servers: Servers, url: str, *, count: int, size: int) -> None:
    """Adds entries with values of `size` characters, three of each revision."""
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute(FILL, {"count": count, "size": size})
        connection.execute("VACUUM ANALYZE memory_entry")


async def newest(database: Database, max_bytes: int) -> tuple[list[str], bool]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found, are_all = await read_newest_entries(tx, KEY, [MEMORY], max_bytes)
    return [one.entry.path for one in found], are_all


async def test_what_has_no_room_is_not_read(servers: Servers, url: str, database: Database) -> None:
    await make(database, [], TREE)
    fill(servers, url, count=5000, size=500)
    with statements() as sent:
        paths, are_all = await newest(database, 4000)
    assert (paths[:4], len(paths), are_all) == (["0.4998", "0.4999", "0.5000", "0.4995"], 7, False)
    (statement,) = [one for one in sent if "memory_entry" in one]
    plan = await explained(database, statement)
    assert rows_read(plan) <= 200, plan


async def test_small_entries_are_read_up_to_the_budget_as_well(
    servers: Servers, url: str, database: Database
) -> None:
    await make(database, [], TREE)
    fill(servers, url, count=900, size=1)
    # In reverse order of revisions; those of one by path.
    paths = [f"0.{n}" for n in range(1, 901)]
    paths.sort(key=lambda path: (-(int(path[2:]) // 3), path))
    sizes = [len(path) + 3 for path in paths]
    for room in (1, 2, 40, 600, 899):
        assert await newest(database, sum(sizes[:room])) == (paths[:room], False)
        assert await newest(database, sum(sizes[:room]) + 1) == (paths[:room], False)
    assert await newest(database, sum(sizes)) == (paths, True)
    assert await newest(database, 100_000) == (paths, True)
