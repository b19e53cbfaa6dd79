"""Memories of all kinds, their settings and history, to and from the proto's messages."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest._convert import (
    if_set,
    known_name,
    moment,
    value_of,
)
from palimpsest._convert import number_of as _number_of
from palimpsest._convert_info import memory as info
from palimpsest._convert_log import chunk
from palimpsest._values_memories import (
    ChatMessage,
    ContextForm,
    Freshness,
    Made,
    MemoryInfo,
    RecentStep,
    StateVector,
    TextPart,
    TreeLevel,
    TreeNode,
    TreeOutline,
    TreeTail,
    VectorMade,
    WorkingContext,
)
from palimpsest.v1 import memories_pb2 as v1
from palimpsest.v1alpha1 import (
    memories_pb2,
    states_pb2,
    trees_pb2,
)

_Context = states_pb2.GetWorkingContextRequest

FRESHNESS: dict[Freshness, Any] = {
    "latest": _Context.FRESHNESS_LATEST,
    "wait": _Context.FRESHNESS_WAIT,
}
FORMS: dict[ContextForm, Any] = {
    "parts": _Context.FORM_PARTS,
    "text": _Context.FORM_TEXT,
    "messages": _Context.FORM_MESSAGES,
}


_TABLES: dict[str, Mapping[Any, Any]] = {"freshness": FRESHNESS, "form": FORMS}


def number_of(setting: str, given: object) -> Any:
    """Returns what the proto calls a setting's value. Raises ValueError."""
    return _number_of(setting, _TABLES[setting], given)


#: Fields of version 1 by their names in v1alpha1.
_NAMES = {"name": "id", "operations": "allowed_ops", "create_time": "created_at", "time": "since"}
_NAMES |= {"resting": "idle", "stall": "blocked"}


def copied(message: Message, into: Any) -> Any:
    """Copies fields of a message into one of the other version; returns that."""
    known = into.DESCRIPTOR.fields_by_name
    for field, value in message.ListFields():
        name = _NAMES.get(field.name, field.name)
        if name not in known:
            continue
        if isinstance(value, Timestamp | Duration):
            getattr(into, name).CopyFrom(value)
        elif isinstance(value, Message):
            getattr(into, name).SetInParent()
            copied(value, getattr(into, name))
        elif hasattr(value, "append") and field.message_type is not None:
            for one in value:
                copied(one, getattr(into, name).add())
        elif hasattr(value, "append"):
            getattr(into, name).extend(value)
        else:
            setattr(into, name, value)
    return into


def memory(message: memories_pb2.Memory) -> MemoryInfo:
    """Returns a memory of v1alpha1."""
    new: v1.Memory = copied(message, v1.Memory())
    for status, cause in (
        (v1.Memory.STATUS_WAITING, message.waiting_cause),
        (v1.Memory.STATUS_OVER_BUDGET, message.held_reason),
    ):
        if cause and message.status == memories_pb2.Memory.STATUS_ACTIVE:
            new.status, new.blocked.cause = status, cause
    return info(new)


_MADE: dict[Made, Any] = {
    "model": trees_pb2.TreeNode.MADE_MODEL,
    "joined": trees_pb2.TreeNode.MADE_JOINED,
    "cut": trees_pb2.TreeNode.MADE_CUT,
    "skipped": trees_pb2.TreeNode.MADE_SKIPPED,
}
_VECTORS_MADE: dict[VectorMade, Any] = {
    "task": states_pb2.StateVector.MADE_TASK,
    "model": states_pb2.StateVector.MADE_MODEL,
    "cut": states_pb2.StateVector.MADE_CUT,
    "skipped": states_pb2.StateVector.MADE_SKIPPED,
}


def tree_node(message: trees_pb2.TreeNode) -> TreeNode:
    """Returns a node of a tree."""
    return value_of(
        TreeNode,
        message,
        made=known_name(_MADE, message.made),
        created_at=moment(message.create_time),
    )


def tree_outline(message: trees_pb2.GetTreeResponse) -> TreeOutline:
    """Returns the outline of a tree."""
    return value_of(
        TreeOutline,
        message,
        info=memory(message.memory),
        levels=tuple(value_of(TreeLevel, one) for one in message.levels),
        tops=tuple(tree_node(one) for one in message.tops),
        tail=if_set(message, "tail", lambda tail: value_of(TreeTail, tail)),
    )


def text_part(message: trees_pb2.GetNodeTextResponse.Part) -> TextPart:
    """Returns a part of the text under a node."""
    return value_of(TextPart, message)


def state_vector(message: states_pb2.StateVector, created: Timestamp | None = None) -> StateVector:
    """Returns a state vector, and when it was committed."""
    return value_of(
        StateVector,
        message,
        made=known_name(_VECTORS_MADE, message.made),
        created_at=None if created is None else moment(created),
    )


def working_context(message: states_pb2.GetWorkingContextResponse) -> WorkingContext:
    """Returns a working context."""
    return value_of(
        WorkingContext,
        message,
        vectors=tuple(state_vector(one) for one in message.vectors),
        recent=tuple(
            RecentStep(chunk=chunk(one.chunk), tokens=one.tokens) for one in message.recent
        ),
        messages=tuple(value_of(ChatMessage, one) for one in message.messages),
    )
