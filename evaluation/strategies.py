"""Strategies: ways to answer the questions of a document, and what comes of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from evaluation.datasets import Document, Question


class StrategyName(StrEnum):
    """The strategies that there are, in the order in which they are run.

    The automatic reader comes after those that make memories, so that it can choose among
    them.
    """

    WHOLE = "whole"
    PRISM = "prism"
    MEMWALKER = "memwalker"
    PCC = "pcc"
    #: Browsing (arXiv 2405.15318): as task understanding has it, and by each option.
    DCISO = "dciso"
    DCISO_RANK = "dciso-rank"
    DCISO_CARRY = "dciso-carry"
    DCISO_INDEPENDENT = "dciso-independent"
    DCISO_SCAN = "dciso-scan"
    DCISO_DYNAMIC = "dciso-dynamic"
    #: Its ablations (section 4.4): with these actions alone, and with actions by lot.
    RETRIEVE_ONLY = "retrieve-only"
    MERGE_ONLY = "merge-only"
    APPEND_ONLY = "append-only"
    MERGE_MOVE = "merge-move"
    APPEND_MOVE = "append-move"
    RETRIEVE_MOVE = "retrieve-move"
    AUTO = "auto"
    #: The baselines of arXiv 2310.05029, without the service.
    FULL_LEFT = "full-left"
    FULL_RIGHT = "full-right"
    RETRIEVAL = "retrieval"
    RECURRENCE = "recurrence"


#: What figure 3 of arXiv 2405.15318 compares.
FIGURE_3 = (
    StrategyName.RETRIEVE_ONLY,
    StrategyName.MERGE_ONLY,
    StrategyName.APPEND_ONLY,
    StrategyName.MERGE_MOVE,
    StrategyName.APPEND_MOVE,
    StrategyName.RETRIEVE_MOVE,
    StrategyName.WHOLE,
    StrategyName.DCISO,
)
#: All but the ablations.
ALL = tuple(one for one in StrategyName if one not in set(FIGURE_3) - {"whole", "dciso"})
#: What is compared unless a run says otherwise: each reader, and plain retrieval.
USUAL = (
    StrategyName.WHOLE,
    StrategyName.PRISM,
    StrategyName.MEMWALKER,
    StrategyName.PCC,
    StrategyName.DCISO,
    StrategyName.AUTO,
    StrategyName.RETRIEVAL,
)
#: Those that ask the model by themselves.
BASELINES = (
    StrategyName.FULL_LEFT,
    StrategyName.FULL_RIGHT,
    StrategyName.RETRIEVAL,
    StrategyName.RECURRENCE,
)


class Failed(Exception):
    """A document cannot be prepared, or a question not be answered; one sentence says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Model calls, as the ledger has them; each 0 or more."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: Millionths of a US dollar; None when no call had a price.
    cost_micro_usd: int | None = None


def added(spent: Iterable[Spent]) -> Spent:
    """Returns the sum; its price is that of those that have one."""
    found = list(spent)
    prices = [one.cost_micro_usd for one in found if one.cost_micro_usd is not None]
    return Spent(
        calls=sum(one.calls for one in found),
        input_tokens=sum(one.input_tokens for one in found),
        output_tokens=sum(one.output_tokens for one in found),
        cost_micro_usd=sum(prices) if prices else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """Results of a navigation: the counts of `Statistics` in `service.domain.tree`."""

    valid_actions: int
    invalid_actions: int
    reverts: int
    leaves_read: int
    #: Tokens of all prompts and replies, and of the text under the root.
    tokens: int
    text_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CitedSpan:
    """Characters of a chunk that an answer cites."""

    position: int
    #: Places in `Chunk.as_text()`; `to_character` is after the last.
    from_character: int
    to_character: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a question."""

    #: Empty when there is no answer.
    text: str
    #: Why there is none, in a word; empty when there is one.
    no_answer: str
    #: Whether it is an option that was chosen although nothing that was read says so.
    guessed: bool = False
    #: The model that answered, as provider/name.
    model: str
    spent: Spent
    #: Positions of the chunks whose text the model was shown when it was asked; None where
    #: what it was shown is no text of the log.
    seen: frozenset[int] | None
    #: Positions that the answer cites; None where answers have no citations.
    cited: frozenset[int] | None = None
    #: The characters that it cites; None as above.
    spans: tuple[CitedSpan, ...] | None = None
    #: The stored answer; empty when there is none.
    answer_id: str = ""
    walk: Walk | None = None
    #: Pieces of the log that browsing looked at; None where nothing was browsed.
    pieces: int | None = None
    #: What the automatic reader chose; empty where it was not asked.
    chosen: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A document that questions can be asked about."""

    #: Its session.
    session: str
    #: What was spent on it before the first question.
    spent: Spent
    #: What the strategy keeps for its questions.
    state: object = field(default=None, repr=False)


class Strategy(Protocol):
    """A way to answer. Documents and questions may come at the same time."""

    async def prepare(self, document: Document) -> Prepared:
        """Does what a document needs once. Raises Failed."""
        ...

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """Answers a question. Raises Failed."""
        ...
