"""SessionService."""

from palimpsest.v1alpha1 import sessions_pb2, sessions_pb2_grpc
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.log import sessions
from service.usecases.operations.deleting import Deleter
from storage.engine.database import Database


class SessionService(sessions_pb2_grpc.SessionServiceServicer):
    """See sessions.proto."""

    def __init__(self, database: Database, deleter: Deleter, pages: Pages, language: str) -> None:
        self._database = database
        self._deleter = deleter
        #: Of sessions that name none.
        self._language = language
        self._pages = pages

    async def CreateSession(  # noqa: N802 - named by the proto
        self, request: sessions_pb2.CreateSessionRequest, context: Context
    ) -> sessions_pb2.CreateSessionResponse:
        """Creates a session."""
        made = sessions.create(
            self._database,
            current_tenant(),
            request.name,
            language=request.language or self._language,
        )
        return await reply(
            made, lambda one: sessions_pb2.CreateSessionResponse(session=convert.session(one))
        )

    async def GetSession(  # noqa: N802
        self, request: sessions_pb2.GetSessionRequest, context: Context
    ) -> sessions_pb2.GetSessionResponse:
        """Reads one session."""
        stored = await sessions.get(self._database, current_tenant(), request.name)
        return sessions_pb2.GetSessionResponse(session=convert.session(stored))

    async def ListSessions(  # noqa: N802
        self, request: sessions_pb2.ListSessionsRequest, context: Context
    ) -> sessions_pb2.ListSessionsResponse:
        """Lists sessions by name."""
        after = self._pages.cursor("sessions", request.page_token, first="")
        size = self._pages.size(request.page_size)
        found = await sessions.list_after(self._database, current_tenant(), after, size + 1)
        page, token = self._pages.cut(
            [convert.session(one) for one in found[:size]],
            "sessions",
            lambda one: one.name,
            more=len(found) > size,
        )
        return sessions_pb2.ListSessionsResponse(sessions=page, next_page_token=token)

    async def DeleteSession(  # noqa: N802
        self, request: sessions_pb2.DeleteSessionRequest, context: Context
    ) -> sessions_pb2.DeleteSessionResponse:
        """Deletes a session."""
        deleted = self._deleter.delete_session(
            current_tenant(), request.name, allow_missing=request.allow_missing
        )
        return await reply(deleted, lambda _: sessions_pb2.DeleteSessionResponse())
