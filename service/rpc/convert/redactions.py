"""Converts requests to redact chunks, and their results."""

from palimpsest.v1 import session_service_pb2
from service.rpc.convert import operations
from service.rpc.convert.chunks import ranges_of
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
            )
            for one in result.imports
        ],
    )
    if result.operation is not None:
        message.operation.CopyFrom(operations.operation(result.operation))
    return message
