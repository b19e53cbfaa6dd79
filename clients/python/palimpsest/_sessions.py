"""Sessions, to and from the proto's messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from palimpsest._convert import message_of
from palimpsest.v1 import session_service_pb2


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """A session."""

    id: str
    #: What its text is searched in.
    language: str
    #: Your own values; no model sees them.
    metadata: dict[str, str] = field(default_factory=dict)
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Content and metadata of all chunks, in bytes of UTF-8.
    content_bytes: int
    #: Changes with each update of the session; for `Session.update`.
    etag: str
    created_at: datetime


def new_session(
    id: str, language: str, metadata: Mapping[str, str] | None, etag: str = ""
) -> session_service_pb2.Session:
    """Returns what a request says of a session. Raises TypeError, ValueError."""
    return message_of(
        session_service_pb2.Session, id=id, language=language, metadata=metadata, etag=etag
    )
