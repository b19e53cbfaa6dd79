"""Sessions."""

from palimpsest.v1 import session_service_pb2
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import timestamp
from storage.log.sessions import StoredSession


def session(stored: StoredSession) -> session_service_pb2.Session:
    """Returns a session."""
    return session_service_pb2.Session(
        id=stored.name,
        language=stored.language,
        metadata=stored.metadata,
        head=stored.head,
        content_bytes=stored.content_bytes,
        etag=stored.etag,
        created_at=timestamp(stored.created_at),
    )


def metadata(message: session_service_pb2.Session) -> dict[str, str]:
    """Returns the client's own values. Raises InvalidInput for what the database cannot store."""
    values = dict(message.metadata)
    if any("\0" in text for pair in values.items() for text in pair):
        raise InvalidInput(
            Reason.FIELD_INVALID,
            "session.metadata has a NUL character",
            field="session.metadata",
        )
    return values
