"""Every column that could have text is either reached by a redaction, or has none of a chunk."""

from storage.engine.database import Database

#: By table: columns whose content, or rows, go with a redaction. docs/guides/forgetting.md
#: says when.
REACHED = {
    "amendment": {"path", "op", "value"},
    "answer": {
        *("query", "text", "citations", "failure", "navigation", "no_answer", "statistics"),
        *("browsing", "response_schema", "value", "chosen", "chunk_filter", "options"),
        *("status", "model", "reader", "wanted_model", "waiting_model", "waiting_cause"),
    },
    "answer_rating": {"comment", "expected"},
    "answer_text": {"text"},
    "call": {"key", "reply", "failure", "said"},
    "chunk": {
        *("role", "text", "observation", "thought", "action", "metadata", "thread", "source"),
        "digest",
    },
    "chunk_vector": {"model", "embedding"},
    "chunk_word": {"words"},
    "dead_letter": {"cause"},
    "memory": {"fold_state", "losses", "held_reason", "waiting_model", "waiting_cause"},
    "memory_entry": {"path", "value", "words", "model", "embedding"},
    "operation": {"error"},
    "posting_list": {"key", "words", "groups", "places"},
    "prism_base": {"value"},
    "prism_snapshot": {"value"},
    "prism_value": {"value"},
    "rejection": {"proposal", "reason"},
    "request": {"digest", "response"},
    "revision": {"digest", "comment"},
    "session": {"index_failure", "words_failure"},
    "state_levels": {"runs"},
    "state_vector": {"text", "made", "appended"},
    "trajectory_event": {"event"},
    "tree_node": {"summary", "made", "words"},
}
#: Names that clients or operators choose, and what they write by hand: no content of a chunk.
NAMES = {
    "answer": set[str](),
    "api_key": {"key_id", "display_name", "scopes", "session_prefix", "created_by", "replaces"},
    "audit_event": {"principal", "action", "session", "memory", "target", "details"},
    "chunk": {"producer_id"},
    "memory": {"name", "spec", "schema_source", "rebuilt_from", "source_changes"},
    "operation": {"memory_name"},
    "producer": {"producer_id"},
    "redaction": {"principal", "reason"},
    "request": {"request_id"},
    "retention_turn": {"after_name"},
    "revision": {"schema_source"},
    "schema_draft": {"domain", "example_query", "source", "failure"},
    "session": {"name", "metadata", "imported_from"},
    "session_import": {"source_session"},
    "source_trust": {"source"},
    "tenant": {"name", "display_name"},
    "erasure": {"principal", "reason"},
}
#: Words of the service, names of models, settings, figures, positions, and secrets.
OURS = {
    "api_key": {"secret_hash"},
    "audit_event": {"digest"},
    "audit_head": {"digest"},
    "budget": {"period"},
    "call": {
        *("occasion", "purpose", "template", "model", "deployment", "residual", "ended"),
    },
    "call_sum": {"purpose", "model", "residual"},
    "chunk": {"kind"},
    "claim": {"kind"},
    "dead_letter": {"resolution", "ambiguous_model"},
    "deployment": {"token_key", "marker_key", "server_identifier"},
    # Positions, and keyed digests.
    "erasure": {"kind", "detail", "counts", "digests"},
    "imported_usage": {"purpose", "model", "residual"},
    # A digest of a whole prompt, until the call has ended.
    "intent": {"key", "purpose", "model", "deployment"},
    "keep_out": {"digest"},
    "memory": {"kind", "status"},
    "model_condition": {"place", "model", "fault", "cause"},
    "operation": {"kind", "state"},
    "process": {"kind", "host"},
    "redaction": {"cause", "removed"},
    "request": {"method"},
    "revision": {"kind"},
    "schema_draft": {"model", "status", "waiting_model", "waiting_cause"},
    "session": {"language", "embedding_model", "default_memory", "retention"},
    # Where an export of the session ended, and the digest of one that was imported.
    "session_export": {"cut"},
    "session_import": {"digest", "counts"},
    "source_trust": {"trust", "trust_before"},
    "tenant": {"retention"},
    "tenant_budget": {"period"},
    "tenant_key": {"signing_key", "digest_key"},
    "trace_context": {"trace_id", "span_id"},
}
#: procrastinate's, which has ids of items, and migrations'.
FOREIGN = ("procrastinate_", "alembic_version")

COLUMNS = """
SELECT c.relname, a.attname
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
    AND coalesce(e.typname, t.typname) NOT IN (
        'uuid', 'int2', 'int4', 'int8', 'bool', 'timestamptz', 'date', 'float8')
"""


async def test_a_new_column_says_what_a_redaction_does_with_it(database: Database) -> None:
    async with database.without_tenant(name="test") as tx:
        rows = await tx.fetch(COLUMNS)
    found = {(table, column) for table, column in rows if not table.startswith(FOREIGN)}
    listed = [REACHED, NAMES, OURS]
    known = {(table, one) for part in listed for table, ones in part.items() for one in ones}
    assert found - known == set(), "say in which list they belong, and reach them if need be"
    assert known - found == set(), "there are no such columns any more"
    assert len(known) == sum(len(ones) for part in listed for ones in part.values())
