"""Trajectories as the client returns them: plain values."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from palimpsest.answer_values import Rating

#: What happened; "unknown" only where the service is newer. See answers.proto.
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
    node_id: str
    level: int
    #: The positions that it covers, both included.
    from_position: int
    to_position: int
    #: Nodes between it and the root.
    depth: int
    #: 1 to 3: how often in a row the model was asked here.
    attempt: int
    #: The children that the model saw, or the leaves that retrieval named.
    shown_ids: tuple[str, ...]
    #: Where it went.
    target_ids: tuple[str, ...]
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
    """What one navigation came to, or all of a tree together."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What was said to the model, or what it said."""

    #: "user" or "assistant".
    role: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingExample:
    """A move of a navigation or a browsing that found an answer, to train a model with."""

    answer_id: str
    #: The event of the trajectory.
    ordinal: int
    #: Name and version of the prompt's template.
    template: str
    #: A prompt and its reply.
    turns: tuple[Turn, ...]
    #: What somebody thinks of the answer; None as long as nobody said.
    rating: "Rating | None" = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns as `palimpsest trajectories export` writes them, to train a chat model."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]
