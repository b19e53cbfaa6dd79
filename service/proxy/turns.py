"""Messages in three forms: words, calls of tools, and what the tools returned."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Characters that are remembered of what one call returned, and of its arguments.
MAX_RESULT_CHARACTERS = 64_000

_TEXTS = ("text", "input_text", "output_text")
#: Items of OpenAI's Responses that call a tool of the program.
_CALL_ITEMS = ("function_call", "custom_tool_call")
#: What coding agents put into the user's messages, which the user did not say.
_PROGRAMS_WORDS = re.compile(
    r"\s*<(system-reminder|environment_context|user_instructions|INSTRUCTIONS)>.*</\1>\s*",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """A call of a tool."""

    id: str
    name: str
    #: As the model wrote them, usually JSON.
    arguments: str


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """What a tool returned."""

    #: The id of its call.
    id: str
    text: str


def text_of(content: Any) -> str:
    """Returns the words of a message; results of tools, images and the like are none."""
    return "\n".join(_texts(content)).strip()


def words_of(content: Any) -> str:
    """Returns what a user said, without what the program put beside it."""
    return "\n".join(one for one in _texts(content) if not _PROGRAMS_WORDS.fullmatch(one)).strip()


def is_models(message: Any) -> bool:
    """Returns whether a message or an item is from the model."""
    if not isinstance(message, Mapping):
        return False
    if "role" in message:
        return bool(message["role"] == "assistant")
    kind = message.get("type")
    return isinstance(kind, str) and not kind.endswith("_output") and kind != "item_reference"


def uses_of(message: Any) -> list[ToolUse]:
    """Returns the calls in a message or an item; those of the provider's own tools are not."""
    if not isinstance(message, Mapping):
        return []
    if message.get("type") in _CALL_ITEMS:
        return _use(message.get("call_id"), message)
    parts = [one for one in _mappings(message.get("content")) if one.get("type") == "tool_use"]
    found = [use for part in parts for use in _use(part.get("id"), part)]
    for call in _mappings(message.get("tool_calls")):
        called = call.get("function") or call.get("custom")
        found += _use(call.get("id"), called if isinstance(called, Mapping) else {})
    return found


def outputs_of(message: Any) -> list[ToolOutput]:
    """Returns what tools returned in a message or an item."""
    if not isinstance(message, Mapping):
        return []
    kind = message.get("type")
    if message.get("role") == "tool":
        return [_output(message.get("tool_call_id"), message.get("content"))]
    if isinstance(kind, str) and kind.endswith("_call_output"):
        return [_output(message.get("call_id"), message.get("output"))]
    if message.get("role") != "user":
        return []
    parts = [one for one in _mappings(message.get("content")) if one.get("type") == "tool_result"]
    return [
        _output(one.get("tool_use_id"), one.get("content"), failed=one.get("is_error") is True)
        for one in parts
    ]


def step_messages(
    thought: str, uses: Sequence[ToolUse], outputs: Sequence[ToolOutput]
) -> list[dict[str, Any]]:
    """Returns calls and what they returned as messages that the client of the service reads."""
    results = [
        {"role": "tool", "tool_call_id": one.id, "content": _cut(one.text)} for one in outputs
    ]
    if not uses:
        return results
    calls = [
        {
            "id": one.id,
            "type": "function",
            "function": {"name": one.name, "arguments": _cut(one.arguments)},
        }
        for one in uses
    ]
    return [{"role": "assistant", "content": thought, "tool_calls": calls}, *results]


def _use(name: Any, called: Mapping[str, Any]) -> list[ToolUse]:
    given = called.get("arguments", called.get("input", ""))
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    tool = called.get("name")
    if not isinstance(tool, str) or not tool:
        return []
    return [ToolUse(id=str(name or ""), name=tool, arguments=arguments)]


def _output(name: Any, content: Any, *, failed: bool = False) -> ToolOutput:
    texts = _texts(content)
    if isinstance(content, list):
        texts += [f"[{one['type']}]" for one in _mappings(content) if _is_media(one)]
    elif isinstance(content, Mapping):
        texts = [json.dumps(content, ensure_ascii=False)]
    return ToolOutput(id=str(name or ""), text=("Error: " if failed else "") + "\n".join(texts))


def _is_media(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("type"), str) and part["type"] not in _TEXTS


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [
        one["text"]
        for one in _mappings(content)
        if one.get("type", "text") in _TEXTS and isinstance(one.get("text"), str)
    ]


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _cut(text: str) -> str:
    left = len(text) - MAX_RESULT_CHARACTERS
    return text if left <= 0 else f"{text[:MAX_RESULT_CHARACTERS]} … ({left} characters more)"
