"""Statuses of memories, and what all of them let their owner choose."""

from enum import StrEnum


class MemoryStatus(StrEnum):
    """What a memory is doing, as the API reports it."""

    ACTIVE = "active"
    #: It stopped and waits for RetryMemory.
    STALLED = "stalled"
    #: A tree that is complete.
    SEALED = "sealed"
    #: Its model gives no reply; it tries again by itself.
    WAITING = "waiting"
    #: A budget does not allow its next call.
    OVER_BUDGET = "over_budget"


class ReplyFormat(StrEnum):
    """How the model writes its replies."""

    #: Structured where the model is known to offer it.
    AUTO = "auto"
    #: The method's own form.
    TEXT = "text"
    #: One JSON object, held to a JSON schema by the provider.
    STRUCTURED = "structured"


class OnFailure(StrEnum):
    """What follows when a step has failed for good."""

    STALL = "stall"
    SKIP = "skip"
