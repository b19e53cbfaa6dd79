"""Requests with an id of the client's own: a repeated one returns the result of the first."""

from dataclasses import dataclass
from uuid import UUID

from service.domain.values.errors import AlreadyExists
from service.domain.values.reasons import Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRequest:
    """A request that a client may send again."""

    #: The session that it is about; the key of the empty name for the tenant as a whole.
    session_key: UUID
    #: The client's own name for it, unique within that session.
    request_id: str
    #: Name of the RPC, without its service.
    method: str
    #: SHA-256 of everything else in the request, 32 bytes.
    digest: bytes


def refuse_other_content(
    request_id: str, content: tuple[str, bytes], *, done: tuple[str, bytes]
) -> None:
    """Raises AlreadyExists when the id was used before for another method or content."""
    if content != done:
        method, _ = done
        raise AlreadyExists(
            Reason.REQUEST_CONTENT_CHANGED,
            f"request id {request_id!r} was used before, for other content."
            " Send a new request with an id of its own; a retry repeats id and content",
            {"request_id": request_id, "method": method},
        )
