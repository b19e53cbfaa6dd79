"""What a reader meets before a tree is closed: a root over all that has no parent."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.cutting import shortened
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.forest import Forest, over, tail_views, view_of
from service.domain.tree.growth import GrowingLevels
from service.domain.tree.nodes import Node, NodeView, SummarySource, TextOffset
from service.domain.tree.segmenting import Cut

TOKENS = 60


def node(level: int, number: int, first_child: int = 0, children: int = 0) -> Node:
    return Node(
        level=level,
        number=number,
        first_child=first_child,
        children=children,
        start=TextOffset(number),
        end=TextOffset(number + 1),
        summary=f"This is what {level}.{number} says. It is a summary of some length.",
        made=SummarySource.MODEL,
        text_tokens=10,
        summary_tokens=15,
    )


def cuts(count: int) -> list[Cut]:
    return [
        Cut(start=TextOffset(100 + n), end=TextOffset(101 + n), text=f"Tail {n}. " * 60, tokens=150)
        for n in range(count)
    ]


def tops_of(leaves: int, max_children: int) -> list[NodeView]:
    """Returns the nodes without a parent of a tree that grows."""
    nodes, grouped = [leaves], [0]
    parents: dict[tuple[int, int], Node] = {}
    for group in GrowingLevels(nodes, grouped, max_children).due():
        if group.level == len(nodes):
            nodes.append(0)
            grouped.append(0)
        nodes[group.level] += 1
        grouped[group.level - 1] += group.children
        parents[group.level, group.number] = node(
            group.level, group.number, group.first_child, group.children
        )
    return [
        view_of(parents.get((level, number)) or node(level, number))
        for level in reversed(range(len(nodes)))
        for number in range(grouped[level] + 1, nodes[level] + 1)
    ]


def forest(tops: Sequence[NodeView], tail: Sequence[NodeView], max_children: int) -> Forest:
    made = over(tops, tail, max_children=max_children, summary_tokens=TOKENS, count=estimate_tokens)
    assert made is not None
    return made


def row_under(found: Forest, ids: set[str]) -> list[str]:
    """Returns the ids at the bottom of what was made up, in the order of the text."""

    def under(view: NodeView) -> list[str]:
        if view.node_id in ids:
            return [view.node_id]
        return [one for child in view.children for one in under(found.views[child])]

    return under(found.root)


@given(leaves=st.integers(0, 2000), tail=st.integers(0, 3), width=st.integers(2, 32))
def test_the_root_stands_over_all_text_in_its_order(leaves: int, tail: int, width: int) -> None:
    tops = tops_of(leaves, width)
    pieces = tail_views(cuts(tail), TOKENS, estimate_tokens)
    if not tops and not pieces:
        return
    found = forest(tops, pieces, width)
    ids = [view.node_id for view in [*tops, *pieces]]
    assert row_under(found, set(ids)) == ids
    assert found.views[found.root.node_id] == found.root
    made = [view for name, view in found.views.items() if name not in ids]
    for view in made:
        assert not view.is_stored
        assert 2 <= len(view.children) <= width
        children = [found.views[child] for child in view.children]
        assert view.level > max(child.level for child in children)
        assert (view.start, view.end) == (children[0].start, children[-1].end)
        assert view.text_tokens == sum(child.text_tokens for child in children)
        assert estimate_tokens(view.summary) <= TOKENS
    # The groups of a level are of about the same size.
    for level in {view.level for view in made}:
        sizes = [len(v.children) for v in made if v.level == level and v.node_id[0] == "v"]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_without_text_there_is_no_forest() -> None:
    assert over([], [], max_children=8, summary_tokens=TOKENS, count=estimate_tokens) is None


def test_one_node_or_one_piece_is_its_own_root() -> None:
    (piece,) = tail_views(cuts(1), TOKENS, estimate_tokens)
    assert forest([], [piece], 8).root == piece
    root = view_of(node(2, 1, 1, 3))
    found = forest([root], [], 8)
    assert found.root == root
    assert found.root.children == ("1.1", "1.2", "1.3")
    assert found.views == {"2.1": root}


def test_few_tops_stand_under_the_root_as_they_are() -> None:
    tail = tail_views(cuts(2), TOKENS, estimate_tokens)
    found = forest(tops_of(13, 8), tail, 8)
    assert found.root.node_id == "root"
    assert found.root.children == ("1.1", "0.9", "0.10", "0.11", "0.12", "0.13", "t.1", "t.2")
    assert found.root.level == 2


def test_the_lowest_level_is_grouped_first() -> None:
    tail = tail_views(cuts(2), TOKENS, estimate_tokens)
    found = forest(tops_of(19, 8), tail, 8)
    assert found.root.children == ("1.1", "v1.1", "v1.2")
    assert found.views["v1.1"].children == ("0.9", "0.10", "0.11", "0.12", "0.13", "0.14", "0.15")
    assert found.views["v1.2"].children == ("0.16", "0.17", "0.18", "0.19", "t.1", "t.2")


def test_a_lone_leaf_stands_beside_those_above_it() -> None:
    tops = [*(view_of(node(1, n, 2 * n - 1, 2)) for n in range(1, 5)), view_of(node(0, 9))]
    found = forest(tops, [], 4)
    assert found.root.children == ("v2.1", "v2.2")
    assert found.views["v2.2"].children == ("1.4", "0.9")


def test_a_made_up_summary_has_an_equal_share_of_each_child() -> None:
    found = forest(tops_of(3, 8), [], 8)
    assert found.root.summary == (
        "This is what 0.1 says. It is a summary of some length.\n"
        "This is what 0.2 says. It is a summary of some length.\n"
        "This is what 0.3 says. It is a summary of some length."
    )
    found = forest(tops_of(6, 8), [], 8)
    assert found.root.summary.splitlines() == [f"This is what 0.{n} says. …" for n in range(1, 7)]


def test_the_tail_is_shown_by_its_beginning() -> None:
    first, second = tail_views(cuts(2), 16, estimate_tokens)
    assert (first.node_id, second.node_id) == ("t.1", "t.2")
    assert first.summary == "Tail 0. Tail 0. Tail 0. Tail 0. Tail 0. Tail 0. Tail 0. …"
    assert first.is_leaf
    assert (first.start, first.end, first.text_tokens) == (TextOffset(100), TextOffset(101), 150)


@given(
    text=st.text(max_size=300) | st.lists(st.sampled_from(["a. ", "wo ", "市。"])).map("".join),
    most=st.integers(1, 40),
)
def test_a_shortened_text_is_its_beginning_and_fits(text: str, most: int) -> None:
    short = shortened(text, most, estimate_tokens)
    assert estimate_tokens(short) <= most
    if short != text:
        assert text.lstrip().startswith(short.removesuffix("…").rstrip())
        assert short.endswith("…")
        assert estimate_tokens(text) > most or len(text) > 8 * most


@pytest.mark.parametrize(
    ("text", "most", "short"),
    [
        ("Short.", 5, "Short."),
        ("He came. She went away.", 5, "He came. She …"),
        ("He really came. She went away.", 5, "He really came. …"),
        ("我今天去了市場。那裡有很多人！", 9, "我今天去了市場。 …"),
        ("It is 3.1415926 here.", 4, "It is …"),
        ("x" * 100, 5, "x" * 16 + " …"),
    ],
)
def test_a_text_is_shortened_at_a_sentence_or_else_at_a_word(
    text: str, most: int, short: str
) -> None:
    assert shortened(text, most, estimate_tokens) == short
