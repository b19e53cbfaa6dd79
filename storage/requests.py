"""Requests that were done: reading them, and writing them beside what they did.

Every statement here runs under the lock of the request's session, together with others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from service.domain.appending import DoneRequest

#: Session and request id.
RequestKey = tuple[UUID, str]

#: Takes the keys' sessions and their ids, as arrays.
READ = """
SELECT r.* FROM unnest(%s::uuid[], %s::text[]) AS w (session_key, request_id)
CROSS JOIN LATERAL (
    SELECT session_key, request_id, method, digest, first_position, last_position FROM request
    WHERE request.session_key = w.session_key AND request.request_id = w.request_id
    OFFSET 0
) AS r
"""

#: Takes a tenant, then an array for each of `columns`.
INSERT = """
INSERT INTO request (tenant_id, session_key, request_id, method, digest,
                     first_position, last_position)
SELECT %b::uuid, t.*
FROM unnest(%b::uuid[], %b::text[], %b::text[], %b::bytea[], %b::int8[], %b::int8[]) AS t
"""


def keys(wanted: Sequence[RequestKey]) -> tuple[list[UUID], list[str]]:
    """Returns the values that READ takes."""
    return [session for session, _ in wanted], [request_id for _, request_id in wanted]


def done(rows: Iterable[Sequence[Any]]) -> dict[RequestKey, DoneRequest]:
    """Returns what READ has found."""
    return {
        (session, request_id): DoneRequest(
            method=method, digest=bytes(digest), first_position=first, last_position=last
        )
        for session, request_id, method, digest, first, last in rows
    }


def columns(requests: Mapping[RequestKey, DoneRequest]) -> list[list[object]]:
    """Returns the arrays that INSERT takes."""
    return [
        [session for session, _ in requests],
        [request_id for _, request_id in requests],
        [one.method for one in requests.values()],
        [one.digest for one in requests.values()],
        [one.first_position for one in requests.values()],
        [one.last_position for one in requests.values()],
    ]
