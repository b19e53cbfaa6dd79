"""The log's part of SessionService: appending chunks and listing them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1 import chunks_pb2, common_pb2, session_service_pb2
from service.domain.values.fault_hook import boundary
from service.rpc import appends
from service.rpc.convert import chunks as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.interceptors.tracing import say_subject
from service.rpc.interceptors.validation import validate
from service.rpc.pages import Pages, fitting
from service.settings.config import Limits
from service.usecases.log import sessions
from service.usecases.log.append import Appender
from storage.engine.database import Database


class SessionLog:
    """Append, AppendChunks and ListChunks; see session_service.proto."""

    _database: Database
    _appender: Appender
    _pages: Pages
    _limits: Limits
    _stopping: asyncio.Event

    async def AppendChunks(  # noqa: N802 - named by the proto
        self, request_iterator: appends.Requests, context: Context
    ) -> AsyncIterator[session_service_pb2.AppendChunksResponse]:
        """Appends chunks over one stream."""
        tenant_id = current_tenant()
        request = await anext(request_iterator, None)
        if request is None:
            return
        validate(request)
        if request.WhichOneof("frame") != "open":
            raise appends.misused("a stream begins with open")
        opening = request.open
        say_subject(opening)
        opened = await self._appender.open(
            tenant_id,
            session=opening.session,
            producer_id=opening.producer_id,
            epoch=opening.epoch,
            expected_head=opening.expected_head if opening.HasField("expected_head") else None,
        )
        response = session_service_pb2.AppendChunksResponse
        yield response(
            opened=response.Opened(
                last_producer_sequence=opened.last_sequence,
                head=opened.head,
                credits=response.Credits(
                    chunks=appends.credit_chunks(self._limits), bytes=self._limits.credit_bytes
                ),
            )
        )
        stream = appends.AppendStream(
            *(tenant_id, opening, opened.incarnation), self._appender, self._limits, self._stopping
        )
        async with aclosing(stream.run(request_iterator)) as acks:
            async for ack in acks:
                yield ack

    async def Append(  # noqa: N802
        self, request: session_service_pb2.AppendRequest, context: Context
    ) -> session_service_pb2.AppendResponse:
        """Appends one batch."""
        tenant_id = current_tenant()
        self._appender.refuse_when_full()
        submission = appends.submission(tenant_id, request, self._limits)
        appended = await self._appender.submit(tenant_id, submission)
        boundary("append", "reply")
        return session_service_pb2.AppendResponse(
            positions=common_pb2.PositionRange(
                first=appended.first_position, last=appended.position
            ),
            read_token=appended.token,
        )

    async def ListChunks(  # noqa: N802
        self, request: session_service_pb2.ListChunksRequest, context: Context
    ) -> session_service_pb2.ListChunksResponse:
        """Lists chunks in order of position."""
        scope = _scope(request)
        page = await sessions.read_chunks(
            self._database,
            current_tenant(),
            request.session,
            from_position=int(self._pages.cursor(scope, request.page_token, first="1")),
            limit=self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
            wanted=convert.chunk_filter(request.filter, self._limits),
        )
        chunks = fitting([convert.chunk(one) for one in page.chunks], self._pages.max_bytes)
        following = page.next_position
        if len(chunks) < len(page.chunks):
            following = chunks[-1].position + 1
        return session_service_pb2.ListChunksResponse(
            chunks=chunks,
            next_page_token=self._pages.next(scope, str(following)) if following else "",
            head=page.head,
        )


def _scope(request: session_service_pb2.ListChunksRequest) -> str:
    """Returns what a page token is of: the chunks of a session that match a filter."""
    if request.filter == chunks_pb2.ChunkFilter():
        return f"chunks/{request.session}"
    content = request.filter.SerializeToString(deterministic=True)
    return f"chunks/{request.session}/{hashlib.sha256(content).hexdigest()}"
