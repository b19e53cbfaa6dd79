"""Replies of models, whole or in pieces: what the model said, and the tokens that it counted."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.proxy.conversation import Form
from service.proxy.turns import ToolUse, text_of, uses_of

#: Bytes of a reply that are read; more pass through.
MAX_READ_BYTES = 32 * 1024 * 1024
#: The last events of a reply of OpenAI's Responses; "incomplete": it has all the tokens it may.
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(kw_only=True)
class Reply:
    """What a reply says so far."""

    text: str = ""
    #: Calls of the program's tools.
    uses: list[ToolUse] = field(default_factory=list)
    #: The arguments of calls and the thoughts that came in pieces.
    besides: str = ""
    #: The id of a reply that requests can go on from; empty: none.
    id: str = ""
    #: Tokens, as the provider counts them: all of the prompt, of them cached and written to the
    #: cache, and those of the reply.
    input_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    #: Whether the provider said that the reply is complete.
    is_complete: bool = False
    #: Whether it ended, completely or not, so that its counts are the last ones.
    is_ended: bool = False


class ReplyReader:
    """Reads a reply while its bytes pass through."""

    def __init__(self, form: Form, *, streamed: bool) -> None:
        self.reply = Reply()
        self._form = form
        self._streamed = streamed
        self._pending = bytearray()
        self._left = MAX_READ_BYTES
        #: Calls that come in pieces, by their index: id, name, arguments.
        self._calls: dict[int, list[str]] = {}

    def feed(self, data: bytes) -> None:
        """Adds bytes."""
        if len(data) > self._left:
            self._left = 0
            self._pending.clear()
            return
        self._left -= len(data)
        if not self._streamed:
            self._pending += data
            return
        # Only what is new is searched: a line may come in any number of pieces.
        first, *others = data.split(b"\n")
        self._pending += first
        for one in others:
            self._line(bytes(self._pending))
            self._pending = bytearray(one)

    def close(self) -> None:
        """Reads what is left, after the last byte."""
        if self._streamed:
            self._line(bytes(self._pending))
        else:
            self._whole(_json(bytes(self._pending)))
        self._pending.clear()
        for name, tool, arguments in self._calls.values():
            self.reply.uses += [ToolUse(id=name, name=tool, arguments=arguments)] if tool else []
        self._calls.clear()

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.reply.is_complete = self.reply.is_ended = True
            return
        event = _json(data)
        if self._form.name == "anthropic":
            self._anthropic_event(event)
        elif self._form.messages == "input":
            kind = event.get("type")
            if kind == "response.output_text.delta":
                self.reply.text += _text(event, "delta")
            elif isinstance(kind, str) and kind.endswith(".delta"):
                self.reply.besides += _text(event, "delta")
            elif kind in _RESPONSE_ENDS:
                self._whole(_mapping(event.get("response")))
        else:
            self._chunk(event)

    def _chunk(self, event: Mapping[str, Any]) -> None:
        for choice in _list(event.get("choices"))[:1]:
            delta = _mapping(choice.get("delta"))
            self.reply.text += _text(delta, "content")
            self.reply.besides += _text(delta, "reasoning_content") + _text(delta, "reasoning")
            for number, call in enumerate(_list(delta.get("tool_calls"))):
                called = _mapping(call.get("function") or call.get("custom"))
                at = call.get("index")
                self._call(
                    at if isinstance(at, int) else number, call, called, "arguments", "input"
                )
            if choice.get("finish_reason"):
                self.reply.is_complete = self.reply.is_ended = True
        self._usage(_mapping(event.get("usage")))

    def _anthropic_event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._usage(_mapping(_mapping(event.get("message")).get("usage")))
        elif kind == "content_block_start":
            block = _mapping(event.get("content_block"))
            if block.get("type") == "tool_use":
                self._call(_count(event, "index"), block, block)
        elif kind == "content_block_delta":
            delta = _mapping(event.get("delta"))
            self.reply.text += _text(delta, "text")
            self.reply.besides += _text(delta, "thinking")
            if _count(event, "index") in self._calls:
                self._call(_count(event, "index"), {}, delta, "partial_json")
        elif kind == "message_delta":
            self._usage(_mapping(event.get("usage")))
        elif kind == "message_stop":
            self.reply.is_complete = self.reply.is_ended = True

    def _call(
        self, at: int, call: Mapping[str, Any], called: Mapping[str, Any], *arguments: str
    ) -> None:
        """Adds a piece of a call."""
        there = self._calls.setdefault(at, ["", "", ""])
        there[0] = there[0] or _text(call, "id")
        there[1] = there[1] or _text(called, "name")
        piece = "".join(_text(called, one) for one in arguments)
        there[2] += piece
        self.reply.besides += piece

    def _whole(self, body: Mapping[str, Any]) -> None:
        reply = self.reply
        if self._form.name == "anthropic":
            reply.text, reply.uses = text_of(body.get("content")), uses_of(body)
            reply.is_complete = reply.is_ended = body.get("type") == "message"
        elif self._form.messages == "input":
            reply.id = _text(body, "id")
            reply.uses = [use for one in _list(body.get("output")) for use in uses_of(one)]
            said = [one for one in _list(body.get("output")) if one.get("type") == "message"]
            reply.text = "\n".join(text_of(one.get("content")) for one in said)
            reply.is_complete = body.get("status") in ("completed", "incomplete")
            reply.is_ended = f"response.{body.get('status')}" in _RESPONSE_ENDS
        else:
            for choice in _list(body.get("choices"))[:1]:
                message = _mapping(choice.get("message"))
                reply.text, reply.uses = text_of(message.get("content")), uses_of(message)
                reply.is_complete = reply.is_ended = True
        self._usage(_mapping(body.get("usage")))

    def _usage(self, usage: Mapping[str, Any]) -> None:
        """Reads counts of tokens, in the words of each provider; later ones replace earlier."""
        reply = self.reply
        if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
            # Anthropic counts what the cache has apart.
            reply.cached_tokens = _count(usage, "cache_read_input_tokens")
            reply.written_tokens = _count(usage, "cache_creation_input_tokens")
            if "input_tokens" in usage:
                fresh = _count(usage, "input_tokens")
                reply.input_tokens = fresh + reply.cached_tokens + reply.written_tokens
        else:
            for name in ("prompt_tokens", "input_tokens"):
                reply.input_tokens = _count(usage, name) or reply.input_tokens
            for name in ("prompt_tokens_details", "input_tokens_details"):
                details = _mapping(usage.get(name))
                reply.cached_tokens = _count(details, "cached_tokens") or reply.cached_tokens
        for name in ("completion_tokens", "output_tokens"):
            reply.output_tokens = _count(usage, name) or reply.output_tokens


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
