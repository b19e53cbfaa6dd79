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
#: What the model did: down, back up, an answer, what it took of a piece of the log, a reply
#: that was none of these, nothing.
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
    #: The node that was looked at: "2.1" of a stored node, "root" and "v1.2" in place of
    #: parents that are not there yet, "t.1" of text that is not summarized yet; "p.3" of the
    #: third piece of the log as browsing reads it.
    node: str
    level: int
    #: The positions that it covers; None: none.
    positions: PositionRange | None
    #: Nodes between it and the root.
    depth: int
    #: 1 to 3: how often in a row the model was asked here.
    attempt: int
    #: The children that the model saw, or the leaves that retrieval named.
    shown: tuple[str, ...]
    #: Where it went.
    targets: tuple[str, ...]
    #: What the model said before it acted.
    reasoning: str
    #: The answer, what was wrong with an invalid reply, or the shortened working memory.
    text: str
    input_tokens: int
    #: None when the provider does not say.
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NavigationStatistics:
    """Sums over one navigation, or all of a memory together."""

    #: Complete ones; 1 for one.
    navigations: int
    answered: int
    #: Those that went back up at least once, and of these those that found an answer.
    stray: int
    stray_answered: int
    valid_actions: int
    invalid_actions: int
    reverts: int
    leaves_read: int
    calls: int
    #: Of all prompts and replies.
    tokens: int
    #: Of the text under the root when it was asked, summed.
    text_tokens: int
    #: Of the navigations, those whose answer is a guess; they are not among `answered`.
    guessed: int = 0

    @property
    def stray_ratio(self) -> float | None:
        """The share of navigations that went back up; None of none."""
        return _share(self.stray, self.navigations)

    @property
    def valid_action_rate(self) -> float | None:
        """The share of replies that were a valid action; None of none."""
        return _share(self.valid_actions, self.valid_actions + self.invalid_actions)

    @property
    def read_share(self) -> float | None:
        """Tokens of prompts and replies for each of the text; None of no text."""
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
    """How a log is to be browsed; without a field the whole method, as the service has it."""

    strategy: BrowseStrategy = "auto"
    #: Empty: all of them.
    actions: Sequence[BrowseAction] = ()
    order: BrowseOrder = "auto"
    #: Tokens of a prompt with its reply, at most: 512 to 1,000,000; 0: 4,096.
    window_tokens: int = 0
    #: Pieces that retrieval names, 1 to 100; 0: 8.
    pieces: int = 0
    #: Model calls at most, 1 to 10,000; 0: 1,000.
    max_calls: int = 0
    #: Whether a model orders what retrieval names.
    rerank: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked of a session, or of one of its memories."""

    #: At most 8 KiB.
    query: str
    #: Empty: the log itself is read, or the automatic reader chooses.
    memory: str = ""
    #: None: the one of the memory's kind; "auto" without a memory.
    reader: Reader | None = None
    #: For the readers "dciso" and "auto".
    browsing: BrowseSettings | None = None
    #: What `Answer.value` is to be: a JSON Schema as a dict or a text, a dataclass, a
    #: TypedDict or a pydantic model; None: text is enough.
    response_schema: Schema | None = None
    #: For the readers that read the log, and "auto"; empty: the service's.
    model: str = ""
    #: A token of an ack or a write that the memory must have applied.
    after: str = ""
    #: The memory must have applied everything that is in the log when the question comes.
    fully_applied: bool = False
    #: Which chunks may be cited; the readers "dciso" and "whole" also read only these. Any of
    #: these threads, none of those, any of these sources; "" stands for chunks without one.
    threads: Sequence[str] = ()
    excluded_threads: Sequence[str] = ()
    sources: Sequence[str] = ()
    #: When they occurred: from the first time to before the second.
    occurred_since: datetime | None = None
    occurred_until: datetime | None = None
    #: Keys with their values; a chunk has them all.
    metadata: Mapping[str, str] | None = None
    #: Of a multiple-choice question, 2 to 26: the answer is one of them, word for word, or there
    #: is none. `Answer.guessed` says where nothing that was read says which.
    options: Sequence[str] = ()
    #: For navigations, as `Memory.ask` has them.
    hybrid_leaves: int = 0
    beam: int = 0
    max_calls: int = 0
    navigate: bool = False
    #: Whether the text comes as it is written.
    stream: bool = False
    #: Makes the answer even when no caller waits for it. Without it, the service abandons the
    #: answer about a minute after the last caller has left.
    unattended: bool = False


class MemoryQuestionOptions(TypedDict, total=False):
    """What `Memory.ask` and `ask_all` take besides the words, as `Question` has it."""

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
    """What `Session.ask` takes of a question besides its words."""

    memory: str
    browsing: BrowseSettings | None
    model: str
    unattended: bool


class MemoryAskOptions(MemoryQuestionOptions, total=False):
    """What `Memory.ask` takes besides the question."""

    timeout: float | None
    on_event: Callable[["AskEvent"], None] | None


class ResumeOptions(TypedDict, total=False):
    """What `Session.resume_answer` takes besides the answer."""

    after_event: int
    after_text: int
    timeout: float | None
    on_event: Callable[["AskEvent"], None] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Citation:
    """A part of the log that an answer rests on."""

    #: The chunk; 0 of a node or a vector as a whole.
    position: int
    #: Characters of the chunk's text that the answer rests on; None: the chunk as a whole.
    #: common.proto says what a chunk's text is.
    characters: CharacterRange | None
    #: The value at the path, or the text of the chunk, cut.
    excerpt: str
    #: The path of the memory that it was written to; empty where no PRISM memory was read.
    path: str
    #: The revision that wrote it: the amendment, the leaf or the vector.
    revision: int
    #: The leaf of a tree, or the vector of a state memory; and the positions that it covers.
    node: str = ""
    positions: PositionRange | None = None
    #: The chunk's labels, where `position` is set.
    thread: str = ""
    source: str = ""
    occurred_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The memory has not applied yet what was asked for."""

    #: How far it is, and how far it must be.
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
    #: The pieces before it are void: the text begins anew with this one.
    restarts: bool = False


#: What `on_event` receives while a question is under way.
AskEvent = Waiting | Reading | TrajectoryEvent | TextPiece


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the automatic reader chose."""

    reader: Reader
    #: Empty when the log itself is read.
    memory: str
    #: How the log is browsed; None for other readers.
    strategy: BrowseStrategy | None
    #: One sentence.
    reason: str
    #: What it expected to spend, in tokens of prompts and replies.
    expected_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """What a user thinks of an answer."""

    good: bool
    comment: str
    #: What would have been right; empty when the user did not say.
    expected: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Proposals of the model that a PRISM memory rejected and that its readers miss."""

    #: "no_room": it is full, until there is room again; "invalid": three steps in a row or more
    #: had more proposals rejected than taken.
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
    #: "done", or how far it is. "abandoned": its callers left, and `resume_answer` continues it.
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
    #: Why it failed, as `ask` raises it; None unless it did.
    error: PalimpsestError | None = None
    #: Why there is no answer; None when there is one.
    no_answer: NoAnswer | None = None
    #: Of a complete answer from a tree.
    statistics: NavigationStatistics | None = None
    session: str = ""
    #: The memory that was asked; empty when the session itself was.
    memory: str = ""
    #: The reader that was asked for; None of answers of older releases.
    reader: Reader | None = None
    #: Of the automatic reader, once it has chosen.
    choice: Choice | None = None
    #: The answer by the schema that was asked for, as JSON has it; None without one, and where
    #: it is JSON's null: `has_value` distinguishes them.
    value: Any = None
    has_value: bool = False
    #: None as long as it is not rated.
    rating: Rating | None = None
    #: What the memory that was asked has lost by now; empty when all is well.
    losses: tuple[Loss, ...] = ()
    #: Whether it is one of the options that was chosen although nothing that was read says so.
    guessed: bool = False
    #: Whether the model's reply reached its bound: `text` is the beginning of the answer, with
    #: " …" after it.
    truncated: bool = False
    #: Chunks that the reader did not read, because there are more than it may; of these DCISO
    #: reads what retrieval names. None: it could read any.
    left_out: PositionRange | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingExample:
    """A move of a navigation or a browsing that found an answer, to train a model with."""

    #: The answer's id.
    answer: str
    #: The event of the trajectory.
    ordinal: int
    #: Name and version of the prompt's template.
    template: str
    #: A prompt and its reply.
    messages: tuple[ChatMessage, ...]
    #: What a user thinks of the answer; None as long as it is not rated.
    rating: "Rating | None" = None
