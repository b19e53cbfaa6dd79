"""Navigating a state memory: its levels as the navigation of trees meets them.

An episode's children are its child vectors, and a vector of steps holds the text of the
steps that it was the first to compress. What no episode has is on top, the recent steps
after it. Ids: "2.17" (level.revision) of a vector, "1.12.3" of a piece of the text under
one that is longer than a leaf, "1.12.v1.2" of a node that is made up over such pieces;
others as `service.domain.tree.forest` has them.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.vectors import STEPS_LEVEL, StateVector
from service.domain.tree.forest import forest_of
from service.domain.tree.nodes import NodeView, TextOffset
from service.domain.tree.segmenting import Cut
from service.domain.tree.spec import TreeSpec


def vector_id(level: int, revision: int) -> str:
    """Returns the id of a vector's node."""
    return f"{level}.{revision}"


def revision_of(node_id: str) -> int:
    """Returns the revision of the vector that a node is, or is under. Raises ValueError."""
    return int(node_id.split(".")[1])


def vector_view(vector: StateVector, *, text_bytes: int) -> NodeView:
    """Returns a vector as a reader meets it; `text_bytes` is the size of the steps under it."""
    below = vector.level - 1
    return NodeView(
        node_id=vector_id(vector.level, vector.revision),
        level=vector.level,
        summary=vector.text,
        children=tuple(vector_id(below, child) for child in vector.children),
        start=TextOffset(vector.from_position + 1),
        end=TextOffset(vector.to_position + 1),
        text_tokens=-(-text_bytes // 4),
        is_stored=True,
    )


def divided(
    view: NodeView, cuts: Sequence[Cut], spec: TreeSpec
) -> tuple[NodeView, dict[str, NodeView]]:
    """Returns a vector of steps over the pieces of its text, and all that is under it, by id.

    One piece, and the vector is a leaf.
    """
    assert view.level == STEPS_LEVEL, "others have children of their own"
    forest = forest_of((), cuts, spec, estimate_tokens)
    if forest is None or forest.root.is_leaf:
        return view, {}

    def named(node_id: str) -> str:
        return f"{view.node_id}.{node_id.removeprefix('t.')}"

    under = {
        named(one.node_id): replace(
            one,
            node_id=named(one.node_id),
            children=tuple(map(named, one.children)),
            # Steps and vectors never change, and so neither does how they are cut.
            is_stored=True,
        )
        for one in forest.views.values()
        if one is not forest.root
    }
    return replace(view, children=tuple(map(named, forest.root.children))), under
