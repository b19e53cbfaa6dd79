"""What a tree's prompts say, as values: for models that are not language models."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SummarizeContent:
    """A text to be summarized."""

    text: str
    #: Tokens of the summary at most; 1 or more.
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressContent:
    """Summaries to be made one that is much shorter."""

    #: In the order of the text; one or more.
    summaries: tuple[str, ...]
    #: Tokens of the summary at most; 1 or more.
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TriageContent:
    """What a triage prompt says: where to read on."""

    query: str
    #: Of the node's children, in the order of the text.
    summaries: tuple[str, ...]
    #: Numbers of the summaries that can be chosen, from 0, ascending.
    open: tuple[int, ...]
    #: Whether it can go back up.
    may_revert: bool
    #: How many it may choose at once; 1 or more.
    beam: int
    #: Whether it says why first.
    reasoning: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafContent:
    """What a leaf prompt says: a text that may answer the question."""

    query: str
    #: Of a multiple-choice question; the answer is one of them.
    options: tuple[str, ...]
    text: str
    #: The working memory; empty for none.
    notes: str
    reasoning: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberContent:
    """What the prompt says that shortens the working memory."""

    query: str
    #: The working memory, from the root down.
    notes: tuple[str, ...]
    #: What it should have at most, in tokens.
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeContent:
    """What a merge prompt says: answers of several leaves, one of which is wanted."""

    query: str
    options: tuple[str, ...]
    #: The most promising leaf's first.
    answers: tuple[str, ...]
    reasoning: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooseContent:
    """What the prompt says that has an option chosen where no answer was found."""

    query: str
    options: tuple[str, ...]
    #: Summaries of the text's parts, and what was found in those that were read.
    notes: tuple[str, ...]
    reasoning: bool
