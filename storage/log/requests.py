"""Stores executed requests in the transaction of their effect, and reads them.

Appends store their positions: READ and INSERT run under the session's lock, with the statements
that write the chunks. Every other method stores its response for a day, without that lock: it may
use the id between an append's READ and its INSERT (`is_done`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.log.appending import ClientRequest, DoneRequest
from storage.engine.database import Transaction
from storage.engine.errors import StorageError, Violated
from storage.tables.log import REQUEST_KEY

#: Session and request id.
RequestKey = tuple[UUID, str]

#: Its values are the arrays of `keys`.
READ = """
SELECT r.* FROM unnest(%s::uuid[], %s::text[]) AS w (session_key, request_id)
CROSS JOIN LATERAL (
    SELECT session_key, request_id, method, digest, first_position, last_position FROM request
    WHERE request.session_key = w.session_key AND request.request_id = w.request_id
    OFFSET 0
) AS r
"""

#: Its values are a tenant and the arrays of `columns`.
INSERT = """
INSERT INTO request (tenant_id, session_key, request_id, method, digest,
                     first_position, last_position)
SELECT %b::uuid, t.*
FROM unnest(%b::uuid[], %b::text[], %b::text[], %b::bytea[], %b::int8[], %b::int8[]) AS t
"""


def keys(wanted: Sequence[RequestKey]) -> tuple[list[UUID], list[str]]:
    """Returns the values of READ: sessions and ids."""
    return [session for session, _ in wanted], [request_id for _, request_id in wanted]


def done(rows: Iterable[Sequence[Any]]) -> dict[RequestKey, DoneRequest]:
    """Returns the requests in rows of READ."""
    return {
        (session, request_id): DoneRequest(
            method=method, digest=bytes(digest), first_position=first, last_position=last
        )
        for session, request_id, method, digest, first, last in rows
    }


def columns(requests: Mapping[RequestKey, DoneRequest]) -> list[list[object]]:
    """Returns the arrays of INSERT."""
    return [
        [session for session, _ in requests],
        [request_id for _, request_id in requests],
        [one.method for one in requests.values()],
        [one.digest for one in requests.values()],
        [one.first_position for one in requests.values()],
        [one.last_position for one in requests.values()],
    ]


def is_done(error: StorageError) -> bool:
    """Returns whether INSERT failed because one of its ids was used after READ."""
    return isinstance(error, Violated) and error.constraint == REQUEST_KEY


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResponse:
    """The response of a request of any other method."""

    method: str
    digest: bytes
    #: Serialized; None for an append.
    response: bytes | None


_READ_ONE = """
SELECT method, digest, response FROM request
WHERE session_key = %(session_key)s AND request_id = %(request_id)s
"""

# Waits for a transaction that stores the same id, and then stores nothing.
_STORE = """
INSERT INTO request (tenant_id, session_key, request_id, method, digest, response, expires_at)
VALUES (%(tenant_id)s, %(session_key)s, %(request_id)s, %(method)s, %(digest)s, %(response)s,
    now() + interval '24 hours')
ON CONFLICT (session_key, request_id) DO NOTHING
RETURNING true
"""


async def read_response(
    tx: Transaction, session_key: UUID, request_id: str
) -> StoredResponse | None:
    """Returns the stored response; None when the request was not executed. A whole transaction."""
    rows = await tx.fetch(_READ_ONE, {"session_key": session_key, "request_id": request_id})
    if not rows:
        return None
    ((method, digest, response),) = rows
    return StoredResponse(
        method=method,
        digest=bytes(digest),
        response=None if response is None else bytes(response),
    )


async def store_response(tx: Transaction, request: ClientRequest, response: bytes) -> bool:
    """Stores the response of a request for 24 hours; False when its id is stored already."""
    values = {
        "tenant_id": tx.tenant_id,
        "session_key": request.session_key,
        "request_id": request.request_id,
        "method": request.method,
        "digest": request.digest,
        "response": response,
    }
    return bool(await tx.fetch(_STORE, values))
