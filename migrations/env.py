"""Alembic's environment: one connection, with timeouts, under an advisory lock."""

from alembic import context
from sqlalchemy import Connection, text

from storage.tables import metadata


def run(connection: Connection) -> None:
    """Runs the migrations on `connection`, which the caller opened."""
    context.configure(
        connection=connection, target_metadata=metadata, transaction_per_migration=True
    )
    with context.begin_transaction():
        # A migration suits the release that still runs: it may wait for a lock
        # only briefly, else it fails and is tried again at a better time.
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        connection.execute(text("SET LOCAL statement_timeout = '10min'"))
        context.run_migrations()


run(context.config.attributes["connection"])
