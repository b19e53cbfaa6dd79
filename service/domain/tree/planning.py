"""Planning: which nodes of a tree are made next, and which of them can be stored.

Nodes are planned in the order of the text, a parent after its last child, and stored in
that order, so that what is stored is a tree at any time. They are made in any order:
each as soon as the text or the summaries under it are there.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.domain.tree.growth import GrowingLevels, NodeGroup
from service.domain.tree.nodes import Node, TextOffset
from service.domain.tree.segmenting import Cut
from service.domain.tree.summarizing import Summary


@dataclass(kw_only=True, slots=True, eq=False)
class Planned:
    """A node that is to be made, and then to be stored."""

    #: 1, 2, 3 … in the order in which nodes are stored.
    order: int
    level: int
    number: int
    #: The text under a leaf; None for a parent.
    cut: Cut | None
    #: The children of a parent, as far as they are made; none for a leaf.
    group: NodeGroup | None
    #: Stored together with the next one, or not at all.
    with_next: bool = False
    #: Children that are not made yet.
    missing: int = 0
    node: Node | None = None

    @property
    def name(self) -> str:
        """Its id within the tree."""
        return f"{self.level}.{self.number}"

    def __lt__(self, other: "Planned") -> bool:
        # Parents first: new leaves wait until the text before them can be found by the tree.
        return (-self.level, self.order) < (-other.level, other.order)


class TreePlan:
    """The nodes of one tree that are planned and not stored yet."""

    def __init__(
        self,
        nodes: Sequence[int],
        grouped: Sequence[int],
        tops: Iterable[Node],
        *,
        max_children: int,
    ) -> None:
        """Takes the stored nodes of each level: `nodes` counts them, `grouped` those that have a
        parent (the first ones), and `tops` are the others."""
        self._nodes = list(nodes) or [0]
        self._grouped = list(grouped) or [0]
        self._max_children = max_children
        self._last_order = 0
        #: Nodes that are made and have no parent that is made.
        self._made = {(top.level, top.number): top for top in tops}
        self._ready: list[Planned] = []
        self._unstored: deque[Planned] = deque()
        #: Parents that are planned, by their children that are not made.
        self._waiting: dict[tuple[int, int], Planned] = {}
        self._leaves = 0
        self._group(GrowingLevels(self._nodes, self._grouped, max_children).due())

    @property
    def leaves(self) -> int:
        """Leaves that are planned and not stored."""
        return self._leaves

    @property
    def unstored(self) -> int:
        """Nodes that are planned and not stored."""
        return len(self._unstored)

    def add(self, cuts: Sequence[Cut], *, together: bool = False) -> None:
        """Plans the leaves of the next segments, and the parents that are due with them.

        With `together` the leaves are stored in one piece: cut elsewhere, the same text
        would make others.
        """
        for cut in cuts:
            self._nodes[0] += 1
            leaf = self._append(0, self._nodes[0], cut=cut)
            leaf.with_next = together and cut is not cuts[-1]
            self._leaves += 1
            heapq.heappush(self._ready, leaf)
            if not leaf.with_next:
                self._group(GrowingLevels(self._nodes, self._grouped, self._max_children).due())

    def close(self) -> None:
        """Plans all parents that are left up to the root, since no text follows."""
        self._group(GrowingLevels(self._nodes, self._grouped, self._max_children).closing())

    def next(self) -> Planned | None:
        """Claims the next node to be made for the caller; None while there is none."""
        return heapq.heappop(self._ready) if self._ready else None

    def next_before(self, order: int) -> Planned | None:
        """Does the same among the nodes that are stored before the one of that order."""
        found = min((one for one in self._ready if one.order < order), default=None)
        if found is not None:
            self._ready.remove(found)
            heapq.heapify(self._ready)
        return found

    def put_back(self, planned: Planned) -> None:
        """Gives back a node of `next` that was not made."""
        heapq.heappush(self._ready, planned)

    def children(self, parent: Planned) -> list[Node]:
        """Returns the children of a parent that is to be made, in the order of the text."""
        assert parent.group is not None, "a leaf has no children"
        first = parent.group.first_child
        return [
            self._made[parent.level - 1, number]
            for number in range(first, first + parent.group.children)
        ]

    def finish(self, planned: Planned, summary: Summary) -> None:
        """Takes the summary of a node that was to be made."""
        planned.node = self._node(planned, summary)
        key = (planned.level, planned.number)
        self._made[key] = planned.node
        parent = self._waiting.pop(key, None)
        if parent is not None:
            parent.missing -= 1
            if not parent.missing:
                heapq.heappush(self._ready, parent)

    def storable(self) -> list[Planned]:
        """Returns the made nodes that can be stored now, in their order."""
        found: list[Planned] = []
        whole = 0
        for planned in self._unstored:
            if planned.node is None:
                break
            found.append(planned)
            if not planned.with_next:
                whole = len(found)
        return found[:whole]

    def stored(self, count: int) -> None:
        """Forgets the first `count` nodes that were storable."""
        for _ in range(count):
            self._leaves -= self._unstored.popleft().cut is not None

    def _append(
        self, level: int, number: int, *, cut: Cut | None = None, group: NodeGroup | None = None
    ) -> Planned:
        self._last_order += 1
        planned = Planned(order=self._last_order, level=level, number=number, cut=cut, group=group)
        self._unstored.append(planned)
        return planned

    def _group(self, groups: Iterable[NodeGroup]) -> None:
        for group in groups:
            below, last = group.level - 1, group.first_child + group.children - 1
            self._grouped[below] = last
            if group.level == len(self._nodes):
                self._nodes.append(0)
                self._grouped.append(0)
            self._nodes[group.level] = group.number
            parent = self._append(group.level, group.number, group=group)
            for number in range(group.first_child, last + 1):
                if (below, number) not in self._made:
                    self._waiting[below, number] = parent
                    parent.missing += 1
            if not parent.missing:
                heapq.heappush(self._ready, parent)

    def _node(self, planned: Planned, summary: Summary) -> Node:
        start, end, tokens = self._extent(planned)
        group = planned.group
        return Node(
            level=planned.level,
            number=planned.number,
            first_child=0 if group is None else group.first_child,
            children=0 if group is None else group.children,
            start=start,
            end=end,
            summary=summary.text,
            made=summary.made,
            text_tokens=tokens,
            summary_tokens=summary.tokens,
        )

    def _extent(self, planned: Planned) -> tuple[TextOffset, TextOffset, int]:
        """Returns the text under a node, and its tokens. A parent's children are dropped."""
        if planned.cut is not None:
            return planned.cut.start, planned.cut.end, planned.cut.tokens
        children = self.children(planned)
        for child in children:
            del self._made[child.level, child.number]
        tokens = sum(child.text_tokens for child in children)
        return children[0].start, children[-1].end, tokens
