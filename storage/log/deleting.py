"""Deletes sessions, memories and answers: hides them at once, and removes them in batches later.

A deletion is one short transaction. It sets `deleted_at`, which row-level security hides from all
transactions but removals, and adds a row to `removal` and a record to `erasure`. From its commit on
nothing of the session or memory can be read or added: a transaction that adds rows locks the row of
the session or of a memory, and finds neither any more.

Removals delete rows in the order of their foreign keys. Their only state is the row in `removal`,
so any worker can continue one after a crash. Each batch adds to its erasure what it has removed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.log.erasures import BY_SERVICE, ErasureKind, ErasureRequest, hmac_blocks
from service.domain.values.tenancy import session_key as key_of
from storage.engine.database import Transaction
from storage.log import erasures

#: Shows deleted rows for the rest of a transaction.
REMOVING = "SET LOCAL app.removing = 'on'"

#: Waits for all transactions that add rows.
_LOCK = "SELECT true FROM session WHERE session_key = %(session)s FOR UPDATE"

_HIDE_MEMORIES = """
UPDATE memory SET deleted_at = now(), epoch = epoch + 1, has_work = false, held_reason = NULL,
    waiting_model = NULL, waiting_cause = NULL
WHERE session_key = %(session)s AND deleted_at IS NULL {which}
RETURNING memory_id, epoch
"""
#: The tombstone is like a new session, but for its incarnation.
_HIDE_SESSION = """
UPDATE session SET deleted_at = now(), incarnation = incarnation + 1, head = 0, content_bytes = 0,
    indexed_position = 0, embedded_position = 0, embedding_model = '', has_unindexed = false,
    keeps_out = false,
    index_ready_at = now(), index_attempts = 0, index_failure = '',
    words_ready_at = now(), words_attempts = 0, words_failure = '', metadata = '{}',
    retention = '{}', trajectories_expired_at = NULL, expired_position = 0,
    default_memory = 'none', imported_from = NULL,
    first_epoch = greatest(first_epoch, %(epoch)s::bigint)
WHERE session_key = %(session)s
"""
# What is deleted before the first append is not made by it.
_RAISE_FIRST_EPOCH = """
UPDATE session SET first_epoch = greatest(first_epoch, %(epoch)s::bigint),
    default_memory = CASE head WHEN 0 THEN 'none' ELSE default_memory END
WHERE session_key = %(session)s
"""
# By the index of pending answers, which are bounded; a session may have any number of answers.
_CANCEL_ANSWERS = """
UPDATE answer SET status = 'cancelled', waiting_model = NULL, waiting_cause = NULL
WHERE tenant_id = %(tenant)s AND status = 'pending' AND ready_at > '-infinity'
    AND session_key = %(session)s {which}
RETURNING answer_id
"""
_OF_MEMORY = "AND memory_id = %(memory)s"
_READS_MEMORY = "AND (memory_id = %(memory)s OR chosen ->> 'memory_id' = %(memory)s::text)"
_END_DRAFTS = """
UPDATE schema_draft SET status = 'failed', failure = 'the session was deleted',
    waiting_model = NULL, waiting_cause = NULL
WHERE tenant_id = %(tenant)s AND status = 'pending' AND ready_at > '-infinity'
    AND session_key = %(session)s
RETURNING draft_id
"""
#: Keeps the costs of deleted sessions, and is hidden like them.
_KEEP_COSTS = """
INSERT INTO session (session_key, tenant_id, name, deleted_at)
VALUES (%(costs)s, %(tenant)s, '', now()) ON CONFLICT DO NOTHING
"""
_FORGET_PARTS = "DELETE FROM removal WHERE session_key = %(session)s"
_ADD = """
INSERT INTO removal (session_key, item_id, tenant_id)
VALUES (%(session)s, %(item)s, %(tenant)s) ON CONFLICT DO NOTHING
"""


def costs_key(tenant_id: UUID) -> UUID:
    """Returns the key under which the costs of a tenant's deleted sessions are kept."""
    return key_of(tenant_id, "")


async def begin(tx: Transaction, session_key: UUID, item_id: UUID) -> None:
    """Begins a removal: from now on rows of the session may be deleted."""
    values = {"session": session_key, "item": item_id, "tenant": tx.tenant_id}
    await tx.execute(_ADD, values, prepare=None)


async def take(tx: Transaction, session_key: UUID, item_id: UUID) -> bool:
    """Takes a removal to the end of the transaction; False where another worker has it."""
    return bool(await tx.fetch(_TAKE, {"session": session_key, "item": item_id}))


async def end(tx: Transaction, session_key: UUID, item_id: UUID) -> None:
    """Ends a removal."""
    await tx.execute(_END, {"session": session_key, "item": item_id}, prepare=None)


async def lock_session(tx: Transaction, session_key: UUID) -> bool:
    """Waits for all transactions that add rows to a session; False when there is none.

    A deletion takes this lock before any other.
    """
    return bool(await tx.fetch(_LOCK, {"session": session_key}))


async def delete_session(
    tx: Transaction, session_key: UUID, request: ErasureRequest = BY_SERVICE
) -> bool:
    """Hides a session and all that belongs to it, and records that; False when there is none.

    Ends pending jobs. Waits for transactions that add rows to the session.
    """
    values: dict[str, object] = {
        "session": session_key,
        "item": session_key,
        "tenant": tx.tenant_id,
        "costs": costs_key(tx.tenant_id),
    }
    if not await lock_session(tx, session_key):
        return False
    await tx.execute(REMOVING, prepare=None)
    hidden = await tx.fetch(_HIDE_MEMORIES.format(which=""), values)
    values["epoch"] = max((epoch for _, epoch in hidden), default=0)
    _, _, _, _, answers, drafts = await tx.pipeline(
        (
            _HIDE_SESSION,
            _KEEP_COSTS,
            _FORGET_PARTS,
            _ADD,
            _CANCEL_ANSWERS.format(which=""),
            _END_DRAFTS,
        ),
        values,
    )
    await erasures.record(tx, ErasureKind.SESSION, request, session=session_key, item=session_key)
    tx.changed.update(row[0] for row in (*hidden, *answers, *drafts))
    tx.changed.add(session_key)
    return True


async def delete_memory(
    tx: Transaction, session_key: UUID, memory_id: UUID, request: ErasureRequest = BY_SERVICE
) -> bool:
    """Hides a memory, and records that; False when there is none.

    Cancels pending answers that read it. The caller may read the session afterwards.
    """
    values: dict[str, object] = {
        "session": session_key,
        "memory": memory_id,
        "item": memory_id,
        "tenant": tx.tenant_id,
    }
    if not await lock_session(tx, session_key):
        return False
    await tx.execute(REMOVING, prepare=None)
    hidden = await tx.fetch(_HIDE_MEMORIES.format(which=_OF_MEMORY), values)
    if not hidden:
        return False
    values["epoch"] = hidden[0][1]
    _, _, answers = await tx.pipeline(
        (_RAISE_FIRST_EPOCH, _ADD, _CANCEL_ANSWERS.format(which=_READS_MEMORY)), values
    )
    await erasures.record(tx, ErasureKind.MEMORY, request, session=session_key, item=memory_id)
    tx.changed.update(row[0] for row in (*hidden, *answers))
    return True


ANSWER_PARTS = ("answer_text", "trajectory_event", "answer_rating", "answer")

#: Calls keep their figures and lose their texts, so that none is replayed.
BLANK_CALLS = """
UPDATE call SET key = uuid_send(call_id), said = NULL,
    reply = CASE WHEN reply IS NOT NULL THEN '' END,
    failure = CASE WHEN failure IS NOT NULL THEN '' END {more}
WHERE {which}
"""
_OF_ANSWER = """session_key = %(session)s AND occasion = %(occasion)s
    AND (memory_id IS NULL OR memory_id = ANY(%(memories)s::uuid[]))"""
_LOCK_ANSWER = """
SELECT memory_id, (chosen ->> 'memory_id')::uuid FROM answer
WHERE session_key = %(session)s AND answer_id = %(item)s FOR UPDATE
"""
_END = "DELETE FROM removal WHERE session_key = %(session)s AND item_id = %(item)s"


#: The item of the row in `removal` for a single transaction; no memory has this id.
_NO_ITEM = UUID(int=0)
#: Of one that sets revisions aside, has them count again, or has their states expire:
#: `revision_redacted` has it.
SETTING_ASIDE = UUID(int=1)


async def allow(tx: Transaction, session_key: UUID, item: UUID = _NO_ITEM) -> None:
    """Allows the transaction to remove rows of a session, until `forbid`."""
    values = {"session": session_key, "item": item, "tenant": tx.tenant_id}
    await tx.execute(_ADD, values)


async def forbid(tx: Transaction, session_key: UUID, item: UUID = _NO_ITEM) -> None:
    """Ends what `allow` began, as each such transaction must."""
    await tx.execute(_END, {"session": session_key, "item": item})


async def delete_answer(tx: Transaction, session_key: UUID, answer_id: UUID, occasion: str) -> bool:
    """Removes an answer with all its rows, at once; False when there is none.

    Its calls, which have that occasion, keep their figures and lose their texts.
    """
    values: dict[str, object] = {
        "session": session_key,
        "item": answer_id,
        "tenant": tx.tenant_id,
        "occasion": occasion,
    }
    found = await tx.fetch(_LOCK_ANSWER, values)
    if not found:
        return False
    values["memories"] = [one for one in found[0] if one is not None]
    parts = (
        f"DELETE FROM {table} WHERE session_key = %(session)s AND answer_id = %(item)s"  # noqa: S608 - a name from above
        for table in ANSWER_PARTS
    )
    # Rows may be deleted while a removal is under way.
    blank = BLANK_CALLS.format(more="", which=_OF_ANSWER)
    await tx.pipeline((_ADD, blank, *parts, _END), values)
    tx.changed.add(answer_id)
    return True


#: What belongs to memories, in the order that foreign keys demand.
_OF_MEMORIES = (
    "memory_entry",
    "amendment",
    "rejection",
    "prism_base",
    "prism_snapshot",
    "prism_value",
    "tree_node",
    "state_vector",
    "state_levels",
    "dead_letter",
)
_OF_SESSION = (
    # First: an import that goes on finds that it was deleted.
    "session_import",
    "session_export",
    "imported_usage",
    *ANSWER_PARTS,
    "schema_draft",
    "operation",
    *_OF_MEMORIES,
    "call",
    "intent",
    "chunk_vector",
    "chunk_word",
    "posting_list",
    "posting_block",
    "request",
    "source_trust",
    "revision",
)
#: What revisions refer to.
_LOG = ("chunk", "keep_out", "redaction", "producer", "budget", "trace_context")
#: Which rows of a table go, and in which order where they refer to each other. The first revision
#: goes with its memory, which refers to it then.
_WHICH = {
    "tree_node": "ORDER BY session_key DESC, memory_id DESC, level DESC, number DESC",
    "revision": "AND revision > 0 ORDER BY session_key DESC, memory_id DESC, revision DESC",
}

_TAKE = """
SELECT true FROM removal WHERE session_key = %(session)s AND item_id = %(item)s
FOR UPDATE SKIP LOCKED
"""
_POINT_BACK = """
UPDATE memory SET revision = 0, applied_position = 0
WHERE session_key = %(session)s {which} AND revision > 0
"""
# A memory and its first revision refer to each other: both are gone when keys are checked.
_REMOVE_MEMORIES = """
WITH first AS (DELETE FROM revision WHERE session_key = %(session)s {which} RETURNING 1),
    gone AS (DELETE FROM memory WHERE session_key = %(session)s {which} RETURNING 1)
SELECT (SELECT count(*) FROM first) AS revisions, (SELECT count(*) FROM gone) AS memories
"""
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
#: Spending stays with the tenant, and with a session that remains.
_MOVE_COSTS = f"""
WITH moved AS (
    DELETE FROM call_sum WHERE session_key = %(session)s {{which}} RETURNING *
)
INSERT INTO call_sum AS s (session_key, owner_id, day, purpose, model, residual, failed, tenant_id,
    {", ".join(_FIGURES)})
SELECT %(costs)s::uuid, %(costs)s::uuid, day, purpose, model, residual, failed, tenant_id,
    {", ".join(f"sum({name})" for name in _FIGURES)}
FROM moved GROUP BY day, purpose, model, residual, failed, tenant_id
ORDER BY day, purpose, model, residual, failed
ON CONFLICT (session_key, owner_id, day, purpose, model, residual, failed) DO UPDATE SET
    {", ".join(f"{name} = s.{name} + excluded.{name}" for name in _FIGURES)}
"""  # noqa: S608 - all of it is ours
_FORGET_SUMS = "DELETE FROM spend_sum WHERE session_key = %(session)s {which}"
_FORGET_BUDGETS = "DELETE FROM budget WHERE session_key = %(session)s {which}"
#: Answers outlive the memory that they read.
_DETACH_ANSWERS = """
UPDATE answer SET memory_id = NULL WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM answer WHERE session_key = %(session)s AND memory_id = %(item)s
    LIMIT %(limit)s))
"""
_FORGET_CHOICES = """
UPDATE answer SET chosen = jsonb_set(chosen, '{memory_id}', 'null') WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM answer
    WHERE session_key = %(session)s AND chosen ->> 'memory_id' = %(item)s::text LIMIT %(limit)s))
"""
_BLANK_SOME_CALLS = BLANK_CALLS.format(
    more=", memory_id = NULL",
    which="""ctid = ANY(ARRAY(
    SELECT ctid FROM call WHERE session_key = %(session)s AND memory_id = %(item)s
    LIMIT %(limit)s))""",
)


#: Columns of texts by which what was removed is recognized later.
_TEXTS = {
    "chunk": ("text", "observation", "thought", "action"),
    "memory_entry": ("value",),
    "tree_node": ("summary",),
    "state_vector": ("text",),
    "answer": ("query", "text"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    """A statement that runs until it finds nothing."""

    #: The table, and `.column` where its rows stay.
    name: str
    statement: str
    #: Whether the statement returns a row: how many it removed, and their digests.
    has_digests: bool = False


def _removing(table: str, which: str) -> _Stage:
    deleting = f"""
DELETE FROM {table} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {table} WHERE session_key = %(session)s {which}
    {_WHICH.get(table, "")} LIMIT %(limit)s))
"""  # noqa: S608 - names from above
    if table not in _TEXTS:
        return _Stage(name=table, statement=deleting)
    counting = f"""
WITH gone AS ({deleting} RETURNING {erasures.digests_of(_TEXTS[table])} AS digests)
SELECT count(*) AS removed, string_agg(digests, ''::bytea) AS digests FROM gone
"""  # noqa: S608 - all of it is ours
    return _Stage(name=table, statement=counting, has_digests=True)


_ITEM = "AND memory_id = %(item)s"
_OWNER = "AND owner_id = %(item)s"
_SESSION_STAGES = tuple(_removing(table, "") for table in (*_OF_SESSION, *_LOG))
_MEMORY_STAGES = (
    _Stage(name="answer.memory", statement=_DETACH_ANSWERS),
    _Stage(name="answer.memory", statement=_FORGET_CHOICES),
    _Stage(name="call.texts", statement=_BLANK_SOME_CALLS),
    *(_removing(table, _ITEM) for table in (*_OF_MEMORIES, "revision")),
)
#: The stage of chunks, which the first revisions of memories refer to.
_LOG_STAGE = len(_OF_SESSION)


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """The progress of a removal, within one process."""

    session_key: UUID
    #: The session's own key, or the id of a memory that is deleted alone.
    item_id: UUID
    stage: int = 0
    #: Whether nothing is left.
    is_done: bool = False

    @property
    def is_of_session(self) -> bool:
        """Whether the whole session is removed."""
        return self.item_id == self.session_key


class _RemovalBatch:
    """What one transaction of a removal removes."""

    def __init__(self, tx: Transaction, values: dict[str, object]) -> None:
        self._tx = tx
        self._values = values
        self._removed: Counter[str] = Counter()
        self._digests: list[bytes] = []

    async def run(self, stage: _Stage, limit: int) -> int:
        """Removes up to `limit` rows; returns how many."""
        values = {**self._values, "limit": limit}
        if stage.has_digests:
            ((count, digests),) = await self._tx.fetch(stage.statement, values)
            self._digests.append(bytes(digests or b""))
        else:
            count = await self._tx.execute(stage.statement, values)
        self._removed[stage.name] += count
        return int(count)

    async def remove_memories(self, which: str) -> None:
        """Removes memories with their first revisions, to which nothing refers any more."""
        statement = _REMOVE_MEMORIES.format(which=which)
        ((revisions, memories),) = await self._tx.fetch(statement, self._values)
        self._removed.update(revision=revisions, memory=memories)

    async def record(self, removal: "Removal") -> None:
        """Adds what was removed to the erasure."""
        found = self._removed, b"".join(self._digests)
        await erasures.add_removed(self._tx, removal.session_key, removal.item_id, *found)


async def remove_some(tx: Transaction, removal: Removal, limit: int) -> Removal | None:
    """Removes up to `limit` rows in a whole transaction; returns the removal's progress.

    None when there is nothing to remove, or another worker does so.
    """
    of_session = removal.is_of_session
    values: dict[str, object] = {
        "session": removal.session_key,
        "item": removal.item_id,
        "tenant": tx.tenant_id,
        "costs": costs_key(tx.tenant_id) if of_session else removal.session_key,
        "limit": limit,
    }
    if not await tx.fetch(_TAKE, values):
        return None
    await tx.execute(REMOVING, prepare=None)
    if removal.stage == 0:
        await tx.pipeline((_POINT_BACK.format(which="" if of_session else _ITEM),), values)
    values["inner"], values["outer"] = hmac_blocks((await erasures.keys(tx)).digest)
    batch = _RemovalBatch(tx, values)
    done = await _run_stages(batch, removal, limit)
    if not done.is_done:
        await batch.record(done)
        return done
    await _end(tx, batch, removal, values)
    return done


async def _run_stages(batch: _RemovalBatch, removal: Removal, limit: int) -> Removal:
    stages = _SESSION_STAGES if removal.is_of_session else _MEMORY_STAGES
    left = limit
    for stage in range(removal.stage, len(stages)):
        if removal.is_of_session and stage == _LOG_STAGE:
            await batch.remove_memories("")
        left -= await batch.run(stages[stage], left)
        if left == 0:
            return replace(removal, stage=stage)
    # Only a transaction that went through all stages completes the removal.
    return replace(removal, stage=0, is_done=removal.stage == 0)


async def _end(
    tx: Transaction, batch: _RemovalBatch, removal: Removal, values: dict[str, object]
) -> None:
    """Completes a removal, and its erasure, in the transaction that found nothing left."""
    owned = "" if removal.is_of_session else _OWNER
    if not removal.is_of_session:
        await batch.remove_memories(_ITEM)
    ends = (_MOVE_COSTS, _FORGET_SUMS, _FORGET_BUDGETS)
    await tx.pipeline((*(one.format(which=owned) for one in ends), _END), values)
    await batch.record(removal)
    item = None if removal.is_of_session else removal.item_id
    await erasures.complete(tx, removal.session_key, item)


_IS_REMOVED = """
SELECT true FROM removal
WHERE session_key = %(session)s AND (%(item)s::uuid IS NULL OR item_id = %(item)s::uuid) LIMIT 1
"""


async def is_being_removed(tx: Transaction, session_key: UUID, item_id: UUID | None = None) -> bool:
    """Returns whether a deleted session or memory still has rows.

    Without an item: whether a session, or any of its memories, has.
    """
    return bool(await tx.fetch(_IS_REMOVED, {"session": session_key, "item": item_id}))


_LEFT = """
SELECT s.session_key, t.name FROM session s
CROSS JOIN LATERAL ({parts}) AS t (name)
WHERE s.tenant_id = %(tenant)s AND s.deleted_at IS NOT NULL AND s.name > ''
    AND NOT EXISTS (SELECT FROM removal r WHERE r.session_key = s.session_key)
UNION
SELECT m.session_key, 'memory' FROM memory m
WHERE m.tenant_id = %(tenant)s AND m.deleted_at IS NOT NULL
    AND NOT EXISTS (SELECT FROM removal r
        WHERE r.session_key = m.session_key AND r.item_id IN (m.session_key, m.memory_id))
ORDER BY 1, 2
"""
_PARTS_OF_ALL = (*_OF_SESSION, *_LOG, "memory", "call_sum", "spend_sum")


async def leftovers(tx: Transaction) -> Sequence[tuple[UUID, str]]:
    """Returns session and table of deleted rows that no removal will remove."""
    parts = " UNION ALL ".join(
        f"SELECT '{table}' WHERE EXISTS"  # noqa: S608 - names from above
        f" (SELECT FROM {table} p WHERE p.session_key = s.session_key)"
        for table in _PARTS_OF_ALL
    )
    await tx.execute(REMOVING, prepare=None)
    rows = await tx.fetch(_LEFT.format(parts=parts), {"tenant": tx.tenant_id})
    return [(key, table) for key, table in rows]
