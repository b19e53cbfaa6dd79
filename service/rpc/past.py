"""Amendments, revisions and differences as the proto has them."""

from palimpsest.v1alpha1 import history_pb2, memories_pb2
from service.domain.prism.amending import Missing
from service.domain.prism.amendments import Op
from service.domain.prism.diffing import ValueDifference
from service.domain.values.json_values import canonical
from service.rpc.convert.v1alpha1 import logged_chunk, timestamp
from service.usecases.memories.history import Explained
from storage.memories.history import StoredRevision
from storage.prism.amendment_log import LoggedAmendment, LoggedRejection

OPS = {
    Op.ADD: memories_pb2.AMENDMENT_OP_ADD,
    Op.UPDATE: memories_pb2.AMENDMENT_OP_UPDATE,
    Op.REMOVE: memories_pb2.AMENDMENT_OP_REMOVE,
}
_KINDS = {
    "create": memories_pb2.REVISION_KIND_CREATE,
    "step": memories_pb2.REVISION_KIND_STEP,
    "skip": memories_pb2.REVISION_KIND_SKIP,
    "fold": memories_pb2.REVISION_KIND_FOLD,
    "edit": memories_pb2.REVISION_KIND_EDIT,
    "rollback": memories_pb2.REVISION_KIND_ROLLBACK,
    "consolidation": memories_pb2.REVISION_KIND_CONSOLIDATION,
    "schema": memories_pb2.REVISION_KIND_SCHEMA,
    "build": memories_pb2.REVISION_KIND_BUILD,
    "seal": memories_pb2.REVISION_KIND_SEAL,
    "episode": memories_pb2.REVISION_KIND_EPISODE,
}


def amendment(logged: LoggedAmendment) -> memories_pb2.Amendment:
    """An amendment of the log."""
    return memories_pb2.Amendment(
        revision=logged.revision,
        ordinal=logged.ordinal,
        from_position=logged.from_position,
        to_position=logged.to_position,
        op=OPS[logged.op],
        path=logged.path,
        value_json=logged.value,
        op_corrected=logged.op_corrected,
        create_time=timestamp(logged.created_at),
        kind=_KINDS[logged.kind],
    )


def rejection(logged: LoggedRejection) -> memories_pb2.Rejection:
    """A rejection of the log."""
    return memories_pb2.Rejection(
        revision=logged.revision,
        ordinal=logged.ordinal,
        from_position=logged.from_position,
        to_position=logged.to_position,
        proposal=logged.proposal,
        reason=logged.reason,
        create_time=timestamp(logged.created_at),
    )


def revision(stored: StoredRevision) -> history_pb2.Revision:
    """A revision of the history."""
    return history_pb2.Revision(
        revision=stored.revision,
        kind=_KINDS[stored.kind],
        from_position=stored.from_position,
        to_position=stored.to_position,
        comment=stored.comment,
        restored_revision=stored.restored_revision,
        schema_source=stored.schema_source or "",
        amendments=stored.amendments,
        rejections=stored.rejections,
        value_digest=stored.digest,
        create_time=timestamp(stored.created_at),
    )


def explained(entry: Explained) -> history_pb2.ProvenanceEntry:
    """An amendment with what it was made from."""
    return history_pb2.ProvenanceEntry(
        amendment=amendment(entry.amendment),
        revision=revision(entry.revision),
        in_effect=entry.in_effect,
        origin=entry.origin,
        best_position=entry.best_position,
        chunks=[logged_chunk(chunk) for chunk in entry.chunks],
        chunks_truncated=entry.chunks_truncated,
    )


def difference(found: ValueDifference) -> history_pb2.Difference:
    """A place where two states differ."""
    return history_pb2.Difference(
        path=str(found.path),
        old_json=None if isinstance(found.old, Missing) else canonical(found.old),
        new_json=None if isinstance(found.new, Missing) else canonical(found.new),
    )
