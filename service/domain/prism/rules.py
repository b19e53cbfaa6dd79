"""Rules for the revisions of a memory, and its limits of size."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The rules of one memory. They bound revisions, not what is there already."""

    #: The memory as canonical JSON, in bytes; 2 or more.
    max_memory_bytes: int = 1024 * 1024
    #: The value of one amendment as canonical JSON, in bytes; 1 or more.
    max_value_bytes: int = 64 * 1024
    #: Levels of lists and dicts within one another, the memory itself the first; 1 to 32.
    max_depth: int = 32
    #: Entries of one list or dict; 1 or more.
    max_breadth: int = 10_000
    #: Updates are refused: what is there stays as it is.
    add_only: bool = False
    #: What is there may be removed.
    may_remove: bool = False
    #: A value of another kind is taken when nothing of it is lost: "3" for 3, 3 for
    #: "3", "true" for true, one value for a list of it.
    coerce: bool = False
