"""Computes the tokens of an agent loop over a session's steps, in one query.

The query reads the log once, from one compression to the next, and only the lengths of texts.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import text

from service.domain.state.accounting import StateTotals
from storage.engine.database import Transaction

#: The labels of a step's parts in `Chunk.as_text`; each part begins a line.
_LABELS = {"observation": "Observation: ", "thought": "Thought: ", "action": "Action: "}
_PARTS = " + ".join(
    f"CASE WHEN {part} = '' THEN 0 ELSE octet_length({part}) + {len(label)} + 1 END"
    for part, label in _LABELS.items()
)
#: `estimate_tokens` of `Chunk.as_text`, from its bytes.
_TOKENS = f"""(CASE
    WHEN kind = 'message' THEN octet_length(role) + octet_length(': ') + octet_length(text)
    WHEN kind = 'step' THEN {_PARTS} - 1
    ELSE octet_length(text) END + 3) / 4"""

_SUMS = text(
    f"""
WITH mark AS (
    -- Where compressed parts ended, with the newest revision there.
    SELECT to_position AS start, max(revision) AS revision,
        count(*) FILTER (WHERE kind IN ('step', 'skip')) AS compressions
    FROM revision
    WHERE session_key = :session AND memory_id = :memory AND revision <= :revision
        AND NOT set_aside
    GROUP BY to_position
), period AS (
    -- The contexts of the steps from start + 1 to stop begin with the same vectors.
    SELECT *, lead(start, 1, :head) OVER (ORDER BY start) AS stop FROM mark
), held AS (
    -- Looked up one by one: a join would be planned for a few revisions, and be quadratic.
    SELECT p.start, p.stop, p.compressions, v.tokens, v.newest
    FROM period p CROSS JOIN LATERAL (
        SELECT max(used.revision) AS newest, sum((
            SELECT one.tokens FROM state_vector one
            WHERE one.session_key = :session AND one.memory_id = :memory
                AND one.revision = used.revision
        )) AS tokens
        FROM (
            SELECT coalesce(CAST(run ->> -1 AS bigint), CASE WHEN level = 1 THEN 0 END) AS revision
            FROM jsonb_array_elements((
                SELECT l.runs FROM state_levels l
                WHERE l.session_key = :session AND l.memory_id = :memory
                    AND l.revision = p.revision
            )) WITH ORDINALITY AS e (run, level)
            -- A subquery of its own: row-level security allows no index condition on an
            -- expression that may fail.
            OFFSET 0
        ) used
    ) v
), totalled AS (
    SELECT h.*, s.*
    FROM held h CROSS JOIN LATERAL (
        SELECT sum(tokens) AS step_tokens,
            sum(tokens) FILTER (WHERE position = :head) AS last_step_tokens,
            sum(tokens * (:head - position)) AS history_tokens,
            sum(tokens * (h.stop - position)) AS recent_tokens,
            coalesce(sum(tokens) FILTER (WHERE position < h.stop), 0) AS longest_tokens
        FROM (
            SELECT position, {_TOKENS} AS tokens FROM chunk
            WHERE session_key = :session AND position > h.start AND position <= h.stop
        ) step
    ) s
)
SELECT :head AS steps, sum(step_tokens) AS step_tokens,
    max(last_step_tokens) AS last_step_tokens, sum(history_tokens) AS history_tokens,
    sum(recent_tokens) AS recent_tokens, sum(tokens * (stop - start)) AS vector_tokens,
    coalesce(sum(stop - start) FILTER (WHERE newest = 0), 0) AS task_contexts,
    max(tokens + longest_tokens) FILTER (WHERE stop > start) AS max_context_tokens,
    (SELECT CASE WHEN newest > 0 THEN tokens END FROM held ORDER BY start DESC LIMIT 1)
        AS newest_tokens,
    sum(compressions) AS compressions,
    -- Each begins where the one before it ended.
    max(start) AS compressed_steps
FROM totalled
"""  # noqa: S608 - all of it is ours
)


async def read_sums(
    tx: Transaction, session_key: UUID, memory_id: UUID, *, revision: int, head: int
) -> StateTotals:
    """Returns the sums of a state memory at a revision, over the log up to `head`, at least 1."""
    assert head > 0, "without a step there are no sums"
    values = {"session": session_key, "memory": memory_id, "revision": revision, "head": head}
    row = (await tx.fetch(_SUMS, values))[0]
    # A sum of bigint is numeric.
    numbers: dict[str, Any] = {
        name: None if held is None else int(held) for name, held in row._asdict().items()
    }
    return StateTotals(**numbers)
