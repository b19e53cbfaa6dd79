"""Questions, answers and trajectories: plain values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from palimpsest._errors import PalimpsestError
from palimpsest._schemas import Schema
from palimpsest._spend import Usage
from palimpsest._values_common import (
    CharacterRange,
    ChatMessage,
    OperationState,
    PositionRange,
    ReadPoint,
)
from palimpsest._values_log import SourceTrust

#: What happened; "unknown" only where the service is newer. See answer_service.proto.
EventKind = Literal[
    "retrieval",
    "triage",
    "leaf",
    "working_memory",
    "merge",
    "choice",
    "understanding",
    "piece",
    "aggregation",
    "shaping",
    "end",
    "unknown",
]
#: The model's move: down, back up, an answer, what it did with a piece of the log, an invalid
#: reply, or nothing.
EventAction = Literal[
    "enter",
    "revert",
    "answer",
    "append",
    "merge",
    "move",
    "retrieve",
    "aggregate",
    "invalid",
    "none",
    "unknown",
]
#: Why there is no answer.
NoAnswer = Literal["unreadable", "not_found", "step_limit", "empty", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryEvent:
    """One event of a trajectory."""

    #: 1, 2, 3 … within the answer.
    ordinal: int
    kind: EventKind
    action: EventAction
    #: The node that was visited: "2.1" is a stored node, "root" and "v1.2" replace parents that
    #: do not exist yet, "t.1" is text that is not summarized yet, and "p.3" is the third piece of
    #: the log that browsing reads.
    node: str
    level: int
    #: The positions that it covers; None: none.
    positions: PositionRange | None
    #: Nodes between it and the root.
    depth: int
    #: 1 to 3: how many times in a row the model has been asked here.
    attempt: int
    #: The children that the model saw, or the leaves that retrieval named.
    shown: tuple[str, ...]
    #: Where it went.
    targets: tuple[str, ...]
    #: The reasoning of the model before it acted.
    reasoning: str
    #: The answer, the fault of an invalid reply, or the shortened working memory.
    text: str
    input_tokens: int
    #: None when the provider does not report it.
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NavigationStatistics:
    """Sums over one navigation, or all of a memory together."""

    #: Completed navigations.
    navigations: int
    answered: int
    #: Navigations that went back up at least once, and how many of these found an answer.
    stray: int
    stray_answered: int
    valid_actions: int
    invalid_actions: int
    reverts: int
    leaves_read: int
    calls: int
    #: Tokens of all prompts and replies.
    tokens: int
    #: Tokens of the text under the root at each question, summed.
    text_tokens: int
    #: Navigations whose answer is a guess; they are not among `answered`.
    guessed: int = 0

    @property
    def stray_ratio(self) -> float | None:
        """The share of navigations that went back up; None without any."""
        return _share(self.stray, self.navigations)

    @property
    def valid_action_rate(self) -> float | None:
        """The share of replies that were a valid action; None without any."""
        return _share(self.valid_actions, self.valid_actions + self.invalid_actions)

    @property
    def read_share(self) -> float | None:
        """Tokens of prompts and replies per token of the text; None without text."""
        return _share(self.tokens, self.text_tokens)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


#: The ways to answer; "unknown" only where the service is newer. See answer_service.proto.
Reader = Literal["prism", "memwalker", "pcc", "dciso", "whole", "auto", "unknown"]
#: Why a memory lost proposals of its model; empty only where the service is newer.
LossKind = Literal["no_room", "invalid", ""]
#: How the pieces of a log are processed; "auto": understanding the task chooses.
BrowseStrategy = Literal["auto", "dynamic", "rank", "carry", "independent", "scan", "unknown"]
#: What browsing may do.
BrowseAction = Literal[
    "task_understanding", "retrieve", "move", "append", "merge", "answer", "aggregation"
]
#: In which order pieces are read; "auto": backward when code is to be completed.
BrowseOrder = Literal["auto", "forward", "backward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseSettings:
    """How to browse a log; defaults mean the whole method with the service's settings."""

    strategy: BrowseStrategy = "auto"
    #: Empty: all of them.
    actions: Sequence[BrowseAction] = ()
    order: BrowseOrder = "auto"
    #: Tokens of a prompt with its reply, at most: 512 to 1,000,000; 0: 4,096.
    window_tokens: int = 0
    #: Pieces that retrieval returns, 1 to 100; 0: 8.
    pieces: int = 0
    #: Model calls at most, 1 to 10,000; 0: 1,000.
    max_calls: int = 0
    #: Whether a model orders the result of retrieval.
    rerank: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question to a session, or to one of its memories."""

    #: At most 8 KiB.
    query: str
    #: Empty: the log itself is read, or the automatic reader chooses.
    memory: str = ""
    #: None: the reader of the memory's kind, or "auto" without a memory.
    reader: Reader | None = None
    #: For the readers "dciso" and "auto".
    browsing: BrowseSettings | None = None
    #: The schema of `Answer.value`: a JSON Schema as a dict or a text, a dataclass, a TypedDict or
    #: a pydantic model; None: no value.
    response_schema: Schema | None = None
    #: For readers of the log, and "auto"; empty: the service's default.
    model: str = ""
    #: The read token of an ack or a write that the memory must have applied.
    after: str = ""
    #: Whether the memory must have applied all that is in the log when the question arrives.
    fully_applied: bool = False
    #: Which chunks may be cited; the readers "dciso" and "whole" also read only these. Any of
    #: these threads, none of those, any of these sources; "" stands for chunks without one.
    threads: Sequence[str] = ()
    excluded_threads: Sequence[str] = ()
    sources: Sequence[str] = ()
    #: From sources that are at least so trusted.
    min_trust: Literal["trusted", "unverified"] | None = None
    #: Chunks that occurred from the first time to before the second.
    occurred_since: datetime | None = None
    occurred_until: datetime | None = None
    #: Chunks with all of these keys and values.
    metadata: Mapping[str, str] | None = None
    #: The 2 to 26 options of a multiple-choice question: the answer is one of them, word for word,
    #: or there is none. `Answer.guessed` marks an option that nothing in the text supports.
    options: Sequence[str] = ()
    #: For navigations, as `Memory.ask` has them.
    hybrid_leaves: int = 0
    beam: int = 0
    max_calls: int = 0
    navigate: bool = False
    #: Whether pieces of the text are sent as they are written.
    stream: bool = False
    #: Whether to complete the answer even when no caller waits for it. Otherwise the service
    #: abandons it about a minute after the last caller has left.
    unattended: bool = False


class MemoryQuestionOptions(TypedDict, total=False):
    """The fields of `Question` that `Memory.ask` and `ask_all` accept besides the words."""

    after: str
    fully_applied: bool
    threads: Sequence[str]
    excluded_threads: Sequence[str]
    sources: Sequence[str]
    occurred_since: datetime | None
    occurred_until: datetime | None
    metadata: Mapping[str, str] | None
    options: Sequence[str]
    hybrid_leaves: int
    beam: int
    max_calls: int
    navigate: bool
    reader: Reader | None
    response_schema: Schema | None
    stream: bool


class AskOptions(MemoryQuestionOptions, total=False):
    """The fields of `Question` that `Session.ask` accepts besides the words."""

    memory: str
    browsing: BrowseSettings | None
    model: str
    unattended: bool


class MemoryAskOptions(MemoryQuestionOptions, total=False):
    """All options of `Memory.ask`."""

    timeout: float | None
    on_event: Callable[["AskEvent"], None] | None


class ResumeOptions(TypedDict, total=False):
    """The options of `Session.resume_answer`."""

    after_event: int
    after_text: int
    timeout: float | None
    on_event: Callable[["AskEvent"], None] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Citation:
    """A part of the log that an answer rests on."""

    #: The chunk; 0: a node or a vector as a whole.
    position: int
    #: Characters of the chunk's text that the answer rests on; None: the chunk as a whole.
    #: common.proto says what a chunk's text is.
    characters: CharacterRange | None
    #: The value at the path, or the text of the chunk, cut.
    excerpt: str
    #: The path in a PRISM memory that it was written to; empty when none was read.
    path: str
    #: The revision of the amendment, the leaf or the vector.
    revision: int
    #: The leaf of a tree, or the vector of a state memory; and the positions that it covers.
    node: str = ""
    positions: PositionRange | None = None
    #: The chunk's labels, where `position` is set.
    thread: str = ""
    source: str = ""
    occurred_at: datetime | None = None
    #: How much the chunk's source is trusted now.
    trust: SourceTrust = "trusted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The memory has not applied enough of the log yet."""

    #: The position that it has applied, and the one that it must apply.
    applied_position: int
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The answer is stored, and its reader reads."""

    #: Its id, for `Session.answer` and `Session.resume_answer`.
    answer: str
    read_point: ReadPoint


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """A piece of an answer that is being written."""

    #: 1, 2, 3 … within the answer.
    ordinal: int
    #: What follows the pieces before it.
    text: str
    #: Whether the text begins again with this piece, and those before it are void.
    restarts: bool = False


#: What `on_event` receives while a question is under way.
AskEvent = Waiting | Reading | TrajectoryEvent | TextPiece


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The choice of the automatic reader."""

    reader: Reader
    #: Empty when the log itself is read.
    memory: str
    #: How the log is browsed; None for other readers.
    strategy: BrowseStrategy | None
    #: One sentence.
    reason: str
    #: The expected tokens of prompts and replies.
    expected_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """A user's rating of an answer."""

    good: bool
    comment: str
    #: The right answer; empty when it is not given.
    expected: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Rejected proposals of the model that readers of a PRISM memory miss."""

    #: "no_room": the memory is full; "invalid": three or more steps in a row had more proposals
    #: rejected than accepted.
    kind: LossKind
    count: int
    #: Steps that rejected them, and the first position of the first one.
    steps: int
    since_position: int
    #: What happened and what to do.
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A stored reply to a query."""

    id: str
    query: str
    #: "abandoned": all callers have left; `resume_answer` continues it.
    state: OperationState
    #: Empty when there is no answer.
    text: str
    citations: tuple[Citation, ...]
    #: What was read.
    read_point: ReadPoint
    #: The model that wrote it. "offline/extractive" is no language model.
    model: str
    #: Why there is no answer, or why it was abandoned: one sentence.
    cause: str
    usage: Usage
    created_at: datetime
    #: The error of a failed answer, as `ask` raises it; else None.
    error: PalimpsestError | None = None
    #: Why there is no answer; None when there is one.
    no_answer: NoAnswer | None = None
    #: For complete answers from a tree.
    statistics: NavigationStatistics | None = None
    session: str = ""
    #: The memory that was asked; empty: the session itself.
    memory: str = ""
    #: The requested reader; None for answers of older releases.
    reader: Reader | None = None
    #: The choice of the automatic reader, once it is made.
    choice: Choice | None = None
    #: The answer as JSON, by the requested schema; None without one and for JSON's null, which
    #: `has_value` distinguishes.
    value: Any = None
    has_value: bool = False
    #: None before it is rated.
    rating: Rating | None = None
    #: What the memory has lost by now; empty when all is well.
    losses: tuple[Loss, ...] = ()
    #: Whether the option was chosen although nothing in the text supports it.
    guessed: bool = False
    #: Whether the model's reply reached its limit: `text` is the beginning of the answer, followed
    #: by " …".
    truncated: bool = False
    #: Chunks beyond the limit of the reader, which did not read them; DCISO still reads those that
    #: retrieval returns. None: there are none.
    left_out: PositionRange | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingExample:
    """A move of a navigation or a browsing that found an answer, for training."""

    #: The answer's id.
    answer: str
    #: The event of the trajectory.
    ordinal: int
    #: Name and version of the prompt's template.
    template: str
    #: A prompt and its reply.
    messages: tuple[ChatMessage, ...]
    #: The rating of the answer; None before it is rated.
    rating: "Rating | None" = None
