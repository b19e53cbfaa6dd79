"""A session itself: creating it, reading it, updating it, deleting it."""

from collections.abc import Mapping

from palimpsest._async._connection import Connection
from palimpsest._async._resource import Resource
from palimpsest._convert import message_of, value_of
from palimpsest._errors import AlreadyExists
from palimpsest._sessions import SessionInfo, new_session
from palimpsest.v1 import session_service_pb2


class SessionBase(Resource):
    """What `Session` has of the session itself."""

    def __init__(self, connection: Connection, id: str) -> None:
        super().__init__(connection, id)
        self.id = id

    async def create(
        self,
        *,
        exist_ok: bool = False,
        language: str = "",
        metadata: Mapping[str, str] | None = None,
        request_id: str = "",
    ) -> None:
        """Creates it. See `Client.create_session`."""
        request = message_of(
            session_service_pb2.CreateSessionRequest,
            session=new_session(self.id, language, metadata),
            request_id=request_id,
        )
        method = self._connection.sessions.CreateSession
        try:
            await self._connection.call(method, request, retry=exist_ok or bool(request_id))
        except AlreadyExists as error:
            if not exist_ok or error.reason != "SESSION_EXISTS":
                raise
            existing = (await self.info()).language if language else language
            if existing != language:
                raise AlreadyExists(
                    f"session {self.id!r} is there already, and its language is {existing!r},"
                    f" not {language!r}: leave the language out, or choose another id",
                    reason=error.reason,
                    metadata=error.metadata,
                ) from error

    async def info(self) -> SessionInfo:
        """Reads the session. Raises NotFound."""
        request = session_service_pb2.GetSessionRequest(session=self.id)
        method = self._connection.sessions.GetSession
        return value_of(SessionInfo, await self._connection.call(method, request))

    async def update(
        self, *, metadata: Mapping[str, str], etag: str = "", request_id: str = ""
    ) -> SessionInfo:
        """Replaces the metadata as a whole: at most 16 keys and values of your own.

        With the `etag` of an `info` only while nothing else has updated the session since.
        Raises NotFound, InvalidArgument, Aborted (ETAG_MISMATCH), and TypeError or ValueError
        for what cannot be sent.
        """
        request = message_of(
            session_service_pb2.UpdateSessionRequest,
            session=new_session(self.id, "", metadata, etag),
            update_mask={"paths": ["metadata"]},
            request_id=request_id,
        )
        # A second try would find the etag of the first one's update.
        again = not etag or bool(request_id)
        method = self._connection.sessions.UpdateSession
        return value_of(SessionInfo, await self._connection.call(method, request, retry=again))

    async def delete(self, *, missing_ok: bool = False, request_id: str = "") -> None:
        """Deletes it with all that belongs to it, for good. See `Client.delete_session`."""
        request = message_of(
            session_service_pb2.DeleteSessionRequest,
            session=self.id,
            allow_missing=missing_ok,
            request_id=request_id,
        )
        # A second try would find nothing.
        again = missing_ok or bool(request_id)
        await self._connection.call(self._connection.sessions.DeleteSession, request, retry=again)
