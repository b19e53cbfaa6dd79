"""Which nodes become children of a new parent, for trees of any size and width."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.tree.growth import GrowingLevels, NodeGroup

WIDTHS = st.integers(2, 32)
SIZES = st.integers(1, 3000)


class Tree:
    """Nodes and groups by level, as a memory keeps them."""

    def __init__(self, max_children: int) -> None:
        self.max_children = max_children
        self.nodes = [0]
        self.grouped = [0]
        self.groups: list[NodeGroup] = []

    def add_leaves(self, count: int) -> None:
        self.nodes[0] += count
        self._make(GrowingLevels(self.nodes, self.grouped, self.max_children).due())

    def seal(self) -> None:
        self._make(GrowingLevels(self.nodes, self.grouped, self.max_children).closing())

    def _make(self, groups: list[NodeGroup]) -> None:
        levels = [group.level for group in groups]
        assert levels == sorted(levels)
        for group in groups:
            while group.level >= len(self.nodes):
                self.nodes.append(0)
                self.grouped.append(0)
            # What it says fits what is there: the next parent, over the next children.
            assert group.number == self.nodes[group.level] + 1
            assert group.first_child == self.grouped[group.level - 1] + 1
            self.nodes[group.level] += 1
            self.grouped[group.level - 1] += group.children
            assert self.grouped[group.level - 1] <= self.nodes[group.level - 1]
        self.groups += groups

    def sizes(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for group in self.groups:
            found[group.level].append(group.children)
        return found


def grown(leaves: int, max_children: int, batch: int | None = None) -> Tree:
    tree = Tree(max_children)
    step = batch or leaves
    for begin in range(0, leaves, step):
        tree.add_leaves(min(step, leaves - begin))
    return tree


def depth_of(leaves: int, max_children: int) -> int:
    depth = 0
    while leaves > 1:
        leaves = -(-leaves // max_children)
        depth += 1
    return depth


@given(leaves=SIZES, width=WIDTHS)
def test_a_sealed_tree_has_one_root_and_the_least_depth(leaves: int, width: int) -> None:
    tree = grown(leaves, width)
    tree.seal()
    assert tree.nodes[-1] == 1
    assert tree.grouped == [*tree.nodes[:-1], 0]
    assert len(tree.nodes) - 1 == depth_of(leaves, width)


@given(leaves=SIZES, width=WIDTHS)
def test_no_group_is_small_where_its_level_is_not(leaves: int, width: int) -> None:
    tree = grown(leaves, width)
    tree.seal()
    for level, sizes in tree.sizes().items():
        least = min((width + 1) // 2, tree.nodes[level - 1])
        assert all(least <= size <= width for size in sizes)
        # The last two are about the same where they are not full.
        assert all(size == width for size in sizes[:-2])
        if len(sizes) > 1 and sizes[-2] < width:
            assert 0 <= sizes[-2] - sizes[-1] <= 1


@given(leaves=SIZES, width=WIDTHS, batch=st.integers(1, 200))
def test_leaves_that_come_by_and_by_give_the_same_tree(leaves: int, width: int, batch: int) -> None:
    at_once, by_and_by = grown(leaves, width), grown(leaves, width, batch)
    assert at_once.sizes() == by_and_by.sizes()
    at_once.seal()
    by_and_by.seal()
    never_grown = Tree(width)
    never_grown.nodes[0] = leaves
    never_grown.seal()
    assert at_once.sizes() == by_and_by.sizes() == never_grown.sizes()


@given(leaves=SIZES, width=WIDTHS)
def test_a_growing_tree_keeps_enough_for_another_group(leaves: int, width: int) -> None:
    tree = grown(leaves, width)
    least = (width + 1) // 2
    for nodes, grouped in zip(tree.nodes, tree.grouped, strict=True):
        assert nodes - grouped < width + least
        assert nodes - grouped >= least or not grouped


@given(leaves=SIZES, width=WIDTHS)
def test_a_tree_costs_little_more_than_a_call_a_leaf(leaves: int, width: int) -> None:
    tree = grown(leaves, width)
    assert len(tree.groups) <= leaves / (width - 1)
    tree.seal()
    assert len(tree.groups) <= leaves / (width - 1) + len(tree.nodes) - 1


@pytest.mark.parametrize(
    ("leaves", "width", "sizes"),
    [
        (1, 8, {}),
        (2, 8, {1: [2]}),
        (8, 8, {1: [8]}),
        (9, 8, {1: [5, 4], 2: [2]}),
        (12, 8, {1: [8, 4], 2: [2]}),
        (17, 8, {1: [8, 5, 4], 2: [3]}),
        (5, 2, {1: [2, 2, 1], 2: [2, 1], 3: [2]}),
    ],
)
def test_small_trees(leaves: int, width: int, sizes: dict[int, list[int]]) -> None:
    tree = grown(leaves, width)
    tree.seal()
    assert tree.sizes() == sizes


def test_a_sealed_tree_is_not_closed_again() -> None:
    tree = grown(100, 8)
    tree.seal()
    assert GrowingLevels(tree.nodes, tree.grouped, 8).closing() == []
    assert GrowingLevels([0], [0], 8).closing() == []


def test_a_parent_waits_for_what_could_be_a_last_child_of_its_own() -> None:
    assert GrowingLevels([11], [0], 8).due() == []
    assert GrowingLevels([12], [0], 8).due() == [
        NodeGroup(level=1, number=1, first_child=1, children=8)
    ]


def test_a_node_has_two_children_or_more() -> None:
    with pytest.raises(ValueError, match="two children or more"):
        GrowingLevels([3], [0], 1).due()
