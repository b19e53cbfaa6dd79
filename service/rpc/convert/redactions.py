"""Converts requests to redact chunks, and their results."""

from palimpsest.v1 import session_service_pb2
from service.rpc.convert import operations
from service.rpc.convert.chunks import ranges_of
from service.rpc.convert.common import message_of
from service.rpc.convert.history import REVISION_KINDS
from service.usecases.operations.redacting import RedactionRequest, RedactionResult
from storage.log.selecting import Selection


def request(message: session_service_pb2.RedactChunksRequest) -> RedactionRequest:
    """Returns which chunks a client wants to have redacted."""
    return RedactionRequest(
        session=message.session,
        selection=Selection(
            ranges=[(one.first, one.last) for one in message.positions.ranges],
            thread=message.thread,
            source=message.source,
            text=message.text,
            is_exact=message.case_sensitive,
        ),
        keep_out=message.keep_out if message.HasField("keep_out") else bool(message.text),
        validate_only=message.validate_only,
        include_imports=message.include_imports,
    )


def response(result: RedactionResult) -> session_service_pb2.RedactChunksResponse:
    """Returns which chunks were redacted, or would be."""
    message = session_service_pb2.RedactChunksResponse(
        chunks=len(result.positions),
        positions=ranges_of(result.positions),
        kept_out=result.kept_out,
        imports=[
            session_service_pb2.RedactChunksResponse.Import(
                session=one.session,
                chunks=len(one.positions),
                positions=ranges_of(one.positions),
                operation=one.operation,
                undone_edit_count=one.undone_edits,
            )
            for one in result.imports
        ],
        undone_edits=[
            message_of(
                session_service_pb2.RedactChunksResponse.UndoneEdit,
                one,
                kind=REVISION_KINDS[one.kind],
                edited_at=one.created_at,
            )
            for one in result.undone.listed
        ],
        undone_edit_count=result.undone.count,
    )
    if result.operation is not None:
        message.operation.CopyFrom(operations.operation(result.operation))
    return message
