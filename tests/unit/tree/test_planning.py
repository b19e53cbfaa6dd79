"""Plans of trees: nodes are made in any order, and stored as a tree at any time."""

from hypothesis import given
from hypothesis import strategies as st

from service.domain.tree.nodes import Node, SummarySource, TextOffset
from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.segmenting import Cut
from service.domain.tree.summarizing import Summary


def cut(number: int) -> Cut:
    """Returns the text of the chunk at position `number`."""
    return Cut(
        start=TextOffset(number), end=TextOffset(number + 1), text=f"text {number}", tokens=10
    )


def finish(plan: TreePlan, planned: Planned) -> None:
    plan.finish(planned, Summary(text=planned.name, made=SummarySource.MODEL, tokens=1))


def stored(plan: TreePlan) -> list[Node]:
    """Stores what can be."""
    ready = plan.storable()
    plan.stored(len(ready))
    return [one.node for one in ready if one.node is not None]


@given(
    leaves=st.integers(0, 60),
    max_children=st.integers(2, 6),
    moves=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), max_size=40),
    closes=st.booleans(),
)
def test_what_is_stored_is_a_tree_whatever_is_made_first(
    leaves: int, max_children: int, moves: list[tuple[int, int]], closes: bool
) -> None:
    plan = TreePlan((), (), (), max_children=max_children)
    plan.add([cut(number) for number in range(1, leaves + 1)])
    if closes:
        plan.close()
    there: dict[tuple[int, int], Node] = {}
    making: list[Planned] = []
    for begin, end in [*moves, *[(7, 0)] * (3 * leaves)]:
        for _ in range(begin):
            planned = plan.next()
            making += [] if planned is None else [planned]
        if making:
            finish(plan, making.pop(end % len(making)))
        for node in stored(plan):
            before = there.get((node.level, node.number - 1))
            assert node.number == 1 or before is not None
            assert node.start == (before.end if before else TextOffset(1))
            for number in range(node.first_child, node.first_child + node.children):
                assert (node.level - 1, number) in there
            there[node.level, node.number] = node
    assert (plan.unstored, plan.leaves) == (0, 0)
    assert sum(level == 0 for level, _ in there) == leaves
    if closes and leaves:
        root = max(there)
        assert root[1] == 1
        assert (there[root].end, there[root].text_tokens) == (TextOffset(leaves + 1), 10 * leaves)


@given(leaves=st.integers(1, 40), max_children=st.integers(2, 5), taken=st.integers(0, 80))
def test_a_plan_goes_on_where_another_one_was_left(
    leaves: int, max_children: int, taken: int
) -> None:
    whole = made_of(TreePlan((), (), (), max_children=max_children), leaves, 10_000)
    begun = made_of(TreePlan((), (), (), max_children=max_children), leaves, taken)
    levels = max((node.level for node in begun), default=-1) + 1
    nodes = [sum(node.level == level for node in begun) for level in range(levels)]
    grouped = [
        sum(node.children for node in begun if node.level == level + 1) for level in range(levels)
    ]
    tops = [node for node in begun if node.number > grouped[node.level]]
    again = TreePlan(nodes, grouped, tops, max_children=max_children)
    rest = made_of(again, leaves, 10_000, first=nodes[0] + 1 if nodes else 1)
    by_name = {node.node_id: node for node in [*begun, *rest]}
    assert by_name == {node.node_id: node for node in whole}
    assert len(by_name) == len(begun) + len(rest)


def made_of(plan: TreePlan, leaves: int, most: int, first: int = 1) -> list[Node]:
    """Returns the first nodes of a plan over so many leaves, made one after the other."""
    plan.add([cut(number) for number in range(first, leaves + 1)])
    plan.close()
    found: list[Node] = []
    while len(found) < most and (planned := plan.next()) is not None:
        finish(plan, planned)
        found += stored(plan)[: most - len(found)]
    return found


def test_parents_are_made_before_leaves() -> None:
    plan = TreePlan((), (), (), max_children=2)
    plan.add([cut(number) for number in range(1, 8)])
    first = [plan.next() for _ in range(2)]
    for planned in first:
        assert planned is not None
        finish(plan, planned)
    after = plan.next()
    assert after is not None
    assert (after.name, [child.summary for child in plan.children(after)]) == (
        "1.1",
        ["0.1", "0.2"],
    )


def test_leaves_that_belong_together_are_stored_together() -> None:
    plan = TreePlan((), (), (), max_children=4)
    plan.add([cut(1)])
    plan.add([cut(2), cut(3)], together=True)
    one, two, three = (plan.next() for _ in range(3))
    assert one is not None
    assert two is not None
    assert three is not None
    finish(plan, one)
    finish(plan, two)
    assert [node.number for node in stored(plan)] == [1]
    finish(plan, three)
    assert [node.number for node in stored(plan)] == [2, 3]


def test_what_is_stored_before_a_node_that_failed_can_be_made_alone() -> None:
    plan = TreePlan((), (), (), max_children=2)
    plan.add([cut(number) for number in range(1, 6)])
    leaves = [plan.next() for _ in range(4)]
    assert [leaf and leaf.name for leaf in leaves] == ["0.1", "0.2", "0.3", "0.4"]
    for leaf in leaves[:2]:
        assert leaf is not None
        finish(plan, leaf)
    failed = leaves[3]
    assert failed is not None
    before = plan.next_before(failed.order)
    assert before is not None
    assert before.name == "1.1"
    assert plan.next_before(failed.order) is None
    plan.put_back(failed)
    assert plan.next() is failed
