"""Tables of state vectors."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import count, created, ids, metadata, of_revision

state_vector = Table(
    "state_vector",
    metadata,
    # A state vector, written once. Its revision has the positions of its steps, in a chain without
    # gaps: see `revision_chain_fkey`.
    *ids("session_key", "memory_id", "tenant_id"),
    # The revision that added it; 0 has the task prompt.
    count("revision"),
    # 1 for vectors of steps.
    Column("level", Integer, nullable=False),
    Column("text", Text, nullable=False),
    count("tokens"),
    Column("made", Text, nullable=False),
    # It covers after_position + 1 to to_position; it is the first to cover from_position + 1 on.
    count("after_position"),
    count("from_position"),
    count("to_position"),
    # Revisions of its source vectors on the level below.
    Column("children", ARRAY(BigInteger), nullable=False),
    Column("replies", Integer, nullable=False),
    # Pinned strings that the model had dropped.
    Column("appended", ARRAY(Text), nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="state_vector_pkey"),
    of_revision("state_vector_revision_fkey"),
    CheckConstraint(
        "level >= 1 AND (level = 1) = (cardinality(children) = 0)", name="state_vector_level"
    ),
    CheckConstraint(
        "0 <= after_position AND after_position <= from_position AND from_position <= to_position"
        " AND (from_position < to_position OR revision = 0)",
        name="state_vector_range",
    ),
    CheckConstraint("made IN ('task', 'model', 'cut', 'skipped')", name="state_vector_made"),
    CheckConstraint("(made = 'task') = (revision = 0)", name="state_vector_task"),
    Index("state_vector_by_level", "session_key", "memory_id", "level", "revision"),
)


state_levels = Table(
    "state_levels",
    metadata,
    # Which vectors are in use, for every revision: `service.domain.state.vectors.VectorLevels`.
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("runs", JSONB, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="state_levels_pkey"),
    of_revision("state_levels_revision_fkey"),
)
