"""Reads chats: lists of messages as of OpenAI, and what ChatGPT and Claude export.

Of ChatGPT's `conversations.json` that is the branch of each conversation that was shown last, of
Claude's all messages; messages of systems are left out. Forms of 2023 to 2026.
"""

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

_ROLES = {"human": "user"}
#: Roles whose messages are instructions and not said by anyone.
_SYSTEM = ("system", "developer")


def read(value: Any) -> Iterator[ImportedRecord | UnreadableRecord]:
    """Yields the messages of each conversation."""
    if isinstance(value, Mapping):
        named = value.get("conversations")
        value = named if isinstance(named, list) else [value]
    if not isinstance(value, list):
        yield UnreadableRecord(place="", reason="it is neither a conversation nor a list of them")
        return
    if value and all(isinstance(one, Mapping) and "role" in one for one in value):
        yield from _messages("", {"messages": value})
        return
    for place, chat in each(value, "conversations"):
        if chat is None:
            yield UnreadableRecord(place=place, reason="it is no object")
        elif isinstance(chat.get("mapping"), Mapping):
            yield from _chatgpt(place, chat)
        elif isinstance(chat.get("chat_messages"), list):
            yield from _messages(place, {**chat, "messages": chat["chat_messages"]})
        elif isinstance(chat.get("messages"), list):
            yield from _messages(place, chat)
        elif "role" in chat:
            yield from _messages(place, {"messages": [chat]})
        else:
            yield UnreadableRecord(place=place, reason="it has no messages")


def _messages(place: str, chat: Mapping[str, Any]) -> Iterator[ImportedRecord | UnreadableRecord]:
    thread = str(chat.get("uuid") or chat.get("id") or chat.get("conversation_id") or "")
    title = chat.get("name") or chat.get("title")
    within = f"{place}.messages" if place else "messages"
    for at, message in each(chat["messages"], within):
        try:
            if message is None:
                raise ValueError("it is no object")
            record = _message(at, message, thread, title)
        except ValueError as error:
            yield UnreadableRecord(place=at, reason=str(error))
        else:
            if record is not None:
                yield record


def _message(
    place: str, message: Mapping[str, Any], thread: str, title: Any
) -> ImportedRecord | None:
    role = text_of(message.get("sender", message.get("role")), "role")
    if role in _SYSTEM:
        return None
    role = _ROLES.get(role, role)
    text = parts_text(message.get("content")) or parts_text(message.get("text"))
    known = ("role", "sender", "content", "text", "created_at", "uuid", "id", "tool_calls")
    labels: dict[str, Any] = {
        "place": place,
        "id": str(message.get("uuid") or message.get("id") or place),
        "thread": thread,
        **timed(message.get("created_at", message.get("create_time"))),
        "metadata": metadata_of({"title": title}, others(message, *known, "create_time")),
    }
    source = str(message.get("name") or role)
    if role == "tool":
        return ImportedRecord(observation=text, source=source, **labels)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return ImportedRecord(thought=text, action=_calls(calls), source=source, **labels)
    return ImportedRecord(role=role, text=text, source=source, **labels)


def _calls(calls: list[Any]) -> str:
    functions = [one.get("function") for one in calls if isinstance(one, Mapping)]
    named = [one for one in functions if isinstance(one, Mapping)]
    if len(named) < len(calls):
        raise ValueError("a call of a tool has no function")
    return "\n".join(f"{one.get('name')}({one.get('arguments') or ''})" for one in named)


def _chatgpt(place: str, chat: Mapping[str, Any]) -> Iterator[ImportedRecord | UnreadableRecord]:
    thread = str(chat.get("conversation_id") or chat.get("id") or "")
    for name, node in _branch(chat):
        at = f"{place}.mapping[{name[:40]!r}]"
        message = node.get("message")
        if message is None:
            continue
        try:
            if not isinstance(message, Mapping):
                raise ValueError("it is no message")
            record = _chatgpt_message(at, message, thread, chat.get("title"))
        except ValueError as error:
            yield UnreadableRecord(place=at, reason=str(error))
        else:
            if record is not None:
                yield record


def _branch(chat: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the nodes from the root to the one that was shown last."""
    nodes, name = chat["mapping"], chat.get("current_node")
    if name not in nodes:
        # Without it: the last node that has none after it.
        ends = [one for one, node in nodes.items() if not _children(node)]
        name = ends[-1] if ends else None
    found: list[tuple[str, Mapping[str, Any]]] = []
    known: set[str] = set()
    while isinstance(name, str) and name in nodes and name not in known:
        node = nodes[name]
        if not isinstance(node, Mapping):
            break
        known.add(name)
        found.append((name, node))
        name = node.get("parent")
    return found[::-1]


def _children(node: Any) -> Any:
    return node.get("children") if isinstance(node, Mapping) else None


def _chatgpt_message(
    place: str, message: Mapping[str, Any], thread: str, title: Any
) -> ImportedRecord | None:
    author, content = message.get("author"), message.get("content")
    if not isinstance(author, Mapping) or not isinstance(content, Mapping):
        raise ValueError("it has no author, or no content")
    role = text_of(author.get("role"), "author.role")
    own = message.get("metadata")
    own = own if isinstance(own, Mapping) else {}
    if role in _SYSTEM or own.get("is_visually_hidden_from_conversation"):
        return None
    parts = content.get("parts")
    text = parts_text(parts if isinstance(parts, list) else content.get("text"))
    labels: dict[str, Any] = {
        "place": place,
        "id": str(message.get("id") or place),
        "thread": thread,
        "source": str(author.get("name") or role),
        **timed(message.get("create_time")),
        "metadata": metadata_of(
            {
                "title": title,
                "model": own.get("model_slug"),
                "content_type": content.get("content_type"),
                "recipient": message.get("recipient"),
            }
        ),
    }
    if role == "tool":
        return ImportedRecord(observation=text, **labels)
    return ImportedRecord(role=role, text=text, **labels)
