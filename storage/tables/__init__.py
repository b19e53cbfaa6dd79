"""The tables for SQLAlchemy's Core; migrations/schema/ creates them.

Every table that belongs to a session has `session_key` first in every key and
`tenant_id` beside it for row-level security.
"""

from storage.tables.calls import (
    budget,
    call,
    call_sum,
    intent,
    spend,
    spend_sum,
    tenant_budget,
    tenant_spend_sum,
)
from storage.tables.common import APP_ROLE, SWEEPER_ROLE, metadata
from storage.tables.jobs import (
    answer,
    answer_rating,
    answer_text,
    claim,
    operation,
    schema_draft,
    trajectory_event,
    wanted,
    worker,
)
from storage.tables.log import (
    chunk,
    deployment,
    model_condition,
    process,
    producer,
    removal,
    request,
    session,
    tenant,
    trace_context,
)
from storage.tables.memories import dead_letter, memory, revision
from storage.tables.prism import amendment, prism_base, prism_snapshot, prism_value, rejection
from storage.tables.search import chunk_vector, chunk_word, posting_block, posting_list
from storage.tables.trees import tree_node
from storage.tables.vectors import state_levels, state_vector

__all__ = [
    "APP_ROLE",
    "SWEEPER_ROLE",
    "amendment",
    "answer",
    "answer_rating",
    "answer_text",
    "budget",
    "call",
    "call_sum",
    "chunk",
    "chunk_vector",
    "chunk_word",
    "claim",
    "dead_letter",
    "deployment",
    "intent",
    "memory",
    "metadata",
    "model_condition",
    "operation",
    "posting_block",
    "posting_list",
    "prism_base",
    "prism_snapshot",
    "prism_value",
    "process",
    "producer",
    "rejection",
    "removal",
    "request",
    "revision",
    "schema_draft",
    "session",
    "spend",
    "spend_sum",
    "state_levels",
    "state_vector",
    "tenant",
    "tenant_budget",
    "tenant_spend_sum",
    "trace_context",
    "trajectory_event",
    "tree_node",
    "wanted",
    "worker",
]
