"""Removes what was derived from redacted chunks and is in no memory: answers, calls, lists.

What was derived from a chunk is younger than the chunk. So the time of the oldest redacted chunk
decides where no provenance does.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from storage.engine.database import Transaction, first
from storage.log import deleting, erasures
from storage.log.redacting import RedactedChunks
from storage.search import posting_lists

# A pending answer may have read a chunk in any state of the memory.
_FIND_ANSWERS = """
SELECT answer_id FROM answer
WHERE session_key = %(session)s AND (status = 'pending' OR (
    created_at >= %(since)s AND (memory_id IS NULL OR applied_position >= %(first)s)
) OR (chosen ->> 'applied_position')::bigint >= %(first)s)
ORDER BY answer_id FOR UPDATE
"""
# Its result may say what it changed, and its digest is one of what the client wrote.
_BLANK_REQUESTS = """
UPDATE request SET response = '', digest = sha256(uuid_send(gen_random_uuid()))
WHERE session_key = %(session)s AND method <> 'Append' AND created_at >= %(since)s
"""
_BLANK_LETTERS = """
UPDATE dead_letter SET cause = '[redacted]'
WHERE session_key = %(session)s AND created_at >= %(since)s
"""
_BLANK_OPERATIONS = """
UPDATE operation SET error = jsonb_build_object(
    'reason', error ->> 'reason', 'message', '[redacted]', 'metadata', jsonb_build_object())
WHERE session_key = %(session)s AND created_at >= %(since)s AND error IS NOT NULL
"""
_BLANK_FAILURES = """
UPDATE session SET index_failure = '', words_failure = '', has_unindexed = true,
    index_ready_at = now()
WHERE session_key = %(session)s
"""


async def remove_at_once(
    tx: Transaction, session_key: UUID, redacted: RedactedChunks
) -> Counter[str]:
    """Removes what clients could read that may rest on redacted chunks; returns rows by table.

    The caller has rows of the session in `removal`. Calls and lists, which clients do not read,
    are left to `remove_some`.
    """
    values: dict[str, object] = {
        "session": session_key,
        "since": redacted.since,
        "first": redacted.positions[0],
    }
    removed: Counter[str] = Counter()
    answers = [row[0] for row in await tx.fetch(_FIND_ANSWERS, values, prepare=None)]
    for table in deleting.ANSWER_PARTS:
        statement = (
            f"DELETE FROM {table} WHERE session_key = %(session)s"  # noqa: S608 - a name from above
            " AND answer_id = ANY(%(answers)s::uuid[])"
        )
        removed[table] = await tx.execute(statement, {**values, "answers": answers})
    for name, statement in (
        ("request.response", _BLANK_REQUESTS),
        ("dead_letter.cause", _BLANK_LETTERS),
        ("operation.error", _BLANK_OPERATIONS),
    ):
        removed[name] = await tx.execute(statement, values)
    await tx.execute(_BLANK_FAILURES, values)
    tx.changed.update(answers)
    return removed


_RECORD = """
UPDATE redaction SET removed = removed || (
    SELECT coalesce(jsonb_object_agg(key, coalesce((removed ->> key)::bigint, 0) + value::bigint),
        '{}')
    FROM jsonb_each_text(%(counts)s::jsonb))
WHERE session_key = %(session)s AND redaction_id = %(redaction)s
"""


async def record(
    tx: Transaction,
    session_key: UUID,
    redaction_id: UUID,
    counts: Mapping[str, int],
    digests: bytes,
) -> None:
    """Adds what was removed to the redaction, and to its erasure."""
    found = {table: count for table, count in counts.items() if count}
    values = {"session": session_key, "redaction": redaction_id, "counts": json.dumps(found)}
    await tx.execute(_RECORD, values, prepare=None)
    await erasures.add_removed(tx, session_key, redaction_id, found, digests)


_OPEN = """
SELECT positions, since FROM redaction
WHERE session_key = %(session)s AND redaction_id = %(redaction)s AND ended_at IS NULL
"""
_CALLS = deleting.BLANK_CALLS.format(
    more="",
    which="""ctid = ANY(ARRAY(
    SELECT ctid FROM call WHERE session_key = %(session)s
        AND created_at BETWEEN %(since)s AND now() AND key <> uuid_send(call_id)
    LIMIT %(limit)s))""",
)
_END = """
UPDATE redaction SET ended_at = now(), positions = '{}'
WHERE session_key = %(session)s AND redaction_id = %(redaction)s
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionRemoval:
    """The progress of the removal of what is left of redacted chunks, within one process."""

    session_key: UUID
    redaction_id: UUID
    #: The last position of the block of lists that was written last; None: calls are not done.
    listed_position: int | None = None
    is_done: bool = False


async def is_open(tx: Transaction, session_key: UUID, item_id: UUID) -> bool:
    """Returns whether a removal is one of redacted chunks."""
    return bool(await tx.fetch(_OPEN, {"session": session_key, "redaction": item_id}))


async def remove_some(
    tx: Transaction, removal: RedactionRemoval, limit: int
) -> RedactionRemoval | None:
    """Removes the texts of up to `limit` calls, or writes a block of lists again.

    A whole transaction. None when there is nothing to remove, or another worker does so.
    """
    key, redaction_id = removal.session_key, removal.redaction_id
    values: dict[str, object] = {"session": key, "redaction": redaction_id, "limit": limit}
    if not await deleting.take(tx, key, redaction_id):
        return None
    found = first(await tx.fetch(_OPEN, values))
    if found is None:
        return None
    if removal.listed_position is None:
        # Waits for calls that were under way, and knew nothing of the redaction.
        await deleting.lock_session(tx, key)
        count = await tx.execute(_CALLS, {**values, "since": found.since}, prepare=None)
        await record(tx, key, redaction_id, {"call.texts": count}, b"")
        return removal if count == limit else replace(removal, listed_position=0)
    block = await _next_block(tx, key, found.positions, removal.listed_position)
    if block is not None:
        await posting_lists.rewrite_block(tx, key, *block)
        await record(tx, key, redaction_id, {"posting_block.words": 1}, b"")
        return replace(removal, listed_position=block[1])
    await tx.execute(_END, values)
    await deleting.end(tx, key, redaction_id)
    await erasures.complete(tx, key, redaction_id)
    tx.changed.add(redaction_id)
    return replace(removal, is_done=True)


async def _next_block(
    tx: Transaction, session_key: UUID, positions: Sequence[int], after: int
) -> tuple[int, int] | None:
    # The positions are in order, and blocks have no gaps between them.
    left = bisect_right(positions, after)
    return (
        None
        if left == len(positions)
        else await posting_lists.find_block(tx, session_key, positions[left])
    )
