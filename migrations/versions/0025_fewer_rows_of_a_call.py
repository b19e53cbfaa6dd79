"""Fewer rows, keys and locks of rows for every message and call.

- What was spent by day is read out of the sums of calls, which hold all of it.
- Sums that are there are added to by an UPDATE. An INSERT that finds its row locks it first, and
  the log has the lock as well.
- Nothing looks a call up by its id, and none is kept apart by it.
- A key locks the row that it refers to, and the log has that as well. An intent is there for the
  time of a call, and words are made of their chunks by one statement.
- A trigger before an update locks the row of every update, whether it is for it or not. So
  appends say themselves that there is something to index, and the trigger that says it for those
  of the release before comes behind the update.
- A page with less room free than its fill factor says is cleaned by each access, which is logged.
  A tenth is room enough: what leaves its page is as much as before.

The release before goes on working: it reads `spend` as it did, and only triggers wrote it. Its
lists and sums of a whole tenant take longer meanwhile, since it does not say what the indexes of a
tenant's rows ask for. Every statement can run again.

Revision: 0025
After: 0024
"""

import time
from collections.abc import Sequence

from alembic import op
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_SPENT = ("tokens", "micro_usd", "unpriced_calls")
_OF_DAY = tuple(f"day_{name}" for name in _SPENT)
_SPENT_COLUMNS = (*_SPENT, "day", *_OF_DAY)


def _added_spend(more: str) -> str:
    """What a row of spent sums becomes with another. A day that is over is not gone back to."""
    return ",\n            ".join(
        (
            *(f"{name} = s.{name} + {more}.{name}" for name in _SPENT),
            f"day = greatest(s.day, {more}.day)",
            *(
                f"{name} = CASE WHEN s.day > {more}.day THEN s.{name}"
                f" WHEN s.day = {more}.day THEN s.{name} + {more}.{name}"
                f" ELSE {more}.{name} END"
                for name in _OF_DAY
            ),
        )
    )


#: What a row of the newest day has of the calls that are written together.
_MADE = """sum(tokens)::bigint AS tokens, sum(micro_usd)::bigint AS micro_usd,
            sum(unpriced_calls)::bigint AS unpriced_calls, v_day AS day,
            coalesce(sum(tokens) FILTER (WHERE day = v_day), 0)::bigint AS day_tokens,
            coalesce(sum(micro_usd) FILTER (WHERE day = v_day), 0)::bigint AS day_micro_usd,
            coalesce(sum(unpriced_calls) FILTER (WHERE day = v_day), 0)::bigint
                AS day_unpriced_calls"""
_CALLS = """SELECT tenant_id, session_key, memory_id,
                (created_at AT TIME ZONE 'UTC')::date AS day,
                input_tokens + output_tokens AS tokens, coalesce(cost_micro_usd, 0) AS micro_usd,
                (reply IS NOT NULL AND cost_micro_usd IS NULL)::int AS unpriced_calls
            FROM made"""

_FIGURES = (
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


def _added_calls(more: str) -> str:
    """What a row of sums of calls becomes with another."""
    return ",\n            ".join(f"{name} = s.{name} + {more}.{name}" for name in _FIGURES)


def _loop(
    table: str, keys: Sequence[str], columns: Sequence[str], added: tuple[str, str], rows: str
) -> str:
    """Adds each of the rows to the row with its keys, which is made when it is not there.

    `added` says what becomes of a row with w, and with one that was to be inserted. What is
    planned while the table is empty has to be good for later.
    """
    by_update, by_insert = added
    return f"""
    FOR w IN
        {rows}
    LOOP
        UPDATE {table} s SET
            {by_update}
        WHERE {" AND ".join(f"s.{key} = w.{key}" for key in keys)};
        CONTINUE WHEN FOUND;
        INSERT INTO {table} AS s ({", ".join(columns)})
        VALUES ({", ".join(f"w.{name}" for name in columns)})
        ON CONFLICT ({", ".join(keys)}) DO UPDATE SET
            {by_insert};
    END LOOP;"""


_OWNER = ("session_key", "owner_id")
_SLOT = ("tenant_id", "slot")
_SPEND_ADDED = _added_spend("w"), _added_spend("excluded")

#: Once a statement, not once a call; and rows are locked in one order by all, those of sessions
#: before those of tenants.
COUNT_SPEND = f"""
CREATE OR REPLACE FUNCTION count_spend() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_day date;
    v_slot smallint := mod(pg_backend_pid(), 16);
    w record;
BEGIN
    SELECT max((created_at AT TIME ZONE 'UTC')::date) INTO v_day FROM made;
    IF v_day IS NULL THEN
        RETURN NULL;
    END IF;{
    _loop(
        "spend_sum",
        _OWNER,
        (*_OWNER, "tenant_id", *_SPENT_COLUMNS),
        _SPEND_ADDED,
        f'''SELECT session_key, o.owner_id, tenant_id, {_MADE}
        FROM (
            {_CALLS}
        ) c
        CROSS JOIN LATERAL (VALUES (c.session_key), (c.memory_id)) AS o (owner_id)
        WHERE o.owner_id IS NOT NULL
        GROUP BY 1, 2, 3 ORDER BY 1, 2''',
    )
}{
    _loop(
        "tenant_spend_sum",
        _SLOT,
        (*_SLOT, *_SPENT_COLUMNS),
        _SPEND_ADDED,
        f'''SELECT tenant_id, v_slot AS slot, {_MADE}
        FROM (
            {_CALLS}
        ) c
        GROUP BY 1 ORDER BY 1''',
    )
}
    RETURN NULL;
END $$;
"""

_KEYS = ("session_key", "owner_id", "day", "purpose", "model", "residual", "failed")
SUM_CALLS = f"""
CREATE OR REPLACE FUNCTION sum_calls() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    w record;
BEGIN{
    _loop(
        "call_sum",
        _KEYS,
        (*_KEYS, "tenant_id", *_FIGURES),
        (_added_calls("w"), _added_calls("excluded")),
        f'''SELECT session_key, coalesce(memory_id, session_key) AS owner_id,
            (created_at AT TIME ZONE 'UTC')::date AS day, purpose, model,
            coalesce(residual, '') AS residual, reply IS NULL AS failed, tenant_id,
            count(*) AS calls, sum(input_tokens) AS input_tokens,
            sum(predicted_cached_tokens) AS predicted_cached_tokens,
            coalesce(sum(reported_cached_tokens), 0) AS reported_cached_tokens,
            count(reported_cached_tokens) AS reported_calls,
            sum(coalesce(reported_cached_tokens, predicted_cached_tokens)) AS cached_tokens,
            coalesce(sum(cache_write_tokens), 0) AS cache_write_tokens,
            sum(output_tokens) AS output_tokens,
            coalesce(sum(cost_micro_usd), 0) AS cost_micro_usd,
            count(cost_micro_usd) AS priced_calls
        FROM made GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY {", ".join(_KEYS)}''',
    )
}
    RETURN NULL;
END $$;
"""

#: Row-level security is that of who asks. A row for each row of the sums: all that read it sum up.
VIEW = """
CREATE OR REPLACE VIEW spend WITH (security_invoker = true) AS
SELECT session_key, owner_id, day, tenant_id,
    CASE WHEN failed THEN 0 ELSE calls END AS calls,
    CASE WHEN failed THEN calls ELSE 0 END AS failed_calls,
    input_tokens, predicted_cached_tokens, reported_cached_tokens,
    CASE WHEN failed THEN 0 ELSE calls - reported_calls END AS unreported_calls,
    cache_write_tokens, output_tokens, cost_micro_usd,
    CASE WHEN failed THEN 0 ELSE calls - priced_calls END AS unpriced_calls
FROM call_sum;
GRANT SELECT ON spend TO palimpsest_app
"""

#: A key that is dropped locks both tables, and steps lock them in the other order. It gives way
#: before the server has to choose, and is tried again.
BRIEFLY = "SET lock_timeout = '500ms'"
TRIES, PAUSE_SECONDS = 60, 0.5
DROP_KEY = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_constraint
               WHERE conrelid = to_regclass('{table}') AND conname = '{key}') THEN
        ALTER TABLE {table} DROP CONSTRAINT {key};
    END IF;
END $$
"""
#: In one moment, between two calls that are written: no trigger stands in the table that goes.
REPLACE = f"""
LOCK TABLE call IN ACCESS EXCLUSIVE MODE;
ALTER TABLE call DROP CONSTRAINT IF EXISTS call_pkey;
{COUNT_SPEND}
{SUM_CALLS}
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('spend') AND relkind <> 'v') THEN
        DROP TABLE spend;
    END IF;
END $$;
{VIEW}
"""

#: As before, but for `has_unindexed`.
WRITE = """
CREATE OR REPLACE FUNCTION write_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_observed_first boolean[],
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_tenant uuid;
    -- A sharded database takes no now() inside of CASE.
    v_now timestamptz := now();
BEGIN
    SELECT tenant_id INTO v_tenant FROM session
    WHERE session_key = p_session AND head = p_head AND incarnation = p_incarnation
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE producer SET last_sequence = p_last + cardinality(p_kinds)
    WHERE session_key = p_session AND producer_id = p_producer
        AND epoch = p_epoch AND last_sequence = p_last;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE session
    SET head = p_head + cardinality(p_kinds), content_bytes = content_bytes + p_bytes,
        has_unindexed = true
    WHERE session_key = p_session;
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest,
                       observed_first)
    SELECT v_tenant, p_session, p_head + t.n, p_producer, p_last + t.n,
        t.kind, t.role, t.text, t.observation, t.thought, t.action, t.metadata, t.digest,
        t.observed_first
    FROM unnest(p_kinds, p_roles, p_texts, p_observations, p_thoughts, p_actions,
                p_metadata, p_digests, p_observed_first) WITH ORDINALITY
        AS t (kind, role, text, observation, thought, action, metadata, digest, observed_first, n);
    WITH roused AS (
        UPDATE memory SET has_work = true, resting = false,
            ready_at = CASE WHEN resting THEN v_now ELSE greatest(ready_at, v_now) END
        WHERE session_key = p_session AND (NOT has_work OR resting) AND status <> 'sealed'
            AND (wake_position IS NULL OR wake_position <= p_head + cardinality(p_kinds))
        RETURNING memory_id, status
    )
    SELECT array_agg(memory_id) FILTER (WHERE status = 'active') INTO woken FROM roused;
    SELECT min(applied_position) INTO applied FROM memory
    WHERE session_key = p_session AND status = 'active';
    RETURN NEXT;
END
$$
"""

#: For appends of the release before to several sessions at once.
NOTE = """
CREATE OR REPLACE FUNCTION note_unindexed_behind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE session SET has_unindexed = true WHERE session_key = NEW.session_key;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER session_note_unindexed AFTER UPDATE OF head ON session
    FOR EACH ROW WHEN (NEW.head > OLD.head AND NOT NEW.has_unindexed)
    EXECUTE FUNCTION note_unindexed_behind();
DROP FUNCTION IF EXISTS note_unindexed()
"""

#: Keys of what is made of other rows, or gone soon.
KEYS = (
    ("intent", "intent_session_fkey"),
    ("intent", "intent_memory_fkey"),
    ("chunk_word", "chunk_word_chunk_fkey"),
    ("spend", "spend_session_fkey"),
)
#: Tables whose rows are updated all the time. Of what is written to a page from now on.
FILLED = ("session", "producer", "memory", "spend_sum", "tenant_spend_sum", "call_sum")
FILL_PERCENT = 90

#: For statements about all of a tenant, which say what each row says: without statistics the
#: planner would take them for others as well, since row-level security names the tenant.
BY_TENANT = {
    "call_sum_by_tenant": "call_sum (tenant_id, day) WHERE day > '-infinity'",
    "intent_of_tenant": "intent (tenant_id) WHERE created_at > '-infinity'",
    "session_of_tenant": "session (tenant_id, name) WHERE name > ''",
}
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{index}')"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # This takes its time and blocks nobody, so it may also wait for its lock.
        op.execute("SET lock_timeout = 0")
        for index, rows in BY_TENANT.items():
            if not op.get_bind().execute(text(IS_VALID.format(index=index))).scalar():
                # One that was interrupted is there, and invalid.
                op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
                op.execute(f"CREATE INDEX CONCURRENTLY {index} ON {rows}")
        for index in ("intent_by_tenant", "session_by_name"):
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
        # Each for itself, for a moment.
        op.execute(BRIEFLY)
        for table, key in KEYS:
            _execute(DROP_KEY.format(table=table, key=key))
        for table in FILLED:
            _execute(f"ALTER TABLE {table} SET (fillfactor = {FILL_PERCENT})")
        _execute(WRITE)
        _execute(NOTE)
        _execute(REPLACE)
        op.execute("SET lock_timeout = '5s'")


def _execute(statements: str) -> None:
    """Runs statements in one transaction, until their locks are free. Raises OperationalError."""
    for _ in range(TRIES):
        try:
            op.execute(statements)
            return
        except OperationalError as error:
            if not isinstance(error.orig, errors.LockNotAvailable):
                raise
        time.sleep(PAUSE_SECONDS)
    op.execute(statements)
