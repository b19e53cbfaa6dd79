"""Trees, their nodes and the text under them, from the proto's messages."""

from typing import Any

from palimpsest._convert import (
    characters,
    if_set,
    known_name,
    moment,
    numbers_of,
    read_point,
    value_of,
)
from palimpsest._convert_memories import memory
from palimpsest._values_trees import (
    NodeOrigin,
    TextPart,
    TextRange,
    TreeLevel,
    TreeNode,
    TreeOutline,
)
from palimpsest.v1 import tree_service_pb2

_ORIGINS: dict[NodeOrigin, Any] = numbers_of(tree_service_pb2.TreeNode.Origin, "ORIGIN_")


def tree_node(message: tree_service_pb2.TreeNode) -> TreeNode:
    """Returns a node of a tree."""
    return value_of(
        TreeNode,
        message,
        text_range=value_of(TextRange, message.text_range),
        origin=known_name(_ORIGINS, message.origin),
        created_at=moment(message.created_at),
    )


def tree_outline(message: tree_service_pb2.Tree) -> TreeOutline:
    """Returns the outline of a tree."""
    return TreeOutline(
        info=memory(message.memory),
        read_point=read_point(message.read_point),
        levels=tuple(value_of(TreeLevel, one) for one in message.levels),
        tops=tuple(tree_node(one) for one in message.tops),
        tail=if_set(message, "tail", lambda tail: value_of(TextRange, tail)),
    )


def text_part(message: tree_service_pb2.GetNodeTextResponse.Part) -> TextPart:
    """Returns a part of the text under a node."""
    return value_of(TextPart, message, characters=characters(message))
