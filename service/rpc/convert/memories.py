"""Memories."""

from palimpsest.v1 import memories_pb2
from service.domain.prism.losses import Loss, LossKind

_LOSS_KINDS = {
    LossKind.NO_ROOM: memories_pb2.Loss.KIND_NO_ROOM,
    LossKind.INVALID: memories_pb2.Loss.KIND_INVALID,
}


def loss(one: Loss) -> memories_pb2.Loss:
    """Returns what a memory lost."""
    return memories_pb2.Loss(
        kind=_LOSS_KINDS[one.kind],
        count=one.count,
        steps=one.steps,
        since_position=one.since_position,
        message=one.sentence(),
    )
