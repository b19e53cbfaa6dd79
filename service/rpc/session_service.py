"""SessionService."""

import asyncio

from palimpsest.v1 import session_service_pb2_grpc
from service.rpc.pages import Pages
from service.rpc.session_log import SessionLog
from service.settings.config import Limits
from service.usecases.log.append import Appender
from storage.engine.database import Database


class SessionLogService(SessionLog, session_service_pb2_grpc.SessionServiceServicer):
    """See session_service.proto."""

    def __init__(
        self,
        database: Database,
        appender: Appender,
        pages: Pages,
        limits: Limits,
        stopping: asyncio.Event,
    ) -> None:
        self._database = database
        self._appender = appender
        self._pages = pages
        self._limits = limits
        self._stopping = stopping
