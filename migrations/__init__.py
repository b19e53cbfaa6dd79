"""The database's migrations and how to run them.

`palimpsest migrate` calls `upgrade`. Every process of the service compares the database with
`known` at its start, and refuses to work on one that is behind.

The first migration runs the SQL files of `schema/`. Each change since is a migration of its own
that suits the release before it.
"""

import time
from functools import cache
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.sql.schema import SchemaItem

from service.domain.operations.revisions import is_before_version_1, too_old
from storage.search.setup import is_ours
from storage.tables import metadata

#: Two migrations at once wait for each other on this key.
LOCK_KEY = 0x70616C69
#: … and look after it this often, in seconds.
LOCK_SECONDS = 0.2


class BeforeVersion1(Exception):
    """The database is of a release before version 1, from which no migration leads here."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


@cache
def newest() -> str:
    """The revision that this code expects the database to be at, or beyond."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "there is always a first migration"
    return head


@cache
def known() -> frozenset[str]:
    """All revisions that this code knows."""
    return frozenset(s.revision for s in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(url: URL) -> tuple[str | None, str]:
    """Upgrades the database at `url` (SQLAlchemy form) to the newest revision.

    Returns the revisions before and after. Concurrent calls wait for each other. A revision that
    this code does not know is a newer release's, and stays: this one works on it. Raises
    BeforeVersion1, having changed nothing.
    """
    engine = create_engine(url)
    config = _config()
    try:
        with engine.connect() as connection:
            _lock(connection)
            # A migration suits the release that still runs: it may wait for a lock
            # only briefly, else it fails and is tried again at a better time. Set for
            # the connection, since each migration has a transaction of its own.
            connection.execute(text("SET lock_timeout = '5s'"))
            connection.execute(text("SET statement_timeout = '10min'"))
            connection.commit()
            before = _current(connection)
            connection.rollback()
            if before is not None and before not in known():
                if is_before_version_1(before, known()):
                    raise BeforeVersion1(too_old(before))
                return before, before
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            after = _current(connection)
            connection.rollback()
    finally:
        engine.dispose()
    assert after is not None, "upgrade() leaves a revision"
    return before, after


def _lock(connection: Connection) -> None:
    """Waits until no other migration runs; the connection holds the lock, not a transaction.

    It asks again and again: an open statement that waits for the lock would hold up an
    index that the other one builds concurrently, and that one would never end.
    """
    ask = text("SELECT pg_try_advisory_lock(:key)")
    while not connection.execute(ask, {"key": LOCK_KEY}).scalar_one():
        connection.rollback()
        time.sleep(LOCK_SECONDS)
    connection.commit()


def differences(connection: Connection) -> list[object]:
    """What autogenerate would change: empty when storage/tables fits the database.

    The indexes that `storage.search.setup` makes are no migration's.
    """
    opts = {"compare_server_default": False, "include_object": _is_migrated}
    context = MigrationContext.configure(connection, opts=opts)
    found: list[object] = compare_metadata(context, metadata)
    return found


def _is_migrated(
    _object: SchemaItem, name: str | None, type_: str, _reflected: bool, _other: SchemaItem | None
) -> bool:
    return type_ != "index" or name is None or not is_ours(name)


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
