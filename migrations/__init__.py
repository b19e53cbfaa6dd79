"""The database's migrations and how to run them.

`palimpsest migrate` calls `upgrade`; every process of the service calls
`current` at its start and refuses to work on a database that is behind.
"""

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, text

from storage.tables import metadata

#: Two migrations at once wait for each other on this key.
LOCK_KEY = 0x70616C69


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def newest() -> str:
    """The revision that this code expects the database to be at, or beyond."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "there is always a first migration"
    return head


def known() -> frozenset[str]:
    """All revisions that this code knows."""
    return frozenset(s.revision for s in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(url: URL) -> tuple[str | None, str]:
    """Brings the database at `url` (SQLAlchemy form) to the newest revision.

    Returns the revisions before and after. Concurrent calls wait for each other.
    """
    engine = create_engine(url)
    config = _config()
    try:
        with engine.connect() as connection:
            # Held by the connection, not by a transaction, since each migration
            # has a transaction of its own.
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
            connection.commit()
            before = _current(connection)
            connection.rollback()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            after = _current(connection)
            connection.rollback()
    finally:
        engine.dispose()
    assert after is not None, "upgrade() leaves a revision"
    return before, after


def differences(connection: Connection) -> list[object]:
    """What autogenerate would change: empty when storage/tables.py fits the database."""
    context = MigrationContext.configure(connection, opts={"compare_server_default": False})
    found: list[object] = compare_metadata(context, metadata)
    return found


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
