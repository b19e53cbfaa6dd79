"""Tables of exports and imports of sessions."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from storage.tables.common import count, created, ids, metadata, of_session

session_export = Table(
    "session_export",
    metadata,
    # An export that was begun: what it reads, and that a copy may exist outside.
    *ids("session_key", "export_id", "tenant_id"),
    count("head"),
    # The revision of each memory, and the answers that it leaves out:
    # `storage.operations.exports.ExportCut`.
    Column("cut", JSONB, nullable=False),
    created(),
    # When its end was sent; NULL before.
    Column("finished_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("session_key", "export_id", name="session_export_pkey"),
    of_session("session_export_session_fkey"),
)


session_import = Table(
    "session_import",
    metadata,
    # The import that made a session, or makes it: until `finished_at` the session is hidden as a
    # deleted one, and its `removal` waits.
    *ids("session_key", "tenant_id"),
    *ids("export_id"),
    # The session's id in the export.
    Column("source_session", Text, nullable=False),
    Column("exported_at", DateTime(timezone=True), nullable=False),
    # What the header says: the last position, and how many memories there are.
    count("head"),
    count("memories"),
    # The exports of this tenant that the exported session was imported from, newest first.
    Column("lineage", ARRAY(Uuid), nullable=False, server_default=text("'{}'")),
    # The last line that was stored, its digest, and the records up to it by kind.
    count("line"),
    Column("digest", LargeBinary, nullable=False),
    Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
    created(),
    Column("finished_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("session_key", name="session_import_pkey"),
    of_session("session_import_session_fkey"),
    CheckConstraint("line >= 1", name="session_import_line"),
    # Copies of a session are found by their lineage.
    Index("session_import_of_tenant", "tenant_id"),
)


imported_usage = Table(
    "imported_usage",
    metadata,
    # The usage that an imported session had where it was exported. It counts for no budget and no
    # tenant here, and is exported again with the session's own.
    *ids("session_key", "tenant_id"),
    # The memory, or the session for calls that no memory made.
    *ids("owner_id"),
    Column("day", Date, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("residual", Text, nullable=False),
    Column("failed", Boolean, nullable=False),
    *(
        Column(name, BigInteger, nullable=False)
        for name in (
            "calls",
            "input_tokens",
            "predicted_cached_tokens",
            "reported_cached_tokens",
            "reported_calls",
            "cached_tokens",
            "cache_write_tokens",
            "output_tokens",
            "cost_micro_usd",
            "priced_calls",
        )
    ),
    PrimaryKeyConstraint(
        "session_key",
        "owner_id",
        "day",
        "purpose",
        "model",
        "residual",
        "failed",
        name="imported_usage_pkey",
    ),
    of_session("imported_usage_session_fkey"),
)
