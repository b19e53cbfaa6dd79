"""The proxy under the newest libraries of OpenAI and Anthropic, as processes of their own."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from palimpsest.sync import Client

ROOT = Path(__file__).parents[2]
#: A picture of one pixel.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
QUESTION = "Is it warm in Rome and in Oslo?"
CALLS = (("c1", '{"city": "Rome"}'), ("c2", '{"city": "Oslo"}'))
RESULTS = ("30 degrees", "2 degrees")
USAGE = {"input_tokens": 9, "output_tokens": 5}


@dataclass
class Script:
    """What the provider was asked, and what it answers."""

    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    #: Status, headers and error of the next calls.
    refusals: list[tuple[int, dict[str, str], Any]] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        """What was asked by POST."""
        return [body for _, _, body in self.asked if body]


class Handler(BaseHTTPRequestHandler):
    """Answers as the providers do: calls of tools first, then an answer."""

    script: Script

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""

    def do_GET(self) -> None:
        self._note(None)
        self._send({"object": "list", "data": [{"id": "m", "type": "model"}], "has_more": False})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._note(body)
        if self.script.refusals:
            status, headers, error = self.script.refusals.pop(0)
            self._send(error, status, headers)
            return
        if self.path.endswith("/count_tokens"):
            self._send({"input_tokens": 12})
            return
        messages = body.get("messages", body.get("input"))
        # What is recalled beside a later message may have the question, too.
        is_first = "previous_response_id" not in body and "assistant" not in json.dumps(messages)
        calls = bool(body.get("tools")) and is_first and QUESTION in json.dumps(messages[-1])
        events = {
            "/v1/messages": anthropics_events,
            "/v1/chat/completions": chats_events,
            "/v1/responses": responses_events,
        }[self.path.partition("?")[0]](calls)
        if body.get("stream"):
            data = "".join(
                f"event: {one.get('type')}\ndata: {json.dumps(one)}\n\n" for one in events
            )
            self._write((data + ("data: [DONE]\n\n" if "chat" in self.path else "")).encode())
        else:
            self._send(whole(self.path, calls))

    def _note(self, body: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.script.asked.append((self.path, headers, body))

    def _send(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._write(json.dumps(body).encode(), status, headers, "application/json")

    def _write(
        self,
        data: bytes,
        status: int = 200,
        headers: dict[str, str] | None = None,
        kind: str = "text/event-stream",
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def anthropics_events(calls: bool) -> list[dict[str, Any]]:
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "usage": USAGE, "stop_reason": None}}
    ]
    text = "I look." if calls else "Rome is warm."
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": text})
    ]
    for name, arguments in CALLS if calls else ():
        start = {"type": "tool_use", "id": name, "name": "weather", "input": {}}
        blocks.append((start, {"type": "input_json_delta", "partial_json": arguments}))
    for index, (start, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    reason = "tool_use" if calls else "end_turn"
    ended = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": USAGE}
    return [*events, ended, {"type": "message_stop"}]


def chats_events(calls: bool) -> list[dict[str, Any]]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        base: dict[str, Any] = {"id": "c", "created": 1, "model": "m"}
        base["object"] = "chat.completion.chunk"
        return {**base, "choices": [choice]}

    made = [
        {
            "index": at,
            "id": name,
            "type": "function",
            "function": {"name": "weather", "arguments": ""},
        }
        for at, (name, _) in enumerate(CALLS)
    ]
    pieces = [
        {"index": at, "function": {"arguments": arguments}}
        for at, (_, arguments) in enumerate(CALLS)
    ]
    text = "I look." if calls else "Rome is warm."
    events = [chunk({"role": "assistant", "content": text})]
    if calls:
        events += [chunk({"tool_calls": made}), chunk({"tool_calls": pieces})]
    return [*events, chunk({}, "tool_calls" if calls else "stop")]


def responses_events(calls: bool) -> list[dict[str, Any]]:
    body = whole("/v1/responses", calls)
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    return [
        {"type": "response.created", "sequence_number": 0, "response": begun},
        {"type": "response.completed", "sequence_number": 1, "response": body},
    ]


def whole(path: str, calls: bool) -> dict[str, Any]:
    """Returns a reply that is not streamed."""
    text = "I look." if calls else "Rome is warm."
    made = [(name, arguments) for name, arguments in CALLS if calls]
    if path == "/v1/messages":
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        for name, arguments in made:
            use = {"type": "tool_use", "id": name, "name": "weather"}
            content.append({**use, "input": json.loads(arguments)})
        base = {"id": "m1", "type": "message", "role": "assistant", "model": "m"}
        return {**base, "content": content, "usage": USAGE, "stop_reason": "end_turn"}
    if path == "/v1/responses":
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "i", "role": "assistant", "status": "completed"}
        output: list[dict[str, Any]] = [{**item, "content": content}]
        for name, arguments in made:
            call = {"type": "function_call", "id": f"f{name}", "call_id": name, "name": "weather"}
            output.append({**call, "arguments": arguments, "status": "completed"})
        identity = "r1" if calls else "r2"
        return {"id": identity, "object": "response", "status": "completed", "created_at": 1} | {
            "output": output,
            "model": "m",
            "usage": {**USAGE, "total_tokens": 14},
        }
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if made:
        message["tool_calls"] = [
            {
                "id": name,
                "type": "function",
                "function": {"name": "weather", "arguments": arguments},
            }
            for name, arguments in made
        ]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    given: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**given, "choices": [choice]}


@dataclass
class Proxied:
    """A proxy at a URL, and its provider."""

    url: str
    script: Script
    process: subprocess.Popen[str]

    def openai(self, session: str, **given: Any) -> openai.OpenAI:
        """Returns OpenAI's client, with nothing changed but its base URL."""
        return openai.OpenAI(base_url=f"{self.url}/s/{session}/v1", api_key="theirs", **given)

    def anthropic(self, session: str, **given: Any) -> anthropic.Anthropic:
        """Returns Anthropic's client, with nothing changed but its base URL."""
        return anthropic.Anthropic(base_url=f"{self.url}/s/{session}", api_key="theirs", **given)

    def stop(self) -> None:
        """Stops the proxy, which delivers what waits first."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, rest


def started(address: str, home: Path, upstream: str) -> tuple[subprocess.Popen[str], str]:
    """Starts a proxy, and returns it with its URL."""
    process = subprocess.Popen(
        [
            *(str(ROOT / ".venv/bin/palimpsest"), "proxy", "--listen", "127.0.0.1:0"),
            *("--openai", upstream, "--anthropic", upstream),
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PALIMPSEST_ADDRESS": address},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/s/", line):
            return process, found[1]
    pytest.fail("the proxy did not start")


@pytest.fixture
def proxied(address: str, tmp_path: Path) -> Iterator[Proxied]:
    script = Script()
    upstream = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Scripted", (Handler,), {"script": script})
    )
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{upstream.server_address[1]}"
    process, proxy = started(address, tmp_path, url)
    yield Proxied(proxy, script, process)
    if process.poll() is None:
        process.kill()
        process.communicate()
    upstream.shutdown()
    upstream.server_close()


def turns(client: Client, session: str) -> list[tuple[str, ...]]:
    """Returns what is stored of a session."""
    return [
        (one.role, one.text) if one.text else (one.thought, one.action, one.observation)
        for one in client.session(session).chunks()
    ]


#: What is remembered of a question with two calls at once, and a second question.
REMEMBERED = [
    ("user", QUESTION),
    ("I look.", 'weather({"city": "Rome"})', "30 degrees"),
    ("", 'weather({"city": "Oslo"})', "2 degrees"),
    ("assistant", "Rome is warm."),
    ("user", "Thanks."),
    ("assistant", "Rome is warm."),
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize("streamed", [False, True])
def test_openais_chat_with_two_tools_at_once(
    proxied: Proxied, client: Client, name: str, streamed: bool
) -> None:
    provider = proxied.openai(name)
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    said: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}, image]},
    ]

    def call() -> Any:
        if not streamed:
            return (
                provider.chat.completions.create(model="m", messages=said, tools=[tool])
                .choices[0]
                .message
            )
        with provider.chat.completions.stream(model="m", messages=said, tools=[tool]) as stream:
            stream.until_done()
            return stream.get_final_completion().choices[0].message

    message = call()
    assert [one.id for one in message.tool_calls] == ["c1", "c2"]
    said.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
    for one in said[-1]["tool_calls"]:
        one["function"].pop("parsed_arguments", None)
    for one, result in zip(message.tool_calls, RESULTS, strict=True):
        said.append({"role": "tool", "tool_call_id": one.id, "content": result})
    said.append({"role": "assistant", "content": call().content})
    said.append({"role": "user", "content": "Thanks."})
    assert call().content == "Rome is warm."
    proxied.stop()
    assert turns(client, name) == REMEMBERED
    assert proxied.script.bodies[1]["messages"] == said[:5]


@pytest.mark.parametrize("streamed", [False, True])
def test_anthropics_messages_with_two_tools_at_once(
    proxied: Proxied, client: Client, name: str, streamed: bool
) -> None:
    provider = proxied.anthropic(name)
    mark = {"cache_control": {"type": "ephemeral"}}
    system: Any = [{"type": "text", "text": "Be kind.", **mark}]
    tools: Any = [{"name": "weather", "input_schema": SCHEMA, **mark}]
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    part = {"type": "text", "text": QUESTION, **mark}
    said: list[Any] = [{"role": "user", "content": [{"type": "image", "source": source}, part]}]

    def call() -> Any:
        given: Any = {"system": system, "tools": tools, "messages": said}
        if not streamed:
            return provider.messages.create(model="m", max_tokens=100, **given)
        with provider.messages.stream(model="m", max_tokens=100, **given) as stream:
            return stream.get_final_message()

    message = call()
    # Marks pass as they are; and one wanders to the newest message, as agents do it.
    assert proxied.script.bodies[0]["system"] == system
    assert proxied.script.bodies[0]["tools"] == tools
    assert proxied.script.bodies[0]["messages"][0]["content"][1] == part
    del part["cache_control"]
    said.append({"role": "assistant", "content": message.to_dict()["content"]})
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": use, "content": [{"type": "text", "text": text}]}
        for (use, _), text in zip(CALLS, RESULTS, strict=True)
    ]
    results[-1] |= mark
    said.append({"role": "user", "content": results})
    said.append({"role": "assistant", "content": call().content[0].text})
    said.append({"role": "user", "content": "Thanks."})
    assert call().content[0].text == "Rome is warm."
    proxied.stop()
    assert turns(client, name) == REMEMBERED


def test_responses_that_go_on_from_stored_ones(proxied: Proxied, client: Client, name: str) -> None:
    provider = proxied.openai(name)
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
    first = provider.responses.create(
        model="m", input=[{"role": "user", "content": QUESTION}], tools=[tool]
    )
    results: Any = [
        {"type": "function_call_output", "call_id": call, "output": text}
        for (call, _), text in zip(CALLS, RESULTS, strict=True)
    ]
    with provider.responses.stream(
        model="m", input=results, previous_response_id=first.id, tools=[tool]
    ) as stream:
        second = stream.get_final_response()
    assert second.output_text == "Rome is warm."
    provider.responses.create(model="m", input="Thanks.", previous_response_id=second.id)
    proxied.stop()
    assert turns(client, name) == REMEMBERED
    assert len({one.thread for one in client.session(name).chunks()}) == 1


def test_calls_that_are_the_last_answer_are_remembered(
    proxied: Proxied, client: Client, name: str, address: str, tmp_path: Path
) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    said: Any = [{"role": "user", "content": QUESTION}]
    provider = proxied.openai(name)
    provider.chat.completions.create(model="m", messages=said, tools=[tool])
    proxied.stop()
    # They wait on disk for their results; the next proxy finds that ten minutes have passed.
    assert turns(client, name) == [("user", QUESTION)]
    (waiting,) = tmp_path.rglob("calls/*.json")
    waiting.write_text(json.dumps({**json.loads(waiting.read_text()), "since": time.time() - 601}))
    process, _ = started(address, tmp_path, proxied.url)
    with process:
        until = time.monotonic() + 60
        while len(turns(client, name)) == 1 and time.monotonic() < until:
            time.sleep(0.05)
        process.terminate()
        process.communicate(timeout=60)
    assert turns(client, name) == [
        ("user", QUESTION),
        ("I look.", 'weather({"city": "Rome"})', ""),
        ("", 'weather({"city": "Oslo"})', ""),
    ]


def test_other_paths_reach_the_right_provider(proxied: Proxied, name: str) -> None:
    said: Any = [{"role": "user", "content": QUESTION}]
    provider = proxied.anthropic(name)
    assert provider.messages.count_tokens(model="m", messages=said).input_tokens == 12
    assert [one.id for one in provider.models.list()] == ["m"]
    assert [one.id for one in proxied.openai(name).models.list()] == ["m"]
    paths = [
        (path.partition("?")[0], "anthropic-version" in headers)
        for path, headers, _ in proxied.script.asked
    ]
    assert paths == [
        ("/v1/messages/count_tokens", True),
        ("/v1/models", True),
        ("/v1/models", False),
    ]
    # What is counted is the program's own request.
    assert proxied.script.bodies == [{"model": "m", "messages": said}]


def test_refusals_of_providers_are_theirs(proxied: Proxied, client: Client, name: str) -> None:
    slow = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    busy = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    headers = {"retry-after": "0", "request-id": "req_7", "anthropic-ratelimit-tokens-reset": "x"}
    said: Any = [{"role": "user", "content": "Hi."}]
    proxied.script.refusals += [(429, headers, slow), (529, headers, busy)]
    with pytest.raises(anthropic.RateLimitError) as limited:
        proxied.anthropic(name, max_retries=0).messages.create(
            model="m", max_tokens=9, messages=said
        )
    assert limited.value.body == slow
    assert headers.items() <= dict(limited.value.response.headers).items()
    with pytest.raises(anthropic.InternalServerError) as overloaded:
        proxied.anthropic(name, max_retries=0).messages.create(
            model="m", max_tokens=9, messages=said
        )
    assert (overloaded.value.status_code, overloaded.value.body) == (529, busy)
    # The library's own retries store the message once.
    proxied.script.refusals += [(429, headers, slow), (529, headers, busy)]
    reply = proxied.anthropic(name).messages.create(model="m", max_tokens=9, messages=said)
    assert reply.type == "message"
    proxied.stop()
    assert turns(client, name) == [("user", "Hi."), ("assistant", "Rome is warm.")]
