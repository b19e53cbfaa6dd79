"""Summarizing: a text, or the summaries of children, in a few tokens (table 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.domain.flows import Flow
from service.domain.tree.nodes import Made
from service.domain.tree.spec import TreeSpec


class NoSummary(Exception):
    """The model gave no summary however often it was asked; the message is one sentence."""

    #: The same prompt was asked again already.
    retryable = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A summary and where it comes from."""

    text: str
    made: Made
    #: Tokens of the text, by the `count` that was given.
    tokens: int


def summarize(
    text: str, *, spec: TreeSpec, marker_key: bytes, count: Callable[[str], int]
) -> Flow[Summary]:
    """The summary of a segment. Raises NoSummary."""
    raise NotImplementedError
    yield []


def compress(
    summaries: Sequence[str], *, spec: TreeSpec, marker_key: bytes, count: Callable[[str], int]
) -> Flow[Summary]:
    """The summary of a parent: its children's, compressed when they are too long together.

    Raises NoSummary.
    """
    raise NotImplementedError
    yield []
