"""Memories, and what they lost."""

from palimpsest.v1 import memories_pb2
from service.domain.prism.losses import Loss, LossKind, losses_of
from service.domain.state.spec import StateSpec
from service.rpc.convert import specs
from service.rpc.convert.common import write_timestamp
from storage.memories.memories import StoredMemory

_STATUSES = {
    "active": memories_pb2.Memory.STATUS_ACTIVE,
    "stalled": memories_pb2.Memory.STATUS_STALLED,
    "sealed": memories_pb2.Memory.STATUS_SEALED,
}
_LOSS_KINDS = {
    LossKind.NO_ROOM: memories_pb2.Loss.KIND_NO_ROOM,
    LossKind.INVALID: memories_pb2.Loss.KIND_INVALID,
}


def memory(stored: StoredMemory) -> memories_pb2.Memory:
    """Returns a memory without its value."""
    message = memories_pb2.Memory(
        session=stored.session_name,
        id=stored.name,
        status=_status(stored),
        revision=stored.revision,
        applied_position=stored.applied_position,
        head=stored.head,
        losses=[loss(one) for one in losses_of(stored.losses)],
        rebuilt_from=stored.rebuilt_from or "",
        idle=stored.is_idle and isinstance(stored.spec, StateSpec),
    )
    specs.write_spec(stored.spec, message)
    write_timestamp(stored.created_at, message.created_at)
    _write_blocked(stored, message)
    return message


def _write_blocked(stored: StoredMemory, message: memories_pb2.Memory) -> None:
    if stored.stall is not None:
        message.blocked.cause = stored.stall.cause
        message.blocked.position = stored.stall.position
        message.blocked.attempts = stored.stall.attempts
        write_timestamp(stored.stall.created_at, message.blocked.since)
    elif (cause := stored.held_reason or stored.waiting_cause) is not None:
        message.blocked.cause = cause


def _status(stored: StoredMemory) -> memories_pb2.Memory.Status.ValueType:
    if stored.stall is None and stored.held_reason is not None:
        return memories_pb2.Memory.STATUS_OVER_BUDGET
    if stored.stall is None and stored.waiting_cause is not None:
        return memories_pb2.Memory.STATUS_WAITING
    return _STATUSES[stored.status]


def loss(one: Loss) -> memories_pb2.Loss:
    """Returns what the steps of a memory lost."""
    return memories_pb2.Loss(
        kind=_LOSS_KINDS[one.kind],
        count=one.count,
        steps=one.steps,
        since_position=one.since_position,
        message=one.sentence(),
    )
