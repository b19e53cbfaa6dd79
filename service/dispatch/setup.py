"""Setting up the dispatch tables, in a schema of their own, maybe in another database."""

from importlib.metadata import version

import procrastinate
import psycopg
from psycopg import sql

#: The PostgreSQL schema that the library's tables live in.
SCHEMA = "dispatch"
#: The one task there is, and its queue.
TASK = "work"

_ROLE = "palimpsest_app"
#: Two set-ups at once wait for each other on this key.
_LOCK_KEY = 0x70616C64


class DispatchMismatch(Exception):
    """The tables are of another release of the library; the message says what to do."""


class DispatchMissing(DispatchMismatch):
    """There are no tables, or none that our role may see."""


def connection_options() -> str:
    """What connections to the dispatch database are told when they open."""
    return f"-c search_path={SCHEMA} -c role={_ROLE} -c lock_timeout=5s -c statement_timeout=30s"


def install(url: str) -> None:
    """Makes the tables if they are not there. Concurrent calls wait for each other.

    Raises DispatchMismatch, or psycopg.Error.
    """
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
        schema = sql.Identifier(SCHEMA)
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(schema))
        found = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
        if found is None or found[0] is None:
            _make(connection)
        else:
            _check(connection)
        role = sql.Identifier(_ROLE)
        for rights in (
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
            "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}",
        ):
            connection.execute(sql.SQL(rights).format(schema=schema, role=role))


async def verify(url: str) -> None:
    """Checks that a process of this release can work with what is there.

    Raises DispatchMissing, DispatchMismatch, or psycopg.Error.
    """
    async with await psycopg.AsyncConnection.connect(
        url, options=connection_options()
    ) as connection:
        cursor = await connection.execute(
            "SELECT to_regclass('procrastinate_jobs') IS NOT NULL,"
            " obj_description(to_regnamespace(%s), 'pg_namespace')",
            (SCHEMA,),
        )
        row = await cursor.fetchone()
    if row is None or not row[0]:
        raise DispatchMissing("the dispatch tables are not there; run `palimpsest migrate`")
    _compare(row[1])


def _make(connection: psycopg.Connection) -> None:
    statements = procrastinate.schema.SchemaManager.get_schema()
    connection.execute(statements.encode())
    connection.execute(
        sql.SQL("COMMENT ON SCHEMA {} IS {}").format(
            sql.Identifier(SCHEMA), sql.Literal(_made_by())
        )
    )


def _check(connection: psycopg.Connection) -> None:
    row = connection.execute(
        "SELECT obj_description(to_regnamespace(%s), 'pg_namespace')", (SCHEMA,)
    ).fetchone()
    _compare(row[0] if row else None)


def _compare(found: str | None) -> None:
    if found != _made_by():
        raise DispatchMismatch(
            f"the schema {SCHEMA} was made by {found!r}, this release has"
            f" {_made_by()!r}; stop all workers and drop the schema: it holds hints only"
        )


def _made_by() -> str:
    return f"procrastinate {version('procrastinate')}"
