"""Sessions: plain values."""

from dataclasses import dataclass, field
from datetime import datetime


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
