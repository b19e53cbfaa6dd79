"""What readers of memories have in common: a stored question in, an answer out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.ledger import CallScope
from service.domain.trajectory import (
    NoAnswer,
)
from service.domain.tree.trajectory import Statistics
from service.domain.work import WorkItem
from service.usecases.ask import occasion
from storage.answers import StoredAnswer, StoredCitation

#: Characters of a chunk's text that a citation repeats.
EXCERPT_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeAnswer:
    """What came of a question."""

    #: The answer, or that there is none.
    text: str
    citations: Sequence[StoredCitation]
    #: The model that read.
    model: str
    #: Why there is no answer; None when there is one.
    no_answer: NoAnswer | None = None
    #: Of a navigation.
    statistics: Statistics | None = None


class Reader(Protocol):
    """Answers questions to memories of one kind, as they were when the question came."""

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Made again after a failure, it gets the replies that are journalled."""


def scope_of(item: WorkItem, asked: StoredAnswer) -> CallScope:
    """Of a model call for an answer."""
    return CallScope(
        tenant_id=item.tenant_id,
        session_key=asked.session_key,
        memory_id=asked.memory_id,
        occasion=occasion(asked.answer_id),
    )
