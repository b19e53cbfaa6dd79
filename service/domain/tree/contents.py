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
