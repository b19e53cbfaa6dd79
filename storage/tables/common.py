"""The metadata of all tables, the roles, and columns and keys that many tables have."""

from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Uuid,
    func,
    text,
)

metadata = MetaData()
#: Views, which migrations create, and are not compared with.
views = MetaData()

#: Role of runtime processes; row-level security applies to it.
APP_ROLE = "palimpsest_app"
#: Role that sees the runnable items of all tenants, and nothing else.
SWEEPER_ROLE = "palimpsest_sweeper"


def ids(*names: str) -> tuple[Column[UUID], ...]:
    """Returns the columns of required ids."""
    return tuple(Column(name, Uuid, nullable=False) for name in names)


def created() -> Column[object]:
    """Returns the column of the time when the row was written."""
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


def count(name: str) -> Column[int]:
    """Returns the column of a required number."""
    return Column(name, BigInteger, nullable=False)


def total(name: str) -> Column[int]:
    """Returns the column of a number that grows from 0."""
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def of_revision(name: str) -> ForeignKeyConstraint:
    """Returns the foreign key of a row that belongs to a revision."""
    return ForeignKeyConstraint(
        ["session_key", "memory_id", "revision"],
        ["revision.session_key", "revision.memory_id", "revision.revision"],
        name=name,
    )


def of_session(name: str, ondelete: str | None = None) -> ForeignKeyConstraint:
    """Returns the foreign key of a row that belongs to a session, and so to its tenant."""
    return ForeignKeyConstraint(
        ["session_key", "tenant_id"],
        ["session.session_key", "session.tenant_id"],
        name=name,
        ondelete=ondelete,
    )


def of_memory(name: str) -> ForeignKeyConstraint:
    """Returns the foreign key of a row that belongs to a memory."""
    return ForeignKeyConstraint(
        ["session_key", "memory_id"], ["memory.session_key", "memory.memory_id"], name=name
    )


def of_waiting(name: str) -> Index:
    """Returns the index of work that waits for a model's condition."""
    return Index(
        name,
        "waiting_model",
        "tenant_id",
        "ready_at",
        postgresql_where=text("waiting_model IS NOT NULL"),
    )
