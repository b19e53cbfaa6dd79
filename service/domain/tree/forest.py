"""The forest: how a reader meets a tree that is not closed yet.

The nodes without a parent and the text that is not summarized stand under a root that is
made up for the reader; no model is asked for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.domain.tree.nodes import Node, View
from service.domain.tree.segmenting import Cut


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """A root and the views that it is made of."""

    root: View
    #: By id: the root, the made-up nodes, the tops and the tail. Not what is under the tops.
    views: Mapping[str, View]


def over(
    tops: Sequence[View],
    tail: Sequence[View],
    *,
    max_children: int,
    summary_tokens: int,
    count: Callable[[str], int],
) -> Forest | None:
    """The forest of the nodes without a parent and the pieces of the tail.

    Both in the order of the text. One alone is its own root. None: there is no text.
    """
    raise NotImplementedError


def view_of(node: Node) -> View:
    """A stored node as a reader meets it."""
    raise NotImplementedError


def tail_views(cuts: Sequence[Cut], summary_tokens: int, count: Callable[[str], int]) -> list[View]:
    """The pieces of the tail (`Segmenter.finish`): "t.1", "t.2" …"""
    raise NotImplementedError


def shortened(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """The beginning of a text, to the end of a sentence or else of a word, and an ellipsis.

    The text itself when it has no more than `max_tokens`.
    """
    raise NotImplementedError
