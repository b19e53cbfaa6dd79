"""No hot path reads more than it needs, whatever the planner knows of the tables.

Statistics are as old as the last analyze, which may be before a backlog, or before there was
anything at all; plans that connections keep are older still. A statement whose plan is good by
its statistics alone goes linear when they are wrong, and appends and steps with it. So each hot
path is run with what the planner may believe:

- `kept`: the plans were made when there was next to nothing, and are kept since;
- `never`: nothing was ever analyzed;
- `stale`: all was analyzed while nothing had work;
- `full`: as it is now.

In the last three each path is run as a connection runs it first, and as it runs it from the
sixth time on, when the server may go over to a plan for any values.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack

import psycopg
import pytest
from psycopg import sql

from storage.engine.database import Database
from tests.integration.support.explained import Heard, Wrong, explain_all, hearing
from tests.integration.support.hot_paths import PATHS, SPECS, Site, make_session
from tests.support.cloning import Copy, clone, put_behind
from tests.support.harness import Servers

STATES = ("kept", "never", "stale", "full")
#: Sessions of each kind that are there from the beginning.
FIRST = 8
#: Copies of each kind, and how many of them have work that is not done.
COPIES, BEHIND = 3000, 1000
#: Runs after which the server may keep a plan for any values.
WARM = 7
#: A table of so many rows is not read from one end to the other.
LARGE_ROWS = 1000

#: What is known to be wrong, by a part of the statement, and how.
UNMENDED: Mapping[str, str] = {
    "SELECT session.session_key, session.name": (
        "all of a tenant's sessions are read and sorted for a page, when nothing is known"
    ),
    "WHERE m.tenant_id =": "all sessions before the page are read for it",
}


async def _run(site: Site, heard: Heard, name: str, large: set[str]) -> Sequence[Wrong]:
    """Runs a path; what is wrong with the plans of its statements."""
    path = PATHS[name]
    heard.take()
    await path.does(site)
    plans = heard.take()
    assert plans, "the server told how it went"
    found = [plan.wrong(large, rows=path.rows, pages=path.pages) for plan in plans]
    return [one for one in found if one is not None]


class Filled:
    """A database that is filled behind the back of its connections' plans."""

    def __init__(self, connection: psycopg.Connection, old: Site, new: Site, heard: Heard) -> None:
        self.connection = connection
        #: Keeps its plans, and makes a new one for each run.
        self.old, self.new = old, new
        self.heard = heard
        self.large: set[str] = set()
        #: What was wrong, by state and path.
        self.wrong: dict[tuple[str, str], list[Wrong]] = {}

    async def begin(self) -> None:
        """Next to nothing, and all paths as often as it takes to keep their plans."""
        for table in self._tables():
            quiet = sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = off)")
            self.connection.execute(quiet.format(sql.Identifier(table)))
        for kind in SPECS:
            first = [Copy(name=f"{kind}-first-{number}") for number in range(FIRST)]
            for copy in first:
                await make_session(self.old, copy, kind)
            self.old.use(kind, first)
        self.connection.execute("ANALYZE")
        for _ in range(WARM):
            for path in PATHS.values():
                await path.does(self.old)

    def fill(self) -> None:
        """Many sessions, a part of them with work."""
        for kind in SPECS:
            sources = [f"{kind}-first-{number}" for number in range(FIRST)]
            copies = [Copy(name=f"{kind}-{number}") for number in range(COPIES)]
            clone(self.connection, sources, copies)
            put_behind(self.connection, copies[:BEHIND])
            for site in (self.old, self.new):
                site.use(kind, copies[BEHIND:])
        self.large = {table for table in self._tables() if self._rows(table) >= LARGE_ROWS}

    def _tables(self) -> Sequence[str]:
        rows = self.connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace"
        )
        return [name for (name,) in rows]

    def _rows(self, table: str) -> int:
        query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
        row = self.connection.execute(query).fetchone()
        assert row is not None, "an aggregate has a row"
        return int(row[0])

    def forget(self) -> None:
        """Deletes all statistics, as if nothing had ever been analyzed."""
        self.connection.execute("DELETE FROM pg_statistic WHERE starelid >= 16384")
        for kind, rows, pages in (("r", -1, 0), ("i", 0, 1)):
            self.connection.execute(
                "UPDATE pg_class SET reltuples = %s, relpages = %s, relallvisible = 0"
                " WHERE oid >= 16384 AND relkind = %s",
                (rows, pages, kind),
            )

    def analyze_idle(self) -> None:
        """Analyzes while nothing has work; then it has again."""
        with self.connection.transaction():
            rows = self.connection.execute(
                "UPDATE memory SET has_work = false WHERE has_work RETURNING session_key, memory_id"
            ).fetchall()
            sessions = self.connection.execute(
                "UPDATE session SET has_unindexed = false WHERE has_unindexed RETURNING session_key"
            ).fetchall()
        self.connection.execute("VACUUM ANALYZE")
        self.connection.execute(
            "UPDATE memory SET has_work = true FROM unnest(%s::uuid[], %s::uuid[]) AS t (k, m)"
            " WHERE session_key = k AND memory_id = m",
            ([key for key, _ in rows], [memory for _, memory in rows]),
        )
        self.connection.execute(
            "UPDATE session SET has_unindexed = true WHERE session_key = ANY(%s)",
            ([key for (key,) in sessions],),
        )

    async def look(self, state: str) -> None:
        """Runs all paths, as they go by now."""
        for name in PATHS:
            found = await _run(self.old, self.heard, name, self.large)
            if state != "kept":
                found = [*found, *await _run(self.new, self.heard, name, self.large)]
            self.wrong[state, name] = list(found)


@pytest.fixture(scope="module")
async def filled(servers: Servers) -> AsyncIterator[Filled]:
    """Yields all paths run in all states."""
    url = servers.new_database()
    async with AsyncExitStack() as held:
        heard = held.enter_context(hearing())
        connection = held.enter_context(psycopg.connect(servers.as_superuser(url), autocommit=True))
        explain_all(connection)
        # Both connect when they are first used; by then the second one gets another setting.
        old, new = (Site(Database.connect(url, pool_size=2, name="plans")) for _ in range(2))
        for site in (old, new):
            held.push_async_callback(site.database.close)
        made = Filled(connection, old, new, heard)
        await made.begin()
        explain_all(connection, plan_cache_mode="force_custom_plan")
        made.fill()
        await made.look("kept")
        made.forget()
        await made.look("never")
        made.analyze_idle()
        await made.look("stale")
        connection.execute("VACUUM ANALYZE")
        await made.look("full")
        yield made


@pytest.mark.prove
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("state", STATES)
def test_a_hot_path_reads_no_more_than_it_needs(filled: Filled, state: str, path: str) -> None:
    wrong = [
        one
        for one in filled.wrong[state, path]
        if not any(known in one.statement for known in UNMENDED)
    ]
    assert not wrong, "\n\n".join(map(str, wrong))


@pytest.mark.parametrize("statement", UNMENDED)
def test_what_is_mended_is_no_longer_let_pass(filled: Filled, statement: str) -> None:
    found = [one for each in filled.wrong.values() for one in each if statement in one.statement]
    assert found, "take it out of UNMENDED"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT name FROM memory WHERE name = 'nobody'", "Seq Scan on memory"),
        ("SELECT name FROM session ORDER BY created_at DESC LIMIT 1", "on session"),
        (
            "SELECT count(*) FROM memory WHERE has_work AND status = 'active'"
            " AND ready_at < now() AND name = 'nobody'",
            "on memory",
        ),
    ],
)
async def test_a_statement_that_scans_is_found(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, statement: str, says: str
) -> None:
    async def scan(site: Site) -> None:
        async with site.transaction() as tx:
            await tx.execute(statement)

    monkeypatch.setitem(PATHS, "scan", type(PATHS["read"])(does=scan))
    found = await _run(filled.new, filled.heard, "scan", filled.large)
    assert len(found) == 1
    assert says in found[0].why
    assert statement in str(found[0]), "whoever mends it is told which one it is"


def test_the_tables_that_grow_with_sessions_are_large(filled: Filled) -> None:
    assert filled.large >= {"session", "memory", "chunk", "revision", "call", "producer"}
