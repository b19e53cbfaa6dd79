"""A model that answers in the shapes of two providers, and keeps what it is asked.

Anthropic's messages and OpenAI's responses, streamed. What it says follows from the prompt: a
prompt `run COMMAND` calls the agent's shell first, `delegate TASK` starts a subagent, any other
is repeated: `Heard: …`. So a conversation needs no script, and each reply names its prompt.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Provider = Literal["anthropic", "openai"]
#: Tokens that a reply counts for its prompt; the second, where the prompt is `fill the window`.
FEW_TOKENS, MANY_TOKENS = 10, 250_000
#: Texts of the agents themselves begin with a tag: reminders, environment.
TAG = "<"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request of an agent."""

    provider: Provider
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation, oldest first."""
        found = self.body.get("messages" if self.provider == "anthropic" else "input", ())
        return found if isinstance(found, list) else ()

    @property
    def prompt(self) -> str:
        """The newest text that a user has typed."""
        for message in reversed(self.messages):
            if message.get("role") != "user":
                continue
            for text in reversed(list(_texts(message.get("content")))):
                if not text.startswith(TAG):
                    return text
        return ""

    @property
    def answers_a_tool(self) -> bool:
        """Whether the newest message is what a tool returned."""
        for message in reversed(self.messages):
            if message.get("role") in ("system", "developer"):
                continue
            if message.get("type") in ("function_call_output", "custom_tool_call_output"):
                return True
            content = message.get("content")
            blocks = content if isinstance(content, list) else []
            return any(block.get("type") == "tool_result" for block in blocks)
        return False

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools that the model may call."""
        named = self.body.get("tools") or ()
        inner = (one for tool in named for one in tool.get("tools") or ())
        return frozenset(str(tool.get("name")) for tool in (*named, *inner))

    def of_a_subagent(self, task: str) -> bool:
        """Returns whether a subagent asks, which has a task."""
        sent = (one for one in self.messages if one.get("type") == "agent_message")
        return self.prompt == task or any(task in json.dumps(one) for one in sent)

    def shows(self, text: str) -> bool:
        """Returns whether the model reads a text anywhere in the request."""
        return json.dumps(text)[1:-1] in json.dumps(self.body)


class Model:
    """What the agents ask: it listens at `url` while it is started."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        model = self

        class Handler(_Handler):
            def answer(self, asked: Asked) -> None:
                model.asked.append(asked)
                super().answer(asked)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def started(self) -> Iterator["Model"]:
        """Serves until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def read(self, text: str) -> list[Asked]:
        """Returns the requests whose newest prompt has a text."""
        return [one for one in self.asked if text in one.prompt]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._send(200, b"")

    def do_GET(self) -> None:
        self._send(404, b"{}")

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            self._send(200, b'{"input_tokens": 10}')
        elif path in ("/v1/messages", "/v1/responses"):
            provider: Provider = "anthropic" if path == "/v1/messages" else "openai"
            body = json.loads(data)
            self.answer(Asked(provider=provider, body=body, headers=dict(self.headers)))
        else:
            self._send(404, b"{}")

    def answer(self, asked: Asked) -> None:
        """Streams the reply, or sends it whole where no stream is asked for."""
        events = list((_anthropic if asked.provider == "anthropic" else _openai)(asked))
        if not asked.body.get("stream"):
            self._send(200, json.dumps(_whole(events)).encode())
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.close_connection = True

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Prints nothing."""


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        if block.get("type") in ("text", "input_text"):
            yield block["text"]


def _call(asked: Asked) -> tuple[str, Mapping[str, Any]] | None:
    """Returns the tool that a prompt asks for, with its arguments."""
    verb, _, rest = asked.prompt.partition(" ")
    if asked.answers_a_tool:
        return None
    if verb == "run" and "Bash" in asked.tools:
        return "Bash", {"command": rest, "description": "Runs it"}
    if verb == "run" and "exec_command" in asked.tools:
        return "exec_command", {"cmd": rest}
    if verb in ("delegate", "background") and "Agent" in asked.tools:
        later = verb == "background"
        return "Agent", {"description": "A task", "prompt": rest, "run_in_background": later}
    if verb == "delegate" and "spawn_agent" in asked.tools:
        return "spawn_agent", {"task_name": "task", "message": rest}
    return None


def _said(asked: Asked) -> str:
    return f"Heard: {asked.prompt[:200]}"


def _tokens(asked: Asked) -> int:
    return MANY_TOKENS if "fill the window" in asked.prompt else FEW_TOKENS


def _anthropic(asked: Asked) -> Iterator[dict[str, Any]]:
    call = _call(asked)
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked.body.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": _tokens(asked), "output_tokens": 1},
    }
    yield {"type": "message_start", "message": message}
    if call:
        name, arguments = call
        block = {"type": "tool_use", "id": f"toolu_{id(asked)}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": _said(asked)}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    }
    yield {"type": "message_stop"}


def _openai(asked: Asked) -> Iterator[dict[str, Any]]:
    call = _call(asked)
    if call:
        name, arguments = call
        item: dict[str, Any] = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": f"call_{id(asked)}",
            "name": name,
            "arguments": json.dumps(arguments),
            **({"namespace": "collaboration"} if name == "spawn_agent" else {}),
        }
    else:
        content = {"type": "output_text", "text": _said(asked), "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [content]}
    tokens = _tokens(asked)
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 5,
    }
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done}


def _whole(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the reply of a request without a stream."""
    if events[-1]["type"] == "response.completed":
        response: Mapping[str, Any] = events[-1]["response"]
        return response
    text = events[2]["delta"].get("text", "")
    blocks = [{"type": "text", "text": text}]
    return {**events[0]["message"], "content": blocks, "stop_reason": "end_turn"}
