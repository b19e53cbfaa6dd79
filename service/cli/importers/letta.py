"""Reads agent files of Letta (`.af`): the form with `agents` of 2025 and 2026, and that before it.

Blocks of memory become texts, messages become messages, and calls of tools steps of an agent. What
the agent sent by `send_message` is a message. System prompts and heartbeats are left out.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from service.cli.importers.records import (
    ImportedRecord,
    UnreadableRecord,
    each,
    metadata_of,
    others,
    parts_text,
    text_of,
    timed,
)

#: The tool by which an agent speaks.
_SPEAKS = "send_message"
_MESSAGE = ("role", "content", "created_at", "tool_calls", "tool_call_id", "tool_returns", "id")


def read(value: Any) -> Iterator[ImportedRecord | UnreadableRecord]:
    """Yields the blocks and messages of each agent."""
    if not isinstance(value, Mapping):
        yield UnreadableRecord(place="", reason="it is no agent file: an object is expected")
    elif isinstance(value.get("agents"), list):
        blocks = value.get("blocks")
        named = (
            {
                one["id"]: one
                for one in blocks
                if isinstance(one, Mapping) and isinstance(one.get("id"), str)
            }
            if isinstance(blocks, list)
            else {}
        )
        for place, agent in each(value["agents"], "agents"):
            if agent is None:
                yield UnreadableRecord(place=place, reason="it is no object")
                continue
            ids = agent.get("block_ids")
            own = (
                [named.get(one) for one in ids if isinstance(one, str)]
                if isinstance(ids, list)
                else []
            )
            more = agent.get("memory_blocks")
            yield from _agent(f"{place}.", agent, [*own, *(more if isinstance(more, list) else [])])
    elif isinstance(value.get("messages"), list) and "agent_type" in value:
        blocks = value.get("core_memory")
        yield from _agent("", value, blocks if isinstance(blocks, list) else [])
    else:
        yield UnreadableRecord(
            place="", reason="it has neither `agents` nor `messages` of an agent"
        )


def _agent(
    place: str, agent: Mapping[str, Any], blocks: list[Any]
) -> Iterator[ImportedRecord | UnreadableRecord]:
    name = str(agent.get("name") or agent.get("id") or "")
    names = {"user": name, "agent": name}
    for at, block in each(blocks, f"{place}blocks"):
        try:
            if block is None:
                raise ValueError("the file does not have it")
            yield _block(at, block, names)
        except ValueError as error:
            yield UnreadableRecord(place=at, reason=str(error))
    messages = agent.get("messages")
    for at, message in each(messages if isinstance(messages, list) else [], f"{place}messages"):
        try:
            if message is None:
                raise ValueError("it is no object")
            yield from _message(at, message, names)
        except ValueError as error:
            yield UnreadableRecord(place=at, reason=str(error))


def _block(place: str, block: Mapping[str, Any], names: Mapping[str, str]) -> ImportedRecord:
    label = str(block.get("label") or "block")
    text = text_of(block.get("value"), "value")
    return ImportedRecord(
        place=place,
        # Files number their blocks anew.
        id=f"block-{label}",
        text=f"{label}: {text}" if text else "",
        source=f"block:{label}",
        **timed(block.get("created_at")),
        metadata=metadata_of(others(block, "value", "created_at", "id")),
        names=names,
    )


def _message(
    place: str, message: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[ImportedRecord]:
    role = text_of(message.get("role"), "role")
    labels: dict[str, Any] = {
        "place": place,
        "source": str(message.get("name") or role),
        **timed(message.get("created_at")),
        "metadata": metadata_of(others(message, *_MESSAGE)),
        "names": names,
    }
    own = str(message.get("id") or place)
    text = parts_text(message.get("content"))
    if role == "tool":
        yield ImportedRecord(id=own, observation=text or _returned(message), **labels)
    elif role == "assistant":
        calls = message.get("tool_calls")
        yield from _assistant(own, text, calls if isinstance(calls, list) else [], labels)
    elif role == "user":
        yield ImportedRecord(id=own, role="user", text=_unpacked(text), **labels)


def _assistant(
    own: str, text: str, calls: list[Any], labels: dict[str, Any]
) -> Iterator[ImportedRecord]:
    if not calls:
        yield ImportedRecord(id=own, role="assistant", text=text, **labels)
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise ValueError("a call of a tool has no function")
        tool, arguments = str(function.get("name")), str(function.get("arguments") or "")
        said = _argument(arguments, "message") if tool == _SPEAKS else None
        if said is not None:
            yield ImportedRecord(id=f"{own}.{number}", role="assistant", text=said, **labels)
            continue
        thought = text if number == 0 else ""
        action = f"{tool}({arguments})"
        yield ImportedRecord(id=f"{own}.{number}", thought=thought, action=action, **labels)


def _argument(arguments: str, name: str) -> str | None:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    value = found.get(name) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else None


def _returned(message: Mapping[str, Any]) -> str:
    returns = message.get("tool_returns")
    found = (
        [one for one in returns if isinstance(one, Mapping)] if isinstance(returns, list) else []
    )
    return "\n".join(str(one.get("func_response") or "") for one in found)


def _unpacked(text: str) -> str:
    """Returns what a user said: Letta wraps it, and events of its own, in JSON."""
    if not text.startswith("{"):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, Mapping) or not isinstance(found.get("type"), str):
        return text
    said = found.get("message")
    return said if found["type"] == "user_message" and isinstance(said, str) else ""
