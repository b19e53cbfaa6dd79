"""Memories of all kinds and their specs, between the proto and our values."""

from palimpsest.v1 import common_pb2, memories_pb2
from service.domain.tree.spec import TreeSpec, WorkingMemory
from service.domain.values.memory_choices import OnFailure, ReplyFormat
from service.rpc.convert import common
from storage.memories.memories import StoredMemory

_Memory = memories_pb2.Memory
_Tree = memories_pb2.TreeSpec

_ON_FAILURE = {
    OnFailure.STALL: common_pb2.ON_FAILURE_STALL,
    OnFailure.SKIP: common_pb2.ON_FAILURE_SKIP,
}
_REPLY_FORMATS = {
    ReplyFormat.AUTO: common_pb2.REPLY_FORMAT_UNSPECIFIED,
    ReplyFormat.TEXT: common_pb2.REPLY_FORMAT_TEXT,
    ReplyFormat.STRUCTURED: common_pb2.REPLY_FORMAT_STRUCTURED,
}
_WORKING_MEMORIES = {
    WorkingMemory.OFF: _Tree.WORKING_MEMORY_OFF,
    WorkingMemory.CUT: _Tree.WORKING_MEMORY_CUT,
    WorkingMemory.SUMMARIZED: _Tree.WORKING_MEMORY_SUMMARIZED,
}


def memory(stored: StoredMemory) -> memories_pb2.Memory:
    """Returns a memory without its value; of the specs only that of a tree."""
    return _Memory(
        session=stored.session_name,
        id=stored.name,
        tree=_tree_spec(stored.spec) if isinstance(stored.spec, TreeSpec) else None,
        status=_status(stored),
        blocked=_blocked(stored),
        revision=stored.revision,
        applied_position=stored.applied_position,
        head=stored.head,
        rebuilt_from=stored.rebuilt_from or "",
        created_at=common.timestamp(stored.created_at),
    )


def _status(stored: StoredMemory) -> memories_pb2.Memory.Status.ValueType:
    if stored.status == "stalled":
        return _Memory.STATUS_STALLED
    if stored.held_reason is not None:
        return _Memory.STATUS_OVER_BUDGET
    if stored.waiting_cause is not None:
        return _Memory.STATUS_WAITING
    return _Memory.STATUS_SEALED if stored.status == "sealed" else _Memory.STATUS_ACTIVE


def _blocked(stored: StoredMemory) -> memories_pb2.Memory.Blocked | None:
    if stored.stall is not None:
        return _Memory.Blocked(
            cause=stored.stall.cause,
            position=stored.stall.position,
            attempts=stored.stall.attempts,
            since=common.timestamp(stored.stall.created_at),
        )
    cause = stored.held_reason or stored.waiting_cause
    return None if cause is None else _Memory.Blocked(cause=cause)


def _tree_spec(spec: TreeSpec) -> memories_pb2.TreeSpec:
    return _Tree(
        segment_tokens=spec.segment_tokens,
        max_children=spec.max_children,
        summary_tokens=spec.summary_tokens,
        reasoning=_Tree.REASONING_ON if spec.reasoning else _Tree.REASONING_OFF,
        working_memory=_WORKING_MEMORIES[spec.working_memory],
        working_memory_tokens=spec.working_memory_tokens,
        model=spec.model,
        navigation_model=spec.navigation_model,
        reply_format=_REPLY_FORMATS[spec.reply_format],
        on_failure=_ON_FAILURE[spec.on_failure],
    )
