"""What the prompts of baselines say, as values: for models that are not language models."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadContent:
    """A text to be read, and the question about it."""

    query: str
    #: Of a multiple-choice question; the answer is one of them.
    options: tuple[str, ...]
    #: In the order of the text; what lies between two of them was left out.
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CarryContent:
    """The next part of a text, and the summary of everything before it."""

    #: Empty at the beginning.
    carried: str
    text: str
    #: Tokens of the new summary at most; 1 or more.
    max_tokens: int
