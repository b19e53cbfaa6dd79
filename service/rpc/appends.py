"""A unary append, from its message to what the queues take."""

import hashlib
from collections.abc import Sequence
from uuid import UUID

from palimpsest.v1alpha1 import log_pb2
from service.domain.log.appending import SERVER_PRODUCER, Request, Submission, SubmittedChunk
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.rpc.convert import v1alpha1 as convert
from service.settings.config import Limits


def submission(tenant_id: UUID, request: log_pb2.AppendRequest, limits: Limits) -> Submission:
    """Returns what `request` appends. Raises InvalidInput."""
    has_producer = request.producer_id != SERVER_PRODUCER
    if has_producer and request.request_id:
        raise _misplaced("request_id", "only without a producer_id: chunks have numbers there")
    if not has_producer and request.epoch:
        raise _misplaced("epoch", "only with a producer_id")
    chunks = convert.submitted_chunks(request.chunks, limits, numbered=has_producer)
    return Submission(
        session=request.session,
        session_key=session_key(tenant_id, request.session),
        producer_id=request.producer_id,
        epoch=request.epoch,
        expected_head=request.expected_head if request.HasField("expected_head") else None,
        chunks=chunks,
        request=Request(request_id=request.request_id, digest=_digest(chunks))
        if request.request_id
        else None,
    )


def _digest(chunks: Sequence[SubmittedChunk]) -> bytes:
    """Returns the SHA-256 of all that is appended; each digest has the same length."""
    return hashlib.sha256(b"".join(chunk.digest for chunk in chunks)).digest()


def _misplaced(field: str, why: str) -> InvalidInput:
    return InvalidInput(Reason.FIELD_INVALID, f"{field}: {why}", field=field)
