"""What navigation looks up in a tree."""

from dataclasses import dataclass

from service.domain.prompting.flows import Fetch


@dataclass(frozen=True, kw_only=True, slots=True)
class Children(Fetch):
    """The children of a node, in the order of the text. Its reply is a tuple of View."""

    node_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Fetch):
    """The text under a leaf or a piece of the tail. Its reply is a str."""

    node_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BestLeaves(Fetch):
    """The leaves and pieces of the tail whose text fits a question best.

    Its reply is a tuple of paths, best first: each a tuple of View from a child of the root
    down to the leaf.
    """

    query: str
    #: 1 to 32.
    count: int
