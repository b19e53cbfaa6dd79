"""What a memory is: the kinds, without what each of them needs."""

from enum import StrEnum


class MemoryKind(StrEnum):
    """What a memory is."""

    PRISM = "prism"
    TREE = "tree"
    STATE = "state"
