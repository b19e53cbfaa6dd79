"""Stores what is kept out of sessions, and reads it for appends."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from service.domain.log.keeping_out import KeepOutRules, KeptOutText
from storage.engine.database import Transaction

_ADD = """
INSERT INTO keep_out (session_key, words, digest, tenant_id, redaction_id)
SELECT %(session)s, t.words, t.digest, %(tenant)s, %(redaction)s
FROM unnest(%(words)s::integer[], %(digests)s::bytea[]) AS t (words, digest)
ON CONFLICT DO NOTHING
"""
_MARK = "UPDATE session SET keeps_out = true WHERE session_key = %(session)s"
_READ = """
SELECT session_key, words, digest, redaction_id FROM keep_out
WHERE session_key = ANY(%(sessions)s::uuid[])
"""


async def add(
    tx: Transaction, session_key: UUID, redaction_id: UUID, rules: Sequence[tuple[int, bytes]]
) -> None:
    """Adds rules, each a number of words and a digest.

    The caller has the session locked.
    """
    values = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "redaction": redaction_id,
        "words": [words for words, _ in rules],
        "digests": [digest for _, digest in rules],
    }
    await tx.pipeline((_ADD, _MARK), values)


async def read(tx: Transaction, sessions: Collection[UUID]) -> Mapping[UUID, KeepOutRules]:
    """Returns what is kept out of these sessions."""
    found: dict[UUID, dict[int, dict[bytes, UUID]]] = {}
    for key, words, digest, redaction in await tx.fetch(_READ, {"sessions": list(sessions)}):
        found.setdefault(key, {}).setdefault(words, {})[bytes(digest)] = redaction
    return {key: KeepOutRules(by_words=rules) for key, rules in found.items()}


_ID = "encode(substr(k.digest, 1, 16), 'hex')"
# The redaction's own chunks are older than the rule. There is no index of tombstones: all chunks
# that came after the first rule are read once.
_LIST = f"""
WITH page AS (
    SELECT {_ID} AS id, k.words, k.created_at, k.redaction_id FROM keep_out k
    WHERE k.session_key = %(session)s AND {{which}} ORDER BY 1 LIMIT %(limit)s
), refused AS (
    SELECT c.redaction_id, count(*) AS chunks FROM chunk c
    JOIN (SELECT DISTINCT redaction_id, created_at FROM page) AS p
        ON p.redaction_id = c.redaction_id AND c.created_at > p.created_at
    WHERE c.session_key = %(session)s AND c.redaction_id IS NOT NULL GROUP BY 1
)
SELECT p.id, p.words, p.created_at, coalesce(e.erasure_id::text, '') AS erasure_id,
    coalesce(e.principal, '') AS principal, coalesce(e.reason, '') AS reason,
    coalesce(r.chunks, 0) AS refused_chunks
FROM page p
LEFT JOIN erasure e ON e.tenant_id = %(tenant)s AND e.kind = 'chunks'
    -- Of an import it may be that of the exported session.
    AND e.target_item = p.redaction_id
LEFT JOIN refused r ON r.redaction_id = p.redaction_id
ORDER BY p.id
"""  # noqa: S608 - all of it is ours
_REMOVE = f"DELETE FROM keep_out k WHERE k.session_key = %(session)s AND {_ID} = %(id)s"  # noqa: S608
_UNMARK = """
UPDATE session SET keeps_out = false WHERE session_key = %(session)s
    AND NOT EXISTS (SELECT FROM keep_out WHERE keep_out.session_key = %(session)s)
"""


async def list_after(
    tx: Transaction, session_key: UUID, after: str, limit: int
) -> Sequence[KeptOutText]:
    """Returns up to `limit` texts that a session keeps out after an id, by their ids."""
    return await _listed(tx, f"{_ID} > %(id)s", session_key, after, limit)


async def find(tx: Transaction, session_key: UUID, id: str) -> KeptOutText | None:
    """Returns a text that a session keeps out; None when there is none."""
    return next(iter(await _listed(tx, f"{_ID} = %(id)s", session_key, id, 1)), None)


async def _listed(
    tx: Transaction, which: str, session_key: UUID, id: str, limit: int
) -> Sequence[KeptOutText]:
    values = {"session": session_key, "tenant": tx.tenant_id, "id": id, "limit": limit}
    rows = await tx.fetch(_LIST.format(which=which), values, prepare=None)
    return [KeptOutText(**row._asdict()) for row in rows]


async def remove(tx: Transaction, session_key: UUID, id: str) -> None:
    """Lets a text in. The caller has the session locked, and rows of it in `removal`."""
    await tx.pipeline((_REMOVE, _UNMARK), {"session": session_key, "id": id})
