"""Sizes of what is stored."""

from dataclasses import dataclass
from enum import StrEnum


class StorageKind(StrEnum):
    """What rows are for."""

    #: Chunks, and the request ids of appends.
    LOG = "log"
    #: Memories as they are now, all nodes of trees and all state vectors.
    MEMORIES = "memories"
    #: Revisions, amendments, rejections, and values at earlier revisions.
    HISTORY = "history"
    #: Words and vectors, for searches.
    INDEX = "index"
    #: Model calls with their replies, and their sums.
    LEDGER = "ledger"
    #: Answers with texts, ratings and trajectories.
    ANSWERS = "answers"
    #: The rest: sessions, producers, budgets, operations and what is smaller still.
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSize:
    """How much is stored of a kind."""

    rows: int = 0
    bytes: int = 0
    #: Whether the planner's statistics contributed.
    is_estimated: bool = False

    def __add__(self, other: "StoredSize") -> "StoredSize":
        return StoredSize(
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            is_estimated=self.is_estimated or other.is_estimated,
        )
