"""Expires chunks: the oldest ones of a session lose their content, and leave tombstones.

Chunks expire in order of position, so that one position says how far: `session.expired_position`.
None expires that a memory has not read, or that no node of a tree covers yet.
"""

from collections.abc import Callable
from uuid import UUID, uuid4

from service.domain.log.redactions import RedactionCause
from storage.engine.database import Transaction, value
from storage.log import deleting, redacting
from storage.search import posting_lists

#: The principal and the reason of redactions that a policy demands.
PRINCIPAL, REASON = "local", "retention"

#: The last chunk of session s that all its memories have read for good. A sealed tree reads no
#: more; the text after the last leaf of another one is still to be summarized, also while it is
#: being sealed. What a quarantine undid is to be read again.
READ_BY_ALL = """coalesce((
    SELECT min(CASE
        WHEN m.status = 'sealed' THEN s.head
        WHEN m.kind = 'tree' THEN least(m.applied_position, coalesce((
            SELECT n.end_position - 1 FROM tree_node n
            WHERE n.session_key = m.session_key AND n.memory_id = m.memory_id AND n.level = 0
            ORDER BY n.number DESC LIMIT 1), 0))
        ELSE least(m.applied_position, (
            SELECT min(again) - 1 FROM unnest(m.reread_positions) AS again)) END)
    FROM memory m WHERE m.session_key = s.session_key), s.head)"""
#: The chunks that expire next, and how far: those before the first that is younger.
_NEXT = f"""
WITH place AS MATERIALIZED (
    SELECT expired_position AS after, least(expired_position + %(limit)s, {READ_BY_ALL}) AS upto
    FROM session s WHERE session_key = %(session)s
)
SELECT array_agg(position ORDER BY position) FILTER (WHERE is_old) AS old,
    max(position) FILTER (WHERE is_old) AS upto
FROM (
    SELECT c.position, bool_and(c.created_at < now() - make_interval(days => %(days)s::integer))
        OVER (ORDER BY c.position) AS is_old
    FROM place, chunk c WHERE c.session_key = %(session)s
        AND c.position > place.after AND c.position <= place.upto
) AS aged
"""  # noqa: S608 - all of it is ours
_LIVING = """
SELECT position FROM chunk WHERE session_key = %(session)s
    AND position = ANY(%(positions)s::bigint[]) AND redaction_id IS NULL
"""
_MOVE = "UPDATE session SET expired_position = %(upto)s WHERE session_key = %(session)s"
#: Lists of words of blocks that have expired as a whole.
_UNLIST = """
DELETE FROM posting_list l USING posting_block b
WHERE b.session_key = %(session)s AND b.last_position <= %(upto)s AND b.words > 0
    AND l.session_key = b.session_key AND l.last_position = b.last_position
"""
_EMPTY_BLOCKS = """
UPDATE posting_block SET words = 0
WHERE session_key = %(session)s AND last_position <= %(upto)s AND words > 0
"""
#: The block that has expired in part, if its lists have more words than its chunks.
_STALE = """
SELECT b.first_position, b.last_position FROM posting_block b
JOIN session s ON s.session_key = b.session_key
WHERE b.session_key = %(session)s AND b.last_position > s.expired_position
    AND b.first_position <= s.expired_position
    AND b.words <> (SELECT coalesce(sum(w.length), 0) FROM chunk_word w
        WHERE w.session_key = b.session_key
            AND w.position BETWEEN b.first_position AND b.last_position)
"""
_EXPIRED = """
SELECT s.expired_position FROM session s WHERE s.session_key = %(session)s AND EXISTS (
    SELECT FROM redaction r WHERE r.session_key = s.session_key AND r.cause = 'expired')
"""


async def expire_chunks(
    tx: Transaction,
    session_key: UUID,
    days: int,
    limit: int,
    *,
    keyed: Callable[[UUID, bytes], bytes],
) -> int:
    """Empties up to `limit` chunks, with their words and vectors; returns how many.

    `keyed` returns a tenant's keyed digest of a digest. Memories that are created, and appends,
    wait meanwhile.
    """
    if not await deleting.lock_session(tx, session_key):
        return 0
    values: dict[str, object] = {"session": session_key, "days": days, "limit": limit}
    ((positions, upto),) = await tx.fetch(_NEXT, values, prepare=None)
    if not positions:
        return 0
    # A client may have redacted some before.
    rows = await tx.fetch(_LIVING, {**values, "positions": positions}, prepare=None)
    if rows:
        await redacting.redact(
            tx,
            session_key,
            uuid4(),
            [row[0] for row in rows],
            lambda digest: keyed(tx.tenant_id, digest),
            cause=RedactionCause.EXPIRED,
            principal=PRINCIPAL,
            reason=REASON,
        )
    values["upto"] = upto
    await deleting.allow(tx, session_key)
    await tx.pipeline((_UNLIST, _EMPTY_BLOCKS, _MOVE), values)
    await deleting.forbid(tx, session_key)
    return len(positions)


async def relist(tx: Transaction, session_key: UUID) -> None:
    """Writes the word lists again of the block that has expired in part. Appends do not wait."""
    rows = await tx.fetch(_STALE, {"session": session_key}, prepare=None)
    for first, last in rows:
        await deleting.allow(tx, session_key)
        await posting_lists.rewrite_block(tx, session_key, first, last)
        await deleting.forbid(tx, session_key)


async def expired_position(tx: Transaction, session_key: UUID) -> int | None:
    """Returns up to where a session's chunks have expired; None when none has."""
    found: int | None = value(await tx.fetch(_EXPIRED, {"session": session_key}))
    return found
