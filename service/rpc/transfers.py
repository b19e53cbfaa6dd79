"""Serves the streams of exports and imports."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from uuid import UUID

from palimpsest.v1 import session_service_pb2
from service.domain.values.errors import server_stopping
from service.rpc.appends import misused
from service.rpc.convert import common
from service.rpc.interceptors.tenancy import current_identity
from service.rpc.interceptors.tracing import say_subject
from service.rpc.interceptors.validation import validate
from service.rpc.streams import until_stopped
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.importing import Imported, Importer, ImportRun
from storage.log.sessions import StoredSession

#: Bytes of lines in one message.
DATA_BYTES = 1024 * 1024

ImportRequests = AsyncIterator[session_service_pb2.ImportSessionRequest]
_Response = session_service_pb2.ImportSessionResponse


def session_message(stored: StoredSession) -> session_service_pb2.Session:
    """Returns a session as clients see it."""
    return common.message_of(session_service_pb2.Session, stored, id=stored.name)


async def exported(
    exporter: Exporter,
    tenant_id: UUID,
    request: session_service_pb2.ExportSessionRequest,
    stopping: asyncio.Event,
) -> AsyncGenerator[session_service_pb2.ExportSessionResponse]:
    """Yields the lines of an export, in messages of bounded size."""
    resume = request.resume
    after = (UUID(resume.export_id), resume.check_line) if request.HasField("resume") else None
    blocks = exporter.export(tenant_id, request.session, after=after)
    async with aclosing(until_stopped(blocks, stopping)) as running:
        async for block in running:
            for begin in range(0, len(block), DATA_BYTES):
                part = block[begin : begin + DATA_BYTES]
                yield session_service_pb2.ExportSessionResponse(data=part)


async def imported(
    importer: Importer, tenant_id: UUID, requests: ImportRequests, stopping: asyncio.Event
) -> AsyncGenerator[_Response]:
    """Writes what a client sends, and yields how far that is durable."""
    first = await anext(requests, None)
    if first is None:
        return
    validate(first)
    if first.WhichOneof("frame") != "open":
        raise misused("a stream begins with open")
    current_identity().require_session(first.open.session)
    say_subject(first.open)
    run = await importer.open(
        tenant_id,
        first.open.header,
        first.open.session,
        restore_deleted=first.open.restore_deleted,
    )
    yield _Response(opened=_Response.Progress(through_line=run.through_line))
    async with aclosing(until_stopped(_written(run, requests), stopping)) as written:
        async for one in written:
            yield _response(one)
    if stopping.is_set():
        raise server_stopping()
    run.end()


async def _written(run: ImportRun, requests: ImportRequests) -> AsyncGenerator[Imported]:
    async for request in requests:
        validate(request)
        if request.WhichOneof("frame") != "data":
            raise misused("a stream is opened once")
        async with aclosing(run.feed(request.data)) as written:
            async for one in written:
                yield one


def _response(one: Imported) -> _Response:
    if one.session is not None:
        return _Response(session=session_message(one.session))
    return _Response(ack=_Response.Progress(through_line=one.through_line))
