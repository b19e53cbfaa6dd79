"""Memories, and what they lost."""

from palimpsest.v1 import memories_pb2
from service.domain.prism.losses import Loss, LossKind, losses_of
from service.domain.values.memory_specs import MemoryStatus
from service.rpc.convert import specs
from service.rpc.convert.common import numbers_of, read_point, write_timestamp
from service.usecases.memories.memories import MemoryReading
from storage.memories.memories import StoredMemory

_STATUSES = numbers_of(MemoryStatus, memories_pb2.Memory.Status, "STATUS_")
_LOSS_KINDS = numbers_of(LossKind, memories_pb2.Loss.Kind, "KIND_")


def memory(stored: StoredMemory) -> memories_pb2.Memory:
    """Returns a memory without its value."""
    message = memories_pb2.Memory(
        session=stored.session_name,
        id=stored.name,
        status=_STATUSES[stored.shown_status],
        revision=stored.revision,
        applied_position=stored.applied_position,
        head=stored.head,
        losses=[loss(one) for one in losses_of(stored.losses)],
        rebuilt_from=stored.rebuilt_from or "",
        idle=stored.is_idle and stored.spec.has_whole_log,
    )
    specs.write_spec(stored.spec, message)
    write_timestamp(stored.created_at, message.created_at)
    _write_blocked(stored, message)
    return message


def _write_blocked(stored: StoredMemory, message: memories_pb2.Memory) -> None:
    match stored.shown_status:
        case MemoryStatus.STALLED if stored.stall is not None:
            message.blocked.cause = stored.stall.cause
            message.blocked.position = stored.stall.position
            message.blocked.attempts = stored.stall.attempts
            write_timestamp(stored.stall.created_at, message.blocked.since)
        case MemoryStatus.OVER_BUDGET:
            message.blocked.cause = stored.held_reason or ""
        case MemoryStatus.WAITING:
            message.blocked.cause = stored.waiting_cause or ""


def memory_with_value(reading: MemoryReading) -> memories_pb2.Memory:
    """Returns a memory with its value, and what that was read at."""
    message = memory(reading.memory)
    message.value_json = reading.value_json
    message.read_point.CopyFrom(
        read_point(reading.revision, reading.applied_position, reading.token)
    )
    return message


def memory_status(message: memories_pb2.Memory.Status.ValueType) -> MemoryStatus | None:
    """Returns a status to list memories by; None for any."""
    return next((status for status, one in _STATUSES.items() if one == message), None)


def loss(one: Loss) -> memories_pb2.Loss:
    """Returns what the steps of a memory lost."""
    return memories_pb2.Loss(
        kind=_LOSS_KINDS[one.kind],
        count=one.count,
        steps=one.steps,
        since_position=one.since_position,
        message=one.sentence(),
    )
