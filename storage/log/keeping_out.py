"""Stores what is kept out of sessions, and reads it for appends."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from service.domain.log.keeping_out import KeepOutRules
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
