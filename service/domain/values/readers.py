"""Readers, and the ways in which they read."""

from enum import StrEnum


class ReaderName(StrEnum):
    """A reader of questions."""

    #: The final answer of a PRISM memory.
    PRISM = "prism"
    #: Navigates a tree, or the levels of a state memory.
    MEMWALKER = "memwalker"
    #: The working context of a state memory.
    PCC = "pcc"
    #: Browses the log by its action loop.
    DCISO = "dciso"
    #: Reads the whole log in one prompt.
    WHOLE = "whole"
    #: Chooses one of these.
    AUTO = "auto"


class Way(StrEnum):
    """A way to read."""

    PRISM = "prism"
    CONTEXT = "context"
    TREE = "tree"
    #: The levels of a state memory.
    LEVELS = "levels"
    #: Browsing: what retrieval names; all of it; newest first until one answers.
    RANK = "rank"
    ALL = "all"
    SCAN = "scan"
