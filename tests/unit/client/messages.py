"""Messages as clients of models write them, and what `session.remember` makes of them."""

from typing import Any, cast

import palimpsest
from palimpsest._conversations import Conversation, conversation_of
from palimpsest._convert_chunks import chunk
from palimpsest.v1 import chunks_pb2


def conversation(messages: Any, **labels: Any) -> Conversation:
    return conversation_of(messages, cast(palimpsest.ChunkLabels, labels))


def said(messages: Any, **labels: Any) -> list[Any]:
    """Returns a tuple for each chunk: role and text, or thought, action and observation."""
    return [shown(one) for one in conversation(messages, **labels).chunks]


def shown(message: chunks_pb2.Chunk) -> Any:
    one = chunk(message)
    if one.kind == "agent_step":
        return (one.thought, one.action, one.observation)
    return (one.role, one.text) if one.kind == "message" else one.text


def call(name: str, arguments: Any, id: str = "") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(content: Any, id: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def text(words: str, type: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": type, "text": words, **more}
