"""Reads the events of agents, and answers each agent in its form."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

Agent = Literal["claude-code", "codex", "cursor"]
AGENTS: tuple[Agent, ...] = ("claude-code", "codex", "cursor")

Event = Literal["session-start", "prompt", "reply"]
EVENTS: tuple[Event, ...] = ("session-start", "prompt", "reply")

#: Bytes of an event.
MAX_EVENT_BYTES = 16 * 1024 * 1024
#: Bytes that are read from the end of a transcript.
TRANSCRIPT_BYTES = 1024 * 1024
#: Bytes of a thread's id.
MAX_ID_BYTES = 256

#: How prompts begin that Claude Code writes itself, such as what a subagent in the background
#: has found. No user said them, and the reply says what came of them.
_OF_THE_AGENT = re.compile(
    r"<(task-notification|teammate-message|cross-session-message|agent-message|tick)[\s>]"
)

#: The agents' own names of the events that they take a context from.
_NAMES = {"session-start": "SessionStart", "prompt": "UserPromptSubmit"}


class BadEvent(ValueError):
    """The input is not an event of the agent."""


class Turn(NamedTuple):
    """One message, of the user or of the agent."""

    request_id: str
    thread: str
    role: Literal["user", "assistant"]
    text: str


def parsed(data: bytes) -> Mapping[str, Any]:
    """Reads an event. Raises BadEvent."""
    if len(data) > MAX_EVENT_BYTES:
        raise BadEvent(f"the event has more than {MAX_EVENT_BYTES} bytes")
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadEvent("the event on standard input is not JSON") from error
    if not isinstance(event, dict):
        raise BadEvent("the event on standard input is not a JSON object")
    return event


def folder_of(agent: Agent, event: Mapping[str, Any]) -> Path:
    """Returns the folder that the agent works in."""
    roots = event.get("workspace_roots")
    if agent == "cursor" and isinstance(roots, list) and roots and isinstance(roots[0], str):
        return Path(roots[0])
    return Path(_text(event, "cwd") or Path.cwd())


def thread_of(agent: Agent, event: Mapping[str, Any]) -> str:
    """Returns the id of the conversation, without what an id must not have."""
    first = "conversation_id" if agent == "cursor" else "session_id"
    name = _text(event, first) or _text(event, "session_id")
    plain = "".join(letter if letter.isprintable() and letter != "/" else "_" for letter in name)
    return plain.encode(errors="replace")[:MAX_ID_BYTES].decode(errors="ignore").strip()


def lost_its_thread(event: Mapping[str, Any]) -> bool:
    """Returns whether the agent no longer has its own conversation in full."""
    return _text(event, "source") == "compact"


def turn_of(agent: Agent, kind: Event, event: Mapping[str, Any]) -> Turn | None:
    """Returns what the user or the agent says in an event; None when neither says anything."""
    if _text(event, "agent_id"):
        # A subagent's, whose prompts are written by the agent.
        return None
    if kind == "prompt":
        text = _text(event, "prompt")
        if agent == "claude-code" and _OF_THE_AGENT.match(text):
            return None
    else:
        text = _text(event, "text" if agent == "cursor" else "last_assistant_message")
        if not text and agent == "claude-code":
            text = last_reply(Path(_text(event, "transcript_path")))
    # Strings of JSON may have halves of surrogate pairs, which no text has, and NUL.
    text = text.encode(errors="replace").decode().replace("\0", "").strip()
    if not text:
        return None
    thread = thread_of(agent, event)
    turn = _text(event, {"codex": "turn_id", "cursor": "generation_id"}.get(agent, "prompt_id"))
    # With an id of the turn, a hook that is set twice stores the turn once.
    parts = json.dumps([agent, thread, turn, kind, text])
    name = hashlib.sha256(parts.encode()).hexdigest() if turn else os.urandom(16).hex()
    role: Literal["user", "assistant"] = "user" if kind == "prompt" else "assistant"
    return Turn(request_id=name, thread=thread, role=role, text=text)


def last_reply(transcript: Path) -> str:
    """Returns the last message of the agent in a transcript of Claude Code.

    Older versions do not give it with the event. Nothing, if it cannot be read.
    """
    try:
        with transcript.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TRANSCRIPT_BYTES))
            lines = file.read(TRANSCRIPT_BYTES).splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            entry = json.loads(line)
            if entry["type"] == "user" and isinstance(entry["message"]["content"], str):
                return ""
            if entry["type"] == "assistant" and (text := _content(entry["message"]["content"])):
                return text
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return ""


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [one for one in content if one.get("type") == "text"]
    return "\n\n".join(one["text"] for one in blocks)


def answer(agent: Agent, kind: Event, context: str, warning: str) -> str:
    """Returns what the agent reads on standard output; nothing when there is nothing to say."""
    body: dict[str, Any] = {}
    if agent == "cursor":
        if kind == "session-start" and context:
            body["additional_context"] = context
        if kind == "prompt":
            body["continue"] = True
    else:
        if kind in _NAMES and context:
            body["hookSpecificOutput"] = {
                "hookEventName": _NAMES[kind],
                "additionalContext": context,
            }
        if warning:
            body["systemMessage"] = warning
    return json.dumps(body) if body else ""


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""
