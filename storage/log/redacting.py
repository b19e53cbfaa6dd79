"""Removes the content of chunks, and leaves tombstones: positions without content.

A tombstone keeps its row, position, producer, sequence, kind and time. Its digest becomes a keyed
one, by which a repeat is recognised, and no guess of the content can be checked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from service.domain.log.erasures import hmac_blocks
from service.domain.log.redactions import Redaction, RedactionCause
from storage.engine.database import Transaction
from storage.log import erasures
from storage.log.chunks import CONTENT_BYTES

#: Returns the keyed digest of a digest.
Keyed = Callable[[bytes], bytes]

#: Waits for all transactions that add rows to the session, and keeps others out until the end.
_LOCK = "SELECT true FROM session WHERE session_key = %(session)s FOR UPDATE"
_DIGESTS = f"""
SELECT position, digest, created_at,
    {erasures.digests_of(("text", "observation", "thought", "action"))} AS texts
FROM chunk
WHERE session_key = %(session)s AND position = ANY(%(positions)s::bigint[])
    AND redaction_id IS NULL
ORDER BY position
"""  # noqa: S608 - all of it is ours
_ADD = """
INSERT INTO redaction (session_key, redaction_id, tenant_id, cause, principal, reason, chunks,
    positions, since)
VALUES (%(session)s, %(redaction)s, %(tenant)s, %(cause)s, %(principal)s, %(reason)s, %(chunks)s,
    %(positions)s, %(since)s)
"""
_METADATA_BYTES = """(SELECT coalesce(sum(octet_length(p.key) + octet_length(p.value)), 0)
    FROM jsonb_each_text(coalesce(c.metadata, '{}')) AS p)"""
_SIZE = f"""
SELECT coalesce(sum({CONTENT_BYTES} + {_METADATA_BYTES}), 0) FROM chunk c
WHERE c.session_key = %(session)s AND c.position = ANY(%(positions)s::bigint[])
    AND c.redaction_id IS NULL
"""  # noqa: S608 - all of it is ours
_BLANK = """
UPDATE chunk SET role = '', text = '', observation = '', thought = '', action = '',
    metadata = NULL, thread = NULL, source = NULL, occurred_at = NULL, observed_first = NULL,
    digest = t.digest, redaction_id = %(redaction)s
FROM unnest(%(positions)s::bigint[], %(digests)s::bytea[]) AS t (position, digest)
WHERE chunk.session_key = %(session)s AND chunk.position = t.position
"""
_COUNT_BYTES = """
UPDATE session SET content_bytes = greatest(content_bytes - %(bytes)s, 0)
WHERE session_key = %(session)s
"""
_UNLIST_WORDS = """
UPDATE chunk_word SET words = '', length = 0
WHERE session_key = %(session)s AND position = ANY(%(positions)s::bigint[])
"""
_DROP_VECTORS = """
DELETE FROM chunk_vector
WHERE session_key = %(session)s AND position = ANY(%(positions)s::bigint[])
"""
# Requests are few for each chunk, and are found by the index of their last chunk. Each reads its
# own chunks, by their key: a join would compare all requests with all positions.
_REQUESTS = """
SELECT request_id, digest FROM request
WHERE session_key = %(session)s AND method = 'Append'
    AND last_position BETWEEN %(first)s AND %(last)s + %(longest)s
    AND EXISTS (SELECT FROM chunk c
        WHERE c.session_key = %(session)s AND c.position BETWEEN first_position AND last_position
            AND c.redaction_id = %(redaction)s ORDER BY c.position OFFSET 0)
    AND NOT EXISTS (SELECT FROM chunk c
        WHERE c.session_key = %(session)s AND c.position BETWEEN first_position AND last_position
            AND c.redaction_id <> %(redaction)s ORDER BY c.position OFFSET 0)
"""
_KEY_REQUESTS = """
UPDATE request SET digest = t.digest
FROM unnest(%(requests)s::text[], %(digests)s::bytea[]) AS t (request_id, digest)
WHERE request.session_key = %(session)s AND request.request_id = t.request_id
"""
#: More chunks than one append may have.
_LONGEST_REQUEST = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactedChunks:
    """The tombstones that a redaction made."""

    #: In ascending order; without those that were tombstones already.
    positions: Sequence[int]
    #: When the first of them was committed; None without any. What is older has nothing of them.
    since: datetime | None = None
    #: Keyed digests of their texts, for the record of the erasure.
    digests: bytes = b""


async def redact(
    tx: Transaction,
    session_key: UUID,
    redaction_id: UUID,
    positions: Sequence[int],
    keyed: Keyed,
    *,
    cause: RedactionCause,
    principal: str,
    reason: str,
) -> RedactedChunks:
    """Empties chunks, their words and their vectors, in one transaction.

    Locks the session to its end. What was derived from the chunks is the caller's to remove.
    """
    values: dict[str, object] = {
        "session": session_key,
        "redaction": redaction_id,
        "tenant": tx.tenant_id,
        "positions": list(positions),
        "cause": cause.value,
        "principal": principal,
        "reason": reason,
    }
    values["inner"], values["outer"] = hmac_blocks((await erasures.keys(tx)).digest)
    _, found = await tx.pipeline((_LOCK, _DIGESTS), values)
    digests = b"".join(bytes(row[3]) for row in found)
    values["positions"] = made = [row[0] for row in found]
    ((size,),) = await tx.fetch(_SIZE, values, prepare=False)
    values |= {
        "digests": [keyed(bytes(row[1])) for row in found],
        "chunks": len(made),
        "bytes": size,
        "since": min((row[2] for row in found), default=None),
    }
    await tx.pipeline((_ADD, _BLANK, _COUNT_BYTES, _UNLIST_WORDS), values)
    if not made:
        return RedactedChunks(positions=())
    await tx.execute(_DROP_VECTORS, values, prepare=False)
    await _key_requests(tx, values, keyed)
    tx.changed.add(session_key)
    return RedactedChunks(positions=made, since=min(row[2] for row in found), digests=digests)


async def _key_requests(tx: Transaction, values: Mapping[str, object], keyed: Keyed) -> None:
    """Replaces the digests of the appends that wrote these chunks.

    Those with older tombstones have keyed ones already.
    """
    positions = values["positions"]
    assert isinstance(positions, list), "they were read just now"
    bounds = {"first": positions[0], "last": positions[-1], "longest": _LONGEST_REQUEST}
    found = await tx.fetch(_REQUESTS, {**values, **bounds}, prepare=False)
    if found:
        changed = {
            "requests": [request_id for request_id, _ in found],
            "digests": [keyed(bytes(digest)) for _, digest in found],
        }
        await tx.execute(_KEY_REQUESTS, {**values, **changed}, prepare=False)


async def read_key(tx: Transaction) -> bytes:
    """Returns the deployment's key of keyed digests, where no process has it at hand."""
    ((key,),) = await tx.fetch("SELECT token_key FROM deployment")
    return bytes(key)


_GET = """
SELECT session_key, redaction_id, cause, principal, reason, chunks, created_at, removed
FROM redaction WHERE session_key = %(session)s AND redaction_id = ANY(%(ids)s::uuid[])
"""


async def read_redactions(
    tx: Transaction, session_key: UUID, ids: Sequence[UUID]
) -> Mapping[UUID, Redaction]:
    """Returns these redactions, by their ids."""
    rows = await tx.fetch(_GET, {"session": session_key, "ids": list(ids)})
    return {
        row.redaction_id: Redaction(**{**row._asdict(), "cause": RedactionCause(row.cause)})
        for row in rows
    }
