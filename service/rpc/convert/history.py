"""Amendments, revisions and differences."""

from typing import Any

from palimpsest.v1 import memories_pb2, memory_service_pb2
from service.domain.prism.amending import Missing, ValueDifference
from service.domain.prism.amendments import Op
from service.domain.values.json_values import canonical
from service.rpc.convert.chunks import write_chunk
from service.rpc.convert.common import message_of, numbers_of, positions
from service.usecases.memories.edit import Edit
from service.usecases.memories.history import Explained
from storage.memories.history import StoredRevision
from storage.prism.amendment_log import LoggedAmendment, LoggedRejection

_OPS: dict[Any, Op | None] = {
    0: None,
    **{
        number: op
        for op, number in numbers_of(Op, memories_pb2.AmendmentOp, "AMENDMENT_OP_").items()
    },
}
#: By the names that the database has.
REVISION_KINDS = {
    name.removeprefix("REVISION_KIND_").lower(): number
    for name, number in memories_pb2.RevisionKind.items()
}


def edit(message: memory_service_pb2.Edit) -> Edit:
    """Returns a change by hand."""
    return Edit(op=_OPS[message.op], path=message.path, value_json=message.value_json)


def amendment(logged: LoggedAmendment) -> memories_pb2.Amendment:
    """Returns an amendment of the log."""
    return message_of(
        memories_pb2.Amendment,
        logged,
        kind=REVISION_KINDS[logged.kind],
        positions=positions(logged.from_position + 1, logged.to_position),
        value_json=logged.value,
    )


def rejection(logged: LoggedRejection) -> memories_pb2.Rejection:
    """Returns a rejection of the log."""
    return message_of(
        memories_pb2.Rejection,
        logged,
        positions=positions(logged.from_position + 1, logged.to_position),
    )


def revision(stored: StoredRevision) -> memories_pb2.Revision:
    """Returns a revision of the history."""
    return message_of(
        memories_pb2.Revision,
        stored,
        kind=REVISION_KINDS[stored.kind],
        # A quarantine may have the cursor go on without reading.
        positions=None
        if stored.kind == "quarantine"
        else positions(stored.from_position + 1, stored.to_position),
        amendment_count=stored.amendments,
        rejection_count=stored.rejections,
        value_digest=stored.digest,
    )


def explained(entry: Explained) -> memory_service_pb2.GetProvenanceResponse.Entry:
    """Returns an amendment with what it was derived from."""
    message = memory_service_pb2.GetProvenanceResponse.Entry(
        amendment=amendment(entry.amendment),
        revision=revision(entry.revision),
        in_effect=entry.in_effect,
        origin=entry.origin,
        best_position=entry.best_position,
        chunks_truncated=entry.chunks_truncated,
    )
    for chunk in entry.chunks:
        write_chunk(chunk, message.chunks.add())
    return message


def difference(found: ValueDifference) -> memory_service_pb2.DiffMemoriesResponse.Difference:
    """Returns a path at which two states differ."""
    return memory_service_pb2.DiffMemoriesResponse.Difference(
        path=str(found.path),
        old_json=None if isinstance(found.old, Missing) else canonical(found.old),
        new_json=None if isinstance(found.new, Missing) else canonical(found.new),
    )
