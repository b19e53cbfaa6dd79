"""Memory by a changed base URL: OpenAI's library, raw Anthropic requests, outages and attacks."""

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from palimpsest_hook.delivery import deliver
from palimpsest_hook.queue import Queue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import palimpsest
from service.cli.proxy import LOCAL
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.proxy import application
from service.proxy.application import MAX_REQUEST_BYTES, Proxy
from service.proxy.budget import Budget
from service.proxy.open_calls import CallsInProgress
from service.rpc.http.server import HttpServer
from service.settings.config import Limits
from tests.acceptance.access.serving import serving_both
from tests.acceptance.cli.test_cli import assert_one_clear_line, run

#: A dollar for a million tokens of prompt, and five for those of replies.
PRICES = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=1e-6,
    read=0.1,
    write=1.0,
    output=5.0,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=300,
)


@dataclass
class Provider:
    """An API of both providers, which counts what its cache has: a character is a token."""

    replies: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    #: All prompts so far; the longest common beginning with one of them is cached.
    _seen: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    #: Whether streams stop after their first pieces, until the client leaves.
    stalls: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        if self.stalls and isinstance(response, StreamingResponse):
            response.body_iterator = self._stalling(response.body_iterator)
        await response(scope, receive, send)

    async def _stalling(self, pieces: Any) -> AsyncIterator[bytes]:
        yield await anext(pieces)
        yield await anext(pieces)
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def _answer(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        if request.method == "GET":
            return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})
        body = await request.json()
        self.asked.append(body)
        if self.status != 200:
            return JSONResponse({"error": {"message": "slow down", "type": "x"}}, self.status)
        size, cached = self._counted(body)
        text = self.replies.pop(0)
        if request.url.path == "/v1/messages":
            return _anthropic(text, size, cached, streamed=body.get("stream", False))
        if request.url.path.endswith("/responses"):
            return _response(text, size)
        return _openai(text, size, cached, streamed=body.get("stream", False))

    def _counted(self, body: dict[str, Any]) -> tuple[int, int]:
        prompt = json.dumps([body.get("system"), body.get("messages")])
        cached = max((_common(prompt, one) for one in self._seen), default=0)
        self._seen.append(prompt)
        self.prompt_tokens += len(prompt)
        self.cached_tokens += cached
        return len(prompt), cached


def _common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _openai(text: str, size: int, cached: int, *, streamed: bool) -> Response:
    usage = {
        "prompt_tokens": size,
        "completion_tokens": len(text),
        "total_tokens": size + len(text),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    base = {"id": "c1", "created": 1, "model": "m"}
    if not streamed:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (*text.split(" "), None):
            delta = {} if piece is None else {"content": f"{piece} "}
            choice = {"index": 0, "delta": delta, "finish_reason": None if piece else "stop"}
            event = {**base, "object": "chat.completion.chunk", "choices": [choice]}
            yield f"data: {json.dumps(event)}\n\n".encode()
        event = {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()

    return StreamingResponse(pieces(), media_type="text/event-stream")


def _anthropic(text: str, size: int, cached: int, *, streamed: bool) -> Response:
    usage = {
        "input_tokens": size - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(text),
    }
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "usage": usage}
    if not streamed:
        content = [{"type": "text", "text": text}]
        return JSONResponse({**message, "content": content, "stop_reason": "end_turn"})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": []}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 7},
        },
        {"type": "message_stop"},
    ]

    async def pieces() -> AsyncIterator[bytes]:
        for event in events:
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    return StreamingResponse(pieces(), media_type="text/event-stream")


def _response(text: str, size: int) -> Response:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"type": "message", "role": "assistant", "content": content}
    usage = {"input_tokens": size, "output_tokens": len(text)}
    body = {"id": "r1", "object": "response", "status": "completed", "output": [said]}
    return JSONResponse({**body, "usage": usage})


@dataclass
class Proxied:
    """A proxy, its provider, and the service where it remembers."""

    url: str
    provider: Provider
    proxy: Proxy
    queue: Queue
    address: str
    upstream: HttpServer

    def client(self, session: str) -> openai.AsyncOpenAI:
        """Returns OpenAI's client, with nothing changed but its base URL."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/s/{session}/v1", api_key="sk-theirs", max_retries=0
        )

    async def deliver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Delivers what waits."""
        monkeypatch.setenv("PALIMPSEST_ADDRESS", self.address)
        await self.proxy.finish_calls()
        await asyncio.to_thread(deliver, self.queue, 30.0)
        assert not self.queue.waiting()

    async def stored(self, session: str) -> list[Any]:
        """Returns the chunks of a session."""
        async with palimpsest.connect(self.address) as client:
            return [one async for one in client.session(session).chunks()]


@pytest.fixture
def budget() -> Budget | None:
    return None


@pytest.fixture
async def proxied(url: str, tmp_path: Path, budget: Budget | None) -> AsyncIterator[Proxied]:
    provider, queue = Provider(), Queue(tmp_path / "queue")
    upstream = HttpServer(provider, Limits())
    await upstream.start("127.0.0.1:0")
    async with serving_both(url) as (address, _), palimpsest.connect(address) as client:
        proxy = Proxy(
            client=client,
            upstreams={"openai": upstream.url, "anthropic": upstream.url},
            session="default",
            queue=queue,
            calls=CallsInProgress(tmp_path / "calls"),
            tokens=300,
            hosts=LOCAL,
            prices=lambda name: PRICES,
            budget=budget,
        )
        server = HttpServer(proxy, Limits())
        await server.start("127.0.0.1:0")
        yield Proxied(server.url, provider, proxy, queue, address, upstream)
        await server.stop(1.0)
        await proxy.close()
    await upstream.stop(1.0)


def waiting(queue: Queue) -> list[Any]:
    """Returns the contents of the messages that wait."""
    entries = [queue.read(path) for path in queue.waiting()]
    return [message["content"] for entry in entries for message in entry.messages]


def last_text(body: dict[str, Any]) -> str:
    """Returns the content of the last message that a provider got, as JSON."""
    return json.dumps(body["messages"][-1]["content"])


async def test_what_one_conversation_said_is_in_the_prompt_of_the_next(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = proxied.client("alice")
    proxied.provider.replies += ["Noted, Alice.", "An apple."]
    said: Any = [{"role": "user", "content": "I am Alice, and I eat no nuts."}]
    first = await client.chat.completions.create(model="m", messages=said)
    assert first.choices[0].message.content == "Noted, Alice."
    assert proxied.provider.asked[0]["messages"] == said
    await proxied.deliver(monkeypatch)
    chunks = await proxied.stored("alice")
    assert [(one.role, one.text) for one in chunks] == [
        ("user", "I am Alice, and I eat no nuts."),
        ("assistant", "Noted, Alice."),
    ]
    assert chunks[0].thread == chunks[1].thread != ""
    asked: Any = [{"role": "user", "content": "What may I eat?"}]
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=asked)
    assert "I eat no nuts" in last_text(proxied.provider.asked[1])
    assert last_text(proxied.provider.asked[1]).startswith('"What may I eat?')
    assert int(raw.headers["x-palimpsest-recalled"]) > 10
    # The provider's key goes on to the provider, and nothing of ours does.
    headers = proxied.provider.headers[1]
    assert headers["authorization"] == "Bearer sk-theirs"
    assert not [name for name in headers if "palimpsest" in name]


async def test_a_call_waits_for_what_the_one_before_said(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "DELIVERED_SECONDS", 60.0)
    delivered = proxied.proxy.delivered = asyncio.Event()
    delivered.set()
    client = proxied.client("alice")
    proxied.provider.replies += ["Noted, Alice.", "An apple."]
    said: Any = [{"role": "user", "content": "I am Alice, and I eat no nuts."}]
    await client.chat.completions.create(model="m", messages=said)
    assert not delivered.is_set(), "it is on its way"
    asked: Any = [{"role": "user", "content": "What may I eat?"}]
    second = asyncio.create_task(client.chat.completions.create(model="m", messages=asked))
    await proxied.deliver(monkeypatch)
    assert len(proxied.provider.asked) == 1
    delivered.set()
    await second
    assert "I eat no nuts" in last_text(proxied.provider.asked[1])


@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropics_messages_are_remembered_and_get_a_memory(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    proxied.provider.replies += ["Noted.", "An apple."]
    texts = ["I am Alice, and I eat no nuts.", "What may I eat?"]
    async with httpx.AsyncClient(base_url=f"{proxied.url}/s/alice") as http:
        for text in texts:
            content = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
            body = {"model": "m", "max_tokens": 9, "stream": streamed}
            body |= {"system": "Be kind.", "messages": [{"role": "user", "content": content}]}
            response = await http.post("/v1/messages", json=body, headers={"x-api-key": "k"})
            assert response.status_code == 200
            await proxied.deliver(monkeypatch)
    sent = proxied.provider.asked[1]["messages"][0]["content"]
    assert sent[0] == {"type": "text", "text": texts[1], "cache_control": {"type": "ephemeral"}}
    assert "I eat no nuts" in sent[1]["text"]
    stored = [(one.role, one.text) for one in await proxied.stored("alice")]
    assert stored == [
        ("user", texts[0]),
        ("assistant", "Noted."),
        ("user", texts[1]),
        ("assistant", "An apple."),
    ]


async def test_pieces_of_a_reply_pass_through_as_they_come(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied.provider.replies.append("one two three")
    said: Any = [{"role": "user", "content": "Count."}]
    stream = await proxied.client("bo").chat.completions.create(
        model="m", messages=said, stream=True
    )
    pieces = [one.choices[0].delta.content async for one in stream if one.choices]
    assert pieces == ["one ", "two ", "three ", None]
    await proxied.deliver(monkeypatch)
    assert [one.text for one in await proxied.stored("bo")] == ["Count.", "one two three"]


async def test_responses_and_other_paths_pass(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied.provider.replies += ["Noted.", "An apple."]
    client = proxied.client("cy")
    assert [one.id async for one in client.models.list()] == ["m"]
    first = await client.responses.create(model="m", input="I am Cy, and I eat no nuts.")
    assert first.output_text == "Noted."
    await proxied.deliver(monkeypatch)
    said: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What may I eat?"}]}]
    await client.responses.create(model="m", input=said)
    assert "I eat no nuts" in proxied.provider.asked[1]["input"][0]["content"][1]["text"]
    stored = [one.text for one in await proxied.stored("cy")]
    assert stored[:2] == ["I am Cy, and I eat no nuts.", "Noted."]


async def test_a_turn_with_tools_keeps_the_bytes_of_its_prompt(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = proxied.client("di")
    proxied.provider.replies += ["Noted.", "", "An apple.", "An apple."]
    await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "I am Di, and I eat no nuts."}]
    )
    await proxied.deliver(monkeypatch)
    talk: list[Any] = [{"role": "user", "content": "What may I eat?"}]
    await client.chat.completions.create(model="m", messages=talk)
    call = {"id": "t", "type": "function", "function": {"name": "shop", "arguments": "{}"}}
    talk += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "apples"},
    ]
    for _ in range(2):
        # The second is a client's own retry.
        await client.chat.completions.create(model="m", messages=talk)
    asked = proxied.provider.asked
    assert asked[1]["messages"][0] == asked[2]["messages"][0] == asked[3]["messages"][0]
    assert "nuts" in asked[1]["messages"][0]["content"]
    await proxied.deliver(monkeypatch)
    stored = [one.text or (one.action, one.observation) for one in await proxied.stored("di")]
    assert stored[:3] == ["I am Di, and I eat no nuts.", "Noted.", "What may I eat?"]
    assert stored[3:] == [("shop({})", "apples"), "An apple."]


async def test_the_cached_share_of_a_conversation_stays(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def share(session: str, tokens: int) -> float:
        provider = proxied.provider
        provider.prompt_tokens = provider.cached_tokens = 0
        proxied.proxy._tokens = tokens
        client = proxied.client(session)
        talk: list[Any] = [{"role": "system", "content": f"You are kind, {session}. " * 40}]
        for turn in range(10):
            talk.append({"role": "user", "content": f"Here is the story of day {turn}. " * 8})
            provider.replies.append(f"A fine day, number {turn}. " * 8)
            reply = await client.chat.completions.create(model="m", messages=talk)
            talk.append({"role": "assistant", "content": reply.choices[0].message.content})
        await proxied.deliver(monkeypatch)
        return provider.cached_tokens / provider.prompt_tokens

    # Something to recall, from another conversation.
    proxied.provider.replies.append("Noted.")
    before: Any = [{"role": "user", "content": "The story of day 3 is about nuts. " * 10}]
    await proxied.client("with").chat.completions.create(model="m", messages=before)
    await proxied.deliver(monkeypatch)
    without, with_memory = await share("none", 0), await share("with", 300)
    assert "about nuts" in last_text(proxied.provider.asked[-1])
    # What is new of a turn comes once without a memory, and its reply a second time with it.
    assert with_memory > 0.65 * without > 0.5


async def test_a_restart_between_a_call_and_its_result_stores_them_once(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    replies = [said, {"role": "assistant", "content": "It rains."}]

    def answer(_: httpx.Request) -> httpx.Response:
        choice = {"index": 0, "message": replies.pop(0), "finish_reason": "stop"}
        body = json.dumps({"id": "r", "choices": [choice]}).encode()
        return httpx.Response(200, stream=httpx.ByteStream(body))

    talk: list[dict[str, Any]] = [{"role": "user", "content": "Is it warm?"}]
    queue = Queue(tmp_path / "queue")
    result = {"role": "tool", "tool_call_id": "c1", "content": "9 degrees"}
    further: list[list[dict[str, Any]]] = [[said, result], []]
    for more in further:
        async with palimpsest.connect("127.0.0.1:1") as client:
            proxy = Proxy(
                client=client,
                upstreams={"openai": "http://provider"},
                session="default",
                queue=queue,
                calls=CallsInProgress(tmp_path / "calls"),
                tokens=0,
                hosts=LOCAL,
                prices=lambda name: PRICES,
                transport=httpx.MockTransport(answer),
            )
            transport = httpx.ASGITransport(proxy)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await http.post("/v1/chat/completions", json={"model": "m", "messages": talk})
            await proxy.close()
        talk += more
    entries = [queue.read(path) for path in queue.waiting()]
    assert [one.role for one in entries] == ["user", "step", "assistant"]
    assert [one["role"] for one in entries[1].messages] == ["assistant", "tool"]
    assert not CallsInProgress(tmp_path / "calls").expired(math.inf)


async def test_the_provider_is_asked_while_the_memory_is_away(tmp_path: Path) -> None:
    provider, queue = Provider(replies=["Hello."]), Queue(tmp_path / "queue")
    upstream = HttpServer(provider, Limits())
    await upstream.start("127.0.0.1:0")
    async with palimpsest.connect("127.0.0.1:1") as client:
        proxy = Proxy(
            client=client,
            upstreams={"openai": upstream.url, "anthropic": upstream.url},
            session="default",
            queue=queue,
            calls=CallsInProgress(tmp_path / "calls"),
            tokens=300,
            hosts=LOCAL,
            prices=lambda name: PRICES,
        )
        transport = httpx.ASGITransport(proxy)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            response = await http.post("/v1/chat/completions", json=body)
        assert response.json()["choices"][0]["message"]["content"] == "Hello."
        assert response.headers["x-palimpsest-recalled"].startswith("unavailable")
        await proxy.finish_calls()
        assert waiting(queue) == ["Hi", "Hello."]
        await proxy.close()
    await upstream.stop(1.0)


async def test_refusals_of_the_provider_pass_and_one_that_is_away_is_named(
    proxied: Proxied,
) -> None:
    proxied.provider.status = 429
    said: Any = [{"role": "user", "content": "Hi"}]
    with pytest.raises(openai.RateLimitError, match="slow down"):
        await proxied.client("ed").chat.completions.create(model="m", messages=said)
    await proxied.upstream.stop(0.1)
    with pytest.raises(openai.InternalServerError, match="openai's API does not answer"):
        await proxied.client("ed").chat.completions.create(model="m", messages=said)


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"host": "evil.example:50090"}, {"origin": "null"}],
)
async def test_web_pages_cannot_read_the_memory(proxied: Proxied, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(base_url=proxied.url) as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "What do you know?"}]}
        response = await http.post("/s/alice/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 403
    assert not proxied.provider.asked
    assert not proxied.queue.waiting()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"messages": 7}', b'{"messages": [7, null, {"role": "user"}]}'),
        b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
async def test_what_is_no_conversation_is_left_to_the_provider(
    proxied: Proxied, content: bytes
) -> None:
    proxied.provider.status = 400
    async with httpx.AsyncClient(base_url=proxied.url) as http:
        response = await http.post("/v1/chat/completions", content=content)
    assert response.status_code in (400, 500)
    assert proxied.provider.headers
    assert not proxied.queue.waiting()


async def test_a_request_that_is_too_large_is_refused(proxied: Proxied) -> None:
    async with httpx.AsyncClient(base_url=proxied.url, timeout=60) as http:
        content = b" " * (MAX_REQUEST_BYTES + 1)
        response = await http.post("/v1/messages", content=content)
    assert (response.status_code, response.json()["type"]) == (413, "error")


class TestBudget:
    """What calls may cost."""

    @pytest.fixture
    def budget(self, tmp_path: Path) -> Budget:
        return Budget(path=tmp_path / "spent.json", usd=0.01, period="day")

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_a_call_that_may_cost_too_much_is_not_made(
        self, proxied: Proxied, budget: Budget, streamed: bool
    ) -> None:
        client = proxied.client("al")
        said: Any = [{"role": "user", "content": "Hi"}]
        with pytest.raises(openai.APIStatusError, match="may cost") as refused:
            await client.chat.completions.create(model="m", messages=said, max_tokens=10_000)
        assert refused.value.status_code == 402
        assert not proxied.provider.asked
        proxied.provider.replies += ["word " * 100] * 20

        async def call() -> None:
            reply: Any = await client.chat.completions.create(
                model="m", messages=said, max_tokens=600, stream=streamed
            )
            if streamed:
                assert [one async for one in reply]

        for _ in range(3):
            await call()
        with pytest.raises(openai.APIStatusError, match="is left for this day"):
            await call()
        # 500 tokens at 5 millionths of a dollar, and some hundred of the prompt.
        assert len(proxied.provider.asked) == 3
        spent = json.loads(budget.path.read_text())["micro_usd"]
        assert 3 * 2500 < spent < 3 * 2700

    @pytest.mark.parametrize("form", ["chat", "messages"])
    async def test_a_client_that_leaves_is_charged_what_may_have_been_written(
        self, proxied: Proxied, budget: Budget, form: str
    ) -> None:
        proxied.provider.replies.append("one two three")
        proxied.provider.stalls = True
        path = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}[form]
        body = {"model": "m", "max_tokens": 1000, "stream": True}
        body |= {"messages": [{"role": "user", "content": "Hi"}]}
        async with httpx.AsyncClient(base_url=f"{proxied.url}/s/al", timeout=30) as http:
            async with http.stream("POST", path, json=body) as response:
                async for _ in response.aiter_bytes():
                    break
                reserved = json.loads(budget.path.read_text())["micro_usd"]
        # The provider's side is closed, and the call is charged.
        await asyncio.wait_for(proxied.provider.left.wait(), 30)
        await proxied.proxy.finish_calls()
        spent = json.loads(budget.path.read_text())["micro_usd"]
        assert 5000 < reserved < 10_000
        assert 0 < spent <= reserved
        # What the client never got whole is not remembered.
        assert waiting(proxied.queue) == ["Hi"]

    async def test_what_cannot_be_read_is_not_sent(self, proxied: Proxied, budget: Budget) -> None:
        async with httpx.AsyncClient(base_url=proxied.url) as http:
            response = await http.post("/v1/messages", content=b"{", headers={"x-api-key": "k"})
        assert (response.status_code, response.json()["type"]) == (400, "error")
        assert not proxied.provider.headers

    async def test_what_the_provider_refuses_costs_nothing(
        self, proxied: Proxied, budget: Budget
    ) -> None:
        proxied.provider.status = 500
        said: Any = [{"role": "user", "content": "Hi"}]
        with pytest.raises(openai.InternalServerError):
            await proxied.client("al").chat.completions.create(
                model="m", messages=said, max_tokens=600
            )
        await proxied.proxy.finish_calls()
        assert json.loads(budget.path.read_text())["micro_usd"] == 0

    async def test_a_damaged_file_stops_calls(self, proxied: Proxied, budget: Budget) -> None:
        budget.path.write_text("{")
        said: Any = [{"role": "user", "content": "Hi"}]
        with pytest.raises(openai.APIStatusError, match="damaged"):
            await proxied.client("al").chat.completions.create(model="m", messages=said)


async def test_the_command_serves_remembers_and_stops(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(replies=["Noted."])
    upstream = HttpServer(provider, Limits())
    await upstream.start("127.0.0.1:0")
    async with serving_both(url) as (address, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "service.cli", "proxy", "--listen", "127.0.0.1:0"),
            *("--openai", upstream.url, "-s", "fay"),
            env={**os.environ, "PALIMPSEST_ADDRESS": address, "XDG_STATE_HOME": str(tmp_path)},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        said = (await process.stderr.readline()).decode()
        client = openai.AsyncOpenAI(base_url=said.split()[-1], api_key="sk-theirs", max_retries=0)
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "I am Fay."}]
        )
        process.send_signal(signal.SIGTERM)
        _, rest = await process.communicate()
        assert process.returncode == 0, rest.decode()
        async with palimpsest.connect(address) as service:
            chunks = [one.text async for one in service.session("fay").chunks()]
        assert chunks == ["I am Fay.", "Noted."]
    await upstream.stop(1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "0.0.0.0:50090"), "asks for no key"),
        (("--listen", "here"), "HOST:PORT"),
        (("--openai", "api.openai.com"), "--openai must be"),
        (("--listen", "127.0.0.1:99999"), "HOST:PORT"),
    ],
)
def test_bad_options_are_one_clear_line(arguments: tuple[str, ...], said: str) -> None:
    assert_one_clear_line(run("proxy", *arguments), said)
