"""The result of a navigation."""

from dataclasses import dataclass

from service.domain.answers.trajectory import NoAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Counts of a navigation (table 4, figure 4)."""

    #: Model calls.
    calls: int = 0
    #: Replies to triage and leaf prompts that were a valid action, and that were not.
    valid_actions: int = 0
    invalid_actions: int = 0
    #: How often it went back up: more than none is a stray path.
    reverts: int = 0
    #: Leaves that were read.
    leaves_read: int = 0
    #: Tokens of all prompts and replies; with those of the tree's text, the share that was read.
    tokens: int = 0
    text_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Navigation:
    """What came of a navigation."""

    #: The answer; empty when there is none.
    text: str
    #: None when there is an answer.
    no_answer: NoAnswer | None
    #: Ids of the leaves that the answer rests on, best first.
    leaves: tuple[str, ...]
    #: What the model said for it.
    reasoning: str
    statistics: Statistics
    #: Whether the answer was not found, and is the likeliest of the options.
    guessed: bool = False
