"""Reads what a process must know of its database before it works on it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, text

from storage.engine.database import Database, value
from storage.engine.errors import ReadOnly
from storage.tables import APP_ROLE, deployment


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentKeys:
    """Secrets that all processes on one database share."""

    #: Signs consistency and page tokens.
    token: bytes
    #: Derives the delimiters of data in prompts.
    marker: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseState:
    """A database, as the application's role sees it."""

    role: str
    #: Why row-level security does not protect tenants from it; empty when it does. Either the role
    #: or the login, to which any statement could return, bypasses it.
    unfit: str
    #: The newest migration; None when there is none.
    migration: str | None
    #: None when the database is not migrated.
    keys: DeploymentKeys | None


async def read(database: Database) -> DatabaseState:
    """Reads the state of the database. Raises StorageError."""
    async with database.without_tenant(name="probe") as tx:
        role = (
            await tx.fetch(
                text(
                    "SELECT r.rolname AS role, l.rolname AS login,"
                    " r.rolsuper OR r.rolbypassrls AS role_passes,"
                    " l.rolsuper OR l.rolbypassrls AS login_passes"
                    " FROM pg_roles r, pg_roles l"
                    " WHERE r.rolname = current_user AND l.rolname = session_user"
                )
            )
        )[0]
        there = (await tx.fetch(text("SELECT to_regclass('alembic_version') IS NOT NULL")))[0][0]
        migration = keys = None
        if there:
            migration = value(await tx.fetch(text("SELECT version_num FROM alembic_version")))
        if migration is not None:
            # Only these: the other columns came with migrations that may not have run yet.
            keys_of = select(deployment.c.token_key, deployment.c.marker_key)
            row = (await tx.fetch(keys_of))[0]
            keys = DeploymentKeys(token=row.token_key, marker=row.marker_key)
    return DatabaseState(role=role.role, unfit=_unfit(role), migration=migration, keys=keys)


def _unfit(found: Any) -> str:
    if found.login_passes:
        return f"the login {found.login} is a superuser or may pass row-level security by"
    if found.role_passes:
        return f"the role {found.role} may pass row-level security by"
    return "" if found.role == APP_ROLE else f"the role is {found.role}, not {APP_ROLE}"


async def check_writable(database: Database) -> None:
    """Checks that the database accepts writes.

    Raises StorageError: ReadOnly, which closes all connections to it, when it does not.
    """
    async with database.without_tenant(name="probe") as tx:
        found = await tx.fetch(
            "SELECT NOT (pg_is_in_recovery() OR current_setting('default_transaction_read_only')"
            "::boolean)",
            prepare=None,
        )
        if not found[0][0]:
            raise ReadOnly("the database is read-only: is it a replica?")
