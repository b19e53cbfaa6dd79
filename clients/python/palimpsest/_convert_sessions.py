"""Sessions, to and from the proto's messages."""

from collections.abc import Mapping

from palimpsest._convert import message_of, moment, value_of
from palimpsest._values_sessions import SessionInfo
from palimpsest.v1 import session_service_pb2


def session(message: session_service_pb2.Session) -> SessionInfo:
    """Returns a session."""
    return value_of(
        SessionInfo,
        message,
        metadata=dict(message.metadata),
        created_at=moment(message.created_at),
    )


def new_session(
    id: str, language: str, metadata: Mapping[str, str] | None, etag: str = ""
) -> session_service_pb2.Session:
    """Returns what a request says of a session. Raises TypeError, ValueError."""
    return message_of(
        session_service_pb2.Session, id=id, language=language, metadata=metadata, etag=etag
    )
