"""SessionService."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from google.protobuf import empty_pb2

from palimpsest.v1 import chunks_pb2, common_pb2, session_service_pb2, session_service_pb2_grpc
from service.domain.access.identity import LOCAL, current_principal
from service.domain.log.erasures import ErasureRequest
from service.domain.values.errors import InvalidInput
from service.domain.values.fault_hook import boundary
from service.domain.values.memory_specs import DefaultMemory
from service.domain.values.reasons import Reason
from service.rpc import appends, transfers
from service.rpc.convert import chunks as convert_chunks
from service.rpc.convert import common
from service.rpc.convert import redactions as convert_redactions
from service.rpc.convert import search as convert_search
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.quota_limit import amounts_of
from service.rpc.interceptors.tenancy import current_identity, current_tenant
from service.rpc.interceptors.tracing import say_subject
from service.rpc.interceptors.validation import validate
from service.rpc.pages import Pages, fitting
from service.settings.config import Limits
from service.usecases.access.quotas import QuotaGuard
from service.usecases.log import sessions
from service.usecases.log.append import Appender
from service.usecases.log.room import unlimited
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.importing import Importer
from service.usecases.operations.redacting import Redactor
from service.usecases.search.consistent import ConsistentSearch
from service.usecases.search.memories import MemorySearch
from service.usecases.search.recall import Recaller
from storage.engine.database import Database


class SessionService(session_service_pb2_grpc.SessionServiceServicer):
    """See session_service.proto."""

    def __init__(
        self,
        database: Database,
        deleter: Deleter,
        redactor: Redactor,
        search: ConsistentSearch,
        recaller: Recaller,
        memory_search: MemorySearch,
        appender: Appender,
        exporter: Exporter,
        importer: Importer,
        pages: Pages,
        limits: Limits,
        *,
        language: str,
        default_memory: DefaultMemory,
        stopping: asyncio.Event,
        quotas: QuotaGuard | None = None,
    ) -> None:
        """`language`, `default_memory`: of sessions that name none.

        `stopping` is set when the server stops.
        """
        self._database = database
        self._quotas = quotas
        self._deleter = deleter
        self._redactor = redactor
        self._search = search
        self._recaller = recaller
        self._memory_search = memory_search
        self._appender = appender
        self._exporter = exporter
        self._importer = importer
        self._pages = pages
        self._limits = limits
        self._language = language
        self._default_memory = default_memory
        self._stopping = stopping

    async def CreateSession(  # noqa: N802 - named by the proto
        self, request: session_service_pb2.CreateSessionRequest, context: Context
    ) -> session_service_pb2.Session:
        """Creates a session."""
        tenant_id = current_tenant()
        room = unlimited if self._quotas is None else await self._quotas.session_room(tenant_id)
        created = sessions.create(
            self._database,
            tenant_id,
            request.session.id,
            language=request.session.language or self._language,
            metadata=_metadata(request.session),
            default_memory=common.member_of(
                request.session, "default_memory", self._default_memory
            ),
            retention=common.retention(request.session.retention),
            room=room,
        )
        return await reply(created, transfers.session_message)

    async def GetSession(  # noqa: N802
        self, request: session_service_pb2.GetSessionRequest, context: Context
    ) -> session_service_pb2.Session:
        """Returns a session."""
        stored = await sessions.get(self._database, current_tenant(), request.session)
        return transfers.session_message(stored)

    async def ListSessions(  # noqa: N802
        self, request: session_service_pb2.ListSessionsRequest, context: Context
    ) -> session_service_pb2.ListSessionsResponse:
        """Lists sessions by id."""
        after = self._pages.cursor("sessions", request.page_token, first="")
        size = self._pages.size(request.page_size)
        prefix = current_identity().session_prefix
        found = await sessions.list_after(
            self._database, current_tenant(), after, size + 1, prefix=prefix
        )
        page, token = self._pages.cut(
            [transfers.session_message(one) for one in found[:size]],
            "sessions",
            lambda one: one.id,
            more=len(found) > size,
        )
        return session_service_pb2.ListSessionsResponse(sessions=page, next_page_token=token)

    async def UpdateSession(  # noqa: N802
        self, request: session_service_pb2.UpdateSessionRequest, context: Context
    ) -> session_service_pb2.Session:
        """Updates metadata and retention of a session."""
        given, named = request.session, request.update_mask.paths
        updated = sessions.update(
            self._database,
            current_tenant(),
            given.id,
            metadata=_metadata(given) if "metadata" in named else None,
            retention=common.retention(given.retention) if "retention" in named else None,
            etag=given.etag,
        )
        return await reply(updated, transfers.session_message)

    async def DeleteSession(  # noqa: N802
        self, request: session_service_pb2.DeleteSessionRequest, context: Context
    ) -> empty_pb2.Empty:
        """Deletes a session."""
        identity = current_identity()
        if request.include_imports and identity.session_prefix:
            raise identity.session_refused()
        deleted = self._deleter.delete_session(
            current_tenant(),
            request.session,
            allow_missing=request.allow_missing,
            reason=request.reason,
            include_imports=request.include_imports,
        )
        return await reply(deleted, lambda _: empty_pb2.Empty())

    async def ExportSession(  # noqa: N802
        self, request: session_service_pb2.ExportSessionRequest, context: Context
    ) -> AsyncIterator[session_service_pb2.ExportSessionResponse]:
        """Exports a session."""
        tenant_id = current_tenant()
        parts = transfers.exported(self._exporter, tenant_id, request, self._stopping)
        async with aclosing(parts) as running:
            async for part in running:
                yield part

    async def ImportSession(  # noqa: N802
        self, request_iterator: transfers.ImportRequests, context: Context
    ) -> AsyncIterator[session_service_pb2.ImportSessionResponse]:
        """Imports a session."""
        tenant_id = current_tenant()
        said = transfers.imported(self._importer, tenant_id, request_iterator, self._stopping)
        async with aclosing(said) as running:
            async for one in running:
                yield one

    async def RedactChunks(  # noqa: N802
        self, request: session_service_pb2.RedactChunksRequest, context: Context
    ) -> session_service_pb2.RedactChunksResponse:
        """Removes the content of chunks, and everything derived from it."""
        identity = current_identity()
        if request.include_imports and identity.session_prefix:
            raise identity.session_refused()
        redacted = self._redactor.redact(
            current_tenant(),
            convert_redactions.request(request),
            ErasureRequest(principal=current_principal(LOCAL), reason=request.reason),
        )
        return await reply(redacted, convert_redactions.response)

    async def SearchChunks(  # noqa: N802
        self, request: session_service_pb2.SearchChunksRequest, context: Context
    ) -> session_service_pb2.SearchChunksResponse:
        """Finds the chunks that match a query best."""
        found = await self._search.find(
            current_tenant(),
            request.session,
            convert_search.query(request, self._limits),
            common.consistency(request.consistency),
            deadline=deadline_of(context),
        )
        page = found.page
        results = [convert_search.result(page, one, rank) for rank, one in enumerate(page.found, 1)]
        return session_service_pb2.SearchChunksResponse(
            results=fitting(results, self._pages.max_bytes),
            mode=convert_search.MODES[page.mode],
            index=convert_search.index(page.index),
            unread_chunks=page.unread_chunks,
            read_point=common.read_point(0, found.applied_position, found.token),
        )

    async def GetSearchIndex(  # noqa: N802
        self, request: session_service_pb2.GetSearchIndexRequest, context: Context
    ) -> session_service_pb2.SearchIndex:
        """Returns how far a session's index is."""
        return convert_search.index(await self._search.index(current_tenant(), request.session))

    async def Recall(  # noqa: N802
        self, request: session_service_pb2.RecallRequest, context: Context
    ) -> session_service_pb2.RecallResponse:
        """Returns what fits a query, as one text within a budget."""
        found = await self._recaller.recall(
            current_tenant(),
            request.session,
            convert_search.recall_query(request, self._limits),
            common.consistency(request.consistency),
            deadline=deadline_of(context),
        )
        return convert_search.recalled(found)

    async def SearchMemories(  # noqa: N802
        self, request: session_service_pb2.SearchMemoriesRequest, context: Context
    ) -> session_service_pb2.SearchMemoriesResponse:
        """Finds the entries of memories that match a query best."""
        found = await self._memory_search.find(
            current_tenant(),
            request.session,
            convert_search.entry_query(request, self._limits),
            common.consistency(request.consistency),
            deadline=deadline_of(context),
        )
        results = convert_search.entry_results(found)
        return session_service_pb2.SearchMemoriesResponse(
            results=fitting(results, self._pages.max_bytes),
            mode=convert_search.MODES[found.mode],
            memories=[convert_search.searched(*one) for one in found.memories],
            failure=found.failure,
        )

    async def AppendChunks(  # noqa: N802
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
            *(tenant_id, opening, opened.incarnation),
            *(self._appender, self._limits, self._stopping),
            self._pace,
        )
        async with aclosing(stream.run(request_iterator)) as acks:
            async for ack in acks:
                yield ack

    async def _pace(self, chunks: Sequence[Any]) -> None:
        """Waits until the quotas of the tenant allow a batch. Raises Exhausted when it is full."""
        if self._quotas is not None:
            tenant_id = current_tenant()
            await self._quotas.check_bytes(tenant_id)
            await self._quotas.pace(tenant_id, amounts_of(chunks))

    async def Append(  # noqa: N802
        self, request: session_service_pb2.AppendRequest, context: Context
    ) -> session_service_pb2.AppendResponse:
        """Appends one batch."""
        tenant_id = current_tenant()
        self._appender.refuse_when_full()
        submission = appends.submission(tenant_id, request, self._limits)
        if self._quotas is not None:
            await self._quotas.check_append(tenant_id, submission)
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
            wanted=convert_chunks.chunk_filter(request.filter, self._limits),
        )
        chunks = fitting(
            [convert_chunks.chunk(one, page.redactions) for one in page.chunks],
            self._pages.max_bytes,
        )
        following = page.next_position
        if len(chunks) < len(page.chunks):
            following = chunks[-1].position + 1
        return session_service_pb2.ListChunksResponse(
            chunks=chunks,
            next_page_token=self._pages.next(scope, str(following)) if following else "",
            head=page.head,
        )


def _scope(request: session_service_pb2.ListChunksRequest) -> str:
    """Returns the scope of a page token: the chunks of a session that match a filter."""
    if request.filter == chunks_pb2.ChunkFilter():
        return f"chunks/{request.session}"
    content = request.filter.SerializeToString(deterministic=True)
    return f"chunks/{request.session}/{hashlib.sha256(content).hexdigest()}"


def _metadata(message: session_service_pb2.Session) -> dict[str, str]:
    """Returns the client's own values. Raises InvalidInput for what the database cannot store."""
    values = dict(message.metadata)
    if any("\0" in text for pair in values.items() for text in pair):
        field = "session.metadata"
        raise InvalidInput(Reason.FIELD_INVALID, f"{field} has a NUL character", field=field)
    return values
