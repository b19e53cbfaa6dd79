"""Sessions."""

from palimpsest.v1 import session_service_pb2
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert.common import message_of
from storage.log.sessions import StoredSession


def session(stored: StoredSession) -> session_service_pb2.Session:
    """Returns a session."""
    return message_of(session_service_pb2.Session, stored, id=stored.name)


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
