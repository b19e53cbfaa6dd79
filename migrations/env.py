"""Alembic's environment: one connection, which `migrations.upgrade` has set up."""

from alembic import context
from sqlalchemy import Connection

from storage.tables import metadata


def run(connection: Connection) -> None:
    """Runs the migrations on `connection`, which the caller opened."""
    context.configure(
        connection=connection, target_metadata=metadata, transaction_per_migration=True
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
