"""Exploring: which nodes of a tree are visited next, and which are done with.

The order is depth first by promise. The open nodes stand in a line, the most promising
first. A node that names children waits, and they take its place in the line. When none of
them is open or waits any more, it takes theirs and is asked again; a node that goes back
up, or has no child left, is refuted and never visited again. With one node at a time
that is the paper's walk: down to the child, and up to its parent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.domain.access.trust import Trust
from service.domain.prompting.flows import ModelReply
from service.domain.tree.nodes import NodeView

#: Ways from the root to a leaf that an exploration may take calls for …
WAYS = 4
#: … and calls besides. Together with the ways they read all of a small tree, eight leaves below one
#: root, and leave one call for reading leaves together.
SPARE_CALLS = 9


def most_calls(depth: int, *, beam: int, first_leaves: int) -> int:
    """Returns the model calls after which a navigation ends; `depth` is the root's level.

    It rises with the depth of a tree, not with its leaves: a question that no single leaf answers
    would have all of them read. Going down takes `depth` + 1 calls, the leaf's included,
    and going back up at most as many. `first_leaves` are read before it goes down.
    """
    return beam * WAYS * (depth + 1) + first_leaves + SPARE_CALLS


@dataclass(slots=True, eq=False)
class VisitedNode:
    """A node where the navigation has been, or is to go."""

    view: NodeView
    parent: "VisitedNode | None" = None
    #: In the order of the text, once they were looked up.
    children: "tuple[VisitedNode, ...] | None" = None
    #: Text of a leaf, once it was read.
    text: str | None = None
    trust: Trust = Trust.TRUSTED
    #: How often in a row the model is asked here; 1 to 3, and what was wrong the last time.
    attempt: int = 1
    fault: str = ""
    #: The last reply here, where it was no use.
    reply: ModelReply | None = None
    #: The working memory of what is below it, once the model has shortened it.
    shortened: tuple[str, ...] | None = None

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.view.node_id

    @property
    def depth(self) -> int:
        """Steps down from the root."""
        return 0 if self.parent is None else self.parent.depth + 1

    def carried(self) -> tuple[str, ...]:
        """Returns the working memory here, from the root down.

        The summaries of the nodes that were passed on the way. The root's is about all, and
        only a text right below it has nothing nearer; a node's own adds nothing to those of
        its children.
        """
        parent = self.parent
        if parent is None or (parent.parent is None and not self.view.is_leaf):
            return ()
        return parent.handed_down()

    def handed_down(self) -> tuple[str, ...]:
        """Returns the working memory of what is below this node."""
        if self.shortened is not None:
            return self.shortened
        own = self.view.summary
        return (*self.carried(), own) if own.strip() else self.carried()


@dataclass(slots=True)
class Exploration:
    """What of a tree was visited, and what comes next."""

    root: VisitedNode
    #: What can be visited, the most promising first.
    line: list[VisitedNode] = field(default_factory=list)
    #: Ids of nodes that named children which are not done with.
    waiting: set[str] = field(default_factory=set)
    #: Ids of nodes that cannot have the answer.
    refuted: set[str] = field(default_factory=set)
    _spots: dict[str, VisitedNode] = field(default_factory=dict)

    def spot(self, view: NodeView, parent: VisitedNode) -> VisitedNode:
        """Returns the spot of a node below `parent`; always the same for the same node."""
        return self._spots.setdefault(view.node_id, VisitedNode(view, parent))

    def begin(self, *spots: VisitedNode) -> None:
        """Visits these next."""
        self.line[:0] = spots

    def closed(self, spot: VisitedNode) -> tuple[int, ...]:
        """Numbers of a node's children that are refuted, from 0."""
        ids = enumerate(spot.view.children)
        return tuple(number for number, one in ids if one in self.refuted)

    def enter(self, spot: VisitedNode, targets: Sequence[VisitedNode]) -> None:
        """Goes from an open node to children of it, none of which is refuted."""
        at = self.line.index(spot)
        self.line[at : at + 1] = targets
        self.waiting.add(spot.node_id)

    def refute(self, spot: VisitedNode) -> None:
        """Closes an open node; where that leaves nothing of its parent, the parent too."""
        at = self.line.index(spot)
        del self.line[at]
        self.refuted.add(spot.node_id)
        while (parent := spot.parent) is not None:
            if len(self.closed(parent)) < len(parent.view.children):
                if parent.node_id in self.waiting and not self._is_pending(parent):
                    self.waiting.discard(parent.node_id)
                    self.line.insert(at, parent)
                return
            self.waiting.discard(parent.node_id)
            self.refuted.add(parent.node_id)
            spot = parent

    def _is_pending(self, spot: VisitedNode) -> bool:
        """Returns whether a child of it is open or waits."""
        children = set(spot.view.children)
        return bool(children & self.waiting) or any(one.node_id in children for one in self.line)
