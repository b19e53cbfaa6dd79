"""Shows readers a tree that is not closed yet.

The nodes without a parent and the text that is not summarized are under a root that is
made up for the reader; no model is asked for it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.domain.prompting.cutting import shortened
from service.domain.tree.nodes import Node, NodeView
from service.domain.tree.segmenting import Cut
from service.domain.tree.spec import TreeSpec

ROOT = "root"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """A root and the views that it is made of."""

    root: NodeView
    #: By id: the root, the made-up nodes, the tops and the tail. Not what is under the tops.
    views: Mapping[str, NodeView]


def over(
    tops: Sequence[NodeView],
    tail: Sequence[NodeView],
    *,
    max_children: int,
    summary_tokens: int,
    count: Callable[[str], int],
) -> Forest | None:
    """Returns the forest of the nodes without a parent and the pieces of the tail.

    Both in the order of the text. One alone is its own root. None: there is no text.
    """
    row = [*tops, *tail]
    if not row:
        return None
    views = {view.node_id: view for view in row}
    # Levels never rise from left to right: what comes last has had the least time to grow.
    run_level = row[-1].level
    while len(row) > max_children:
        begin = next(at for at, view in enumerate(row) if view.level <= run_level)
        run_level += 1
        if len(row) - begin > 1:
            groups = _groups(row[begin:], max_children)
            made = [
                _parent(f"v{run_level}.{number}", group, summary_tokens, count)
                # With two children a node, one may be left over.
                if len(group) > 1
                else group[0]
                for number, group in enumerate(groups, 1)
            ]
            row[begin:] = made
            views |= {view.node_id: view for view in made}
    root = row[0] if len(row) == 1 else _parent(ROOT, row, summary_tokens, count)
    return Forest(root=root, views={**views, root.node_id: root})


def forest_of(
    tops: Sequence[NodeView], tail: Sequence[Cut], spec: TreeSpec, count: Callable[[str], int]
) -> Forest | None:
    """Returns all levels under one root; None when there is no text.

    Both in the order of the text.
    """
    return over(
        tops,
        tail_views(tail, spec.summary_tokens, count),
        max_children=spec.max_children,
        summary_tokens=spec.summary_tokens,
        count=count,
    )


def view_of(node: Node) -> NodeView:
    """Returns a stored node as a reader meets it."""
    numbers = range(node.first_child, node.first_child + node.children)
    return NodeView(
        node_id=node.node_id,
        level=node.level,
        summary=node.summary,
        children=tuple(f"{node.level - 1}.{number}" for number in numbers),
        start=node.start,
        end=node.end,
        text_tokens=node.text_tokens,
        is_stored=True,
    )


def tail_views(
    cuts: Sequence[Cut], summary_tokens: int, count: Callable[[str], int]
) -> list[NodeView]:
    """Returns the pieces of the tail (`Segmenter.finish`): "t.1", "t.2" …"""
    return [
        NodeView(
            node_id=f"t.{number}",
            level=0,
            summary=shortened(cut.text, summary_tokens, count),
            children=(),
            start=cut.start,
            end=cut.end,
            text_tokens=cut.tokens,
            is_stored=False,
        )
        for number, cut in enumerate(cuts, 1)
    ]


def _groups(run: Sequence[NodeView], max_children: int) -> Iterator[Sequence[NodeView]]:
    """Yields as few groups as may be, of sizes within one of each other."""
    count = -(-len(run) // max_children)
    least, larger = divmod(len(run), count)
    begin = 0
    for number in range(count):
        end = begin + least + (number < larger)
        yield run[begin:end]
        begin = end


def _parent(
    node_id: str, children: Sequence[NodeView], summary_tokens: int, count: Callable[[str], int]
) -> NodeView:
    """Makes up a node over others."""
    share = max(1, summary_tokens // len(children))
    summaries = (shortened(child.summary, share, count) for child in children)
    summary = "\n".join(summary for summary in summaries if summary)
    return NodeView(
        node_id=node_id,
        level=max(child.level for child in children) + 1,
        summary=shortened(summary, summary_tokens, count),
        children=tuple(child.node_id for child in children),
        start=children[0].start,
        end=children[-1].end,
        text_tokens=sum(child.text_tokens for child in children),
        is_stored=False,
    )
