"""How a log is to be browsed (arXiv 2405.15318, sections 3.3, 4.2 and 4.4)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from service.domain.answers.options import MAX_OPTIONS


class BrowseAction(StrEnum):
    """The action space (section 3.3)."""

    #: Look at the query first: choose the option, the order, and write the query anew.
    TASK_UNDERSTANDING = "task_understanding"
    #: Rank the pieces by a retriever.
    RETRIEVE = "retrieve"
    #: Pass a piece by: the reply "null".
    MOVE = "move"
    #: Extract from a piece by itself.
    APPEND = "append"
    #: Extract from a piece together with what was extracted before.
    MERGE = "merge"
    #: A short answer.
    ANSWER = "answer"
    #: A long one, from all that was extracted.
    AGGREGATION = "aggregation"


class BrowseOption(StrEnum):
    """How the pieces are processed (section 4.2; the numbers are the paper's)."""

    #: Task understanding chooses; without that action as `DYNAMIC`, or the first that the
    #: actions allow.
    AUTO = "auto"
    #: Algorithm 1, lines 6 to 14: at each piece the model chooses among the allowed actions.
    DYNAMIC = "dynamic"
    #: Option 1: the retriever ranks all pieces, the best are read.
    RANK = "rank"
    #: Option 2: one after the other, what was extracted is carried along (merge).
    CARRY = "carry"
    #: Option 3: each by itself, in parallel (append).
    INDEPENDENT = "independent"
    #: Option 4: one after the other until one answers.
    SCAN = "scan"


class ReadingOrder(StrEnum):
    """In which order pieces are read."""

    #: Backward when task understanding says that code is to be completed, else forward.
    AUTO = "auto"
    FORWARD = "forward"
    #: From near to far: the newest first.
    BACKWARD = "backward"


DEFAULT_WINDOW_TOKENS = 4096
LEAST_WINDOW_TOKENS = 512
MAX_WINDOW_TOKENS = 1_000_000
DEFAULT_PIECES = 8
MAX_PIECES = 100
DEFAULT_CALLS = 1000
MAX_CALLS = 10_000
ALL_ACTIONS = frozenset(BrowseAction)

_OBTAINING = frozenset({BrowseAction.RETRIEVE, BrowseAction.APPEND, BrowseAction.MERGE})
_CLOSING = frozenset({BrowseAction.ANSWER, BrowseAction.AGGREGATION})
#: The actions without which an option cannot be.
NEEDED = {
    BrowseOption.RANK: frozenset({BrowseAction.RETRIEVE}),
    BrowseOption.CARRY: frozenset({BrowseAction.MERGE}),
    BrowseOption.INDEPENDENT: frozenset({BrowseAction.APPEND}),
    BrowseOption.SCAN: frozenset({BrowseAction.ANSWER, BrowseAction.MOVE}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseRequest:
    """How to browse; the defaults are the whole method."""

    option: BrowseOption = BrowseOption.AUTO
    #: What may be done (section 4.4 takes some away).
    actions: frozenset[BrowseAction] = ALL_ACTIONS
    order: ReadingOrder = ReadingOrder.AUTO
    #: Tokens of a prompt with its reply, at most: 512 to 1,000,000.
    window_tokens: int = DEFAULT_WINDOW_TOKENS
    #: Pieces that retrieval names, 1 to 100.
    pieces: int = DEFAULT_PIECES
    #: Model calls at most, 1 to 10,000; what is known by then is answered from.
    max_calls: int = DEFAULT_CALLS
    #: Whether a model orders what retrieval names.
    rerank: bool = False
    #: The query as an earlier task understanding wrote it; empty: there was none.
    rewritten_query: str = ""
    #: Options of a question, at most 26: where nothing that is read answers it, one of
    #: them is chosen, and the answer is marked as a guess.
    options: tuple[str, ...] = ()

    def problem(self) -> str:
        """Returns what contradicts itself, as a sentence; empty when nothing does."""
        if not self.actions & _OBTAINING:
            return "without retrieve, append and merge nothing can be read"
        if not self.actions & _CLOSING:
            return "without answer and aggregation nothing can be answered"
        missing = sorted(NEEDED.get(self.option, frozenset()) - self.actions)
        if missing:
            return f"option {self.option.value} needs the action {missing[0]}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain JSON."""
        values = asdict(self) | {"actions": sorted(self.actions)}
        return {name: value for name, value in values.items() if name != "options" or value}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "BrowseRequest":
        """Returns the request from `to_json`."""
        return cls(
            **{
                **held,
                "option": BrowseOption(held["option"]),
                "actions": frozenset(BrowseAction(one) for one in held["actions"]),
                "order": ReadingOrder(held["order"]),
                "options": tuple(held.get("options", ())),
            }
        )


def options_of(schema: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the options that a response schema has for the answer; empty for none."""
    values = (schema or {}).get("enum")
    if not isinstance(values, list) or not 2 <= len(values) <= MAX_OPTIONS:
        return ()
    return tuple(values) if all(isinstance(one, str) and one.strip() for one in values) else ()


_CHOICES = frozenset(
    {BrowseAction.RETRIEVE, BrowseAction.APPEND, BrowseAction.MERGE, BrowseAction.MOVE}
)
#: What makes notes.
EXTRACTING = frozenset({BrowseAction.APPEND, BrowseAction.MERGE})


def without_understanding(request: BrowseRequest) -> BrowseOption:
    """Returns DYNAMIC if there is something to choose, else the one option that is allowed."""
    if request.option is not BrowseOption.AUTO:
        return request.option
    obtaining = request.actions & _CHOICES
    if len(obtaining) > 1 and obtaining & EXTRACTING:
        return BrowseOption.DYNAMIC
    if BrowseAction.RETRIEVE in obtaining:
        # With move it is the seventh setting of section 4.4: the best, selectively processed.
        return BrowseOption.RANK
    if BrowseAction.MERGE in obtaining:
        return BrowseOption.CARRY
    return BrowseOption.INDEPENDENT


def settled(request: BrowseRequest) -> BrowseOption | None:
    """Returns the option as far as it is known before a model is asked; None: it will choose."""
    may_choose = BrowseAction.TASK_UNDERSTANDING in request.actions and not request.rewritten_query
    if request.option is BrowseOption.AUTO and may_choose:
        return None
    return without_understanding(request)


class QuerySubject(StrEnum):
    """What a query is about."""

    #: Something that stands in one place or in a few.
    FACT = "fact"
    #: How things are now, where they change.
    STATE = "state"
    #: The whole: a summary, a list, a count, a comparison.
    OVERVIEW = "overview"
    #: Code that is to be continued.
    CODE = "code"


@dataclass(frozen=True, kw_only=True, slots=True)
class Understanding:
    """A query, understood."""

    subject: QuerySubject
    #: RANK, CARRY, INDEPENDENT or SCAN.
    option: BrowseOption
    #: FORWARD or BACKWARD.
    order: ReadingOrder
    #: The query in words that fit reading piece by piece.
    query: str
