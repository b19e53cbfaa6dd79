"""Reads and notes the identity of a database: as it was noted in it, and as it is.

Noted by `palimpsest migrate` where nothing is noted yet, and by `palimpsest restore`. A dump,
a base backup and a promoted standby bring along what was noted elsewhere.
"""

from typing import Any

import psycopg

from service.domain.values.database_identity import DatabaseIdentity
from storage.engine.database import Transaction

# A standby writes no log, and has no timeline of its own.
_IDENTITY = """
SELECT {server} AS server, oid::bigint AS database,
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE
        ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
    END AS timeline
FROM pg_database WHERE datname = current_database()
"""
_SERVER = "(SELECT system_identifier::text FROM pg_control_system())"
# Whoever may not call it may not name it either. Every login may, unless somebody forbade it.
_MAY = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
_NOTED = """
SELECT server_identifier AS server, database_oid AS database, timeline FROM deployment
"""
_NOTE = "UPDATE deployment SET server_identifier = %s, database_oid = %s, timeline = %s"
_HAS_ROOM = """
SELECT EXISTS (SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('deployment') AND attname = 'timeline' AND NOT attisdropped)
"""


def note(url: str, *, anew: bool) -> list[str]:
    """Notes where the database stands if that is not noted yet; with `anew` in any case.

    Returns how it differs from what stays noted, in words. Of a schema that has no room for
    it nothing is noted: `migrate` does it later. For the owner of the tables. Raises
    psycopg.Error.
    """
    with psycopg.connect(url, application_name="palimpsest-places") as connection:
        if not _row(connection, _HAS_ROOM)[0]:
            return []
        found = DatabaseIdentity(*_row(connection, _identity(may=_row(connection, _MAY)[0])))
        noted = _noted(_row(connection, _NOTED))
        if noted is not None and not anew:
            return noted.differences(found)
        connection.execute(_NOTE, (found.server, found.database, found.timeline))
    return []


def _row(connection: psycopg.Connection[Any], query: str) -> Any:
    return connection.execute(query.encode()).fetchone()


async def read(tx: Transaction) -> tuple[DatabaseIdentity | None, DatabaseIdentity]:
    """What is noted, if anything is, and where the database stands."""
    noted = (await tx.fetch(_NOTED, prepare=None))[0]
    may = (await tx.fetch(_MAY, prepare=None))[0][0]
    found = (await tx.fetch(_identity(may=may), prepare=None))[0]
    return _noted(noted), DatabaseIdentity._make(found)


def _identity(*, may: bool) -> str:
    return _IDENTITY.format(server=_SERVER if may else "''")


def _noted(row: Any) -> DatabaseIdentity | None:
    return None if row[1] is None else DatabaseIdentity(*row)
