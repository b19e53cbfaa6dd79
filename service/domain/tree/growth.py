"""Growth: which nodes of a tree become the children of a new parent, and when.

The tree only ever grows: what has a parent keeps it. With K = `max_children` and m = K / 2,
rounded up, the next K nodes of a level that have none get one as soon as K + m have none.
So m or more are always left, and what is left when the tree is sealed makes one group, or
two of about the same size, with no lonely last child. A level of n nodes has n / K parents,
rounded up, whenever they were made.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """A parent to be made, and its children: consecutive nodes of the level below."""

    #: Level of the parent; 1 or more.
    level: int
    #: Number of the parent on its level; 1 or more.
    number: int
    #: Number of the first child; 1 or more.
    first_child: int
    #: How many children; 1 to `max_children`.
    children: int


class GrowingLevels:
    """The levels of a tree while its groups are planned.

    `nodes` says for each level from 0 up how many there are, those counted that are planned only,
    and `grouped` how many of them have a parent, planned ones counted too. A group's own parent
    counts as planned for the levels above it.
    """

    def __init__(self, nodes: Sequence[int], grouped: Sequence[int], max_children: int) -> None:
        if max_children < 2:
            raise ValueError(f"a node has two children or more, not {max_children}")
        self._nodes = list(nodes)
        self._grouped = [*grouped, *[0] * (len(nodes) - len(grouped))]
        self._most = max_children
        #: Nodes that stay behind when a group is made, so that they can make another.
        self._kept = (max_children + 1) // 2
        self._groups: list[NodeGroup] = []

    def due(self) -> list[NodeGroup]:
        """Returns all groups that are due while the tree grows, the lowest level first."""
        level = 0
        while level < len(self._nodes):
            self._group_full(level)
            level += 1
        return self._groups

    def closing(self) -> list[NodeGroup]:
        """Returns all groups that are left to make at the seal: those that are due, and the last.

        The parent of the last group is the root; without a group the only node there is.
        """
        level = 0
        while level < len(self._nodes) and not self._is_top(level):
            self._group_full(level)
            left = self._left(level)
            if left > self._most:
                self._group(level, (left + 1) // 2)
                left = self._left(level)
            if left:
                self._group(level, left)
            level += 1
        return self._groups

    def _is_top(self, level: int) -> bool:
        above = sum(self._nodes[level + 1 :])
        return not above and self._nodes[level] <= 1

    def _left(self, level: int) -> int:
        return self._nodes[level] - self._grouped[level]

    def _group_full(self, level: int) -> None:
        while self._left(level) >= self._most + self._kept:
            self._group(level, self._most)

    def _group(self, level: int, children: int) -> None:
        if level + 1 == len(self._nodes):
            self._nodes.append(0)
            self._grouped.append(0)
        self._nodes[level + 1] += 1
        self._groups.append(
            NodeGroup(
                level=level + 1,
                number=self._nodes[level + 1],
                first_child=self._grouped[level] + 1,
                children=children,
            )
        )
        self._grouped[level] += children
