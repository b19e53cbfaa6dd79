"""Trees, their nodes and the text under them, as the proto has them."""

from palimpsest.v1 import tree_service_pb2
from service.domain.tree.nodes import TextOffset
from service.rpc.convert import common, memories
from service.usecases.tree.outline import Outline
from storage.memories.memories import StoredMemory
from storage.tree.views import StoredNode, TextPart

_Node = tree_service_pb2.TreeNode
_Part = tree_service_pb2.GetNodeTextResponse.Part


def tree(stored: StoredMemory, outline: Outline, token: str) -> tree_service_pb2.Tree:
    """Returns the outline of a tree; `token` stands for what it has applied."""
    return tree_service_pb2.Tree(
        memory=memories.memory(stored),
        read_point=common.read_point(outline.revision, outline.applied_position, token),
        levels=[
            tree_service_pb2.Tree.Level(level=one.level, node_count=one.nodes)
            for one in outline.levels
        ],
        tops=[
            node(top, summary) for top, summary in zip(outline.tops, outline.summaries, strict=True)
        ],
        tail=None
        if outline.tail is None
        else _text_range(outline.tail, TextOffset(outline.applied_position + 1)),
    )


def node(stored: StoredNode, summary: str | None = None) -> tree_service_pb2.TreeNode:
    """Returns a node; `summary` is given where it is not the whole one."""
    made = stored.node
    return common.message_of(
        _Node,
        made,
        id=made.node_id,
        parent=stored.parent_id,
        children=stored.child_ids,
        text_range=_text_range(made.start, made.end),
        summary=made.summary if summary is None else summary,
        origin=made.made,
        revision=stored.revision,
        created_at=common.timestamp(stored.created_at),
    )


def part(found: TextPart) -> tree_service_pb2.GetNodeTextResponse.Part:
    """Returns a part of the text under a node."""
    return _Part(
        position=found.position,
        characters=common.characters(found.from_offset, found.to_offset),
        text=found.text,
    )


def _text_range(start: TextOffset, end: TextOffset) -> tree_service_pb2.TextRange:
    """Returns the text from `start` to before `end`."""
    return tree_service_pb2.TextRange(
        first_position=start.position,
        first_offset=start.offset,
        last_position=end.last_position,
        last_offset=end.offset,
    )
