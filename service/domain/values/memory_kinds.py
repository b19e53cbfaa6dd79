"""Kinds and statuses of memories, without what each of them needs."""

from enum import StrEnum


class MemoryKind(StrEnum):
    """What a memory is."""

    PRISM = "prism"
    TREE = "tree"
    STATE = "state"


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
