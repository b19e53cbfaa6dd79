"""A proxy between a client and a hostile provider, and requests that lead it astray."""

import asyncio
import gzip
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from palimpsest_hook.queue import Queue

import palimpsest
from service.cli.proxy import LOCAL
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.proxy.application import MAX_REQUEST_BYTES, Proxy
from service.proxy.budget import Budget
from service.proxy.open_calls import CallsInProgress
from service.rpc.http.server import HttpServer
from service.settings.config import Limits
from tests.support.honest import Memory
from tests.support.raw_http1 import exchanged
from verification.attacks.attack import Attack, Outcome, Stage

_MAX_GROWTH_MIB = 400
_SECONDS = 120.0
#: A dollar for a million tokens of prompt, and five for those of replies.
_PRICES = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=1e-6,
    read=0.1,
    write=1.0,
    output=5.0,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=300,
)
_OK = b"HTTP/1.1 200 OK\r\n"
_EVENTS = _OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

#: 600 MiB of zeros, packed: members of gzip follow each other.
_BOMB = gzip.compress(bytes(20 * 1024 * 1024), 1) * 30

Hostile = Callable[[asyncio.StreamWriter], Awaitable[None]]


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _sent(writer: asyncio.StreamWriter) -> None:
    """Waits until there is room again, and gives others a turn. Raises OSError."""
    await writer.drain()
    await asyncio.sleep(0)
    if writer.is_closing():
        raise ConnectionResetError


async def _endless(writer: asyncio.StreamWriter) -> None:
    """Sends events without an end."""
    event = b'data: {"choices": [{"delta": {"content": "' + b"x" * 4000 + b'"}}]}\n\n'
    writer.write(_EVENTS)
    while True:
        writer.write(_chunk(event * 10))
        await _sent(writer)


async def _one_line(writer: asyncio.StreamWriter) -> None:
    """Sends an event without an end, in small pieces."""
    writer.write(_EVENTS + _chunk(b"data: "))
    while True:
        writer.write(_chunk(b"x" * 500) * 20)
        await _sent(writer)


async def _bomb(writer: asyncio.StreamWriter) -> None:
    """Sends a reply that unpacks to 600 MiB, although nothing packed was asked for."""
    writer.write(_OK + b"content-type: application/json\r\ncontent-encoding: gzip\r\n")
    writer.write(f"content-length: {len(_BOMB)}\r\n\r\n".encode() + _BOMB)
    await _sent(writer)


async def _no_type(writer: asyncio.StreamWriter) -> None:
    """Sends a reply without a type or a length, which is no JSON."""
    writer.write(_OK + b"\r\n" + b"\0\xff" * 100)
    await _sent(writer)


async def _cut(writer: asyncio.StreamWriter) -> None:
    """Ends a reply in its middle."""
    writer.write(
        _OK + b'content-type: application/json\r\ncontent-length: 900\r\n\r\n{"choices": ['
    )
    await _sent(writer)


async def _headers(writer: asyncio.StreamWriter) -> None:
    """Sends headers without an end."""
    writer.write(_OK)
    while True:
        writer.write(b"x-header: " + b"x" * 1000 + b"\r\n")
        await _sent(writer)


async def _no_http(writer: asyncio.StreamWriter) -> None:
    """Sends what is no HTTP."""
    writer.write(b"\x16\x03\x01" * 100)
    await _sent(writer)


async def _deep(writer: asyncio.StreamWriter) -> None:
    """Sends JSON that is nested deeper than a program may recurse."""
    content = b'{"choices": ' + b"[" * 500_000
    writer.write(_OK + f"content-length: {len(content)}\r\n\r\n".encode() + content)
    await _sent(writer)


async def _wrong_counts(writer: asyncio.StreamWriter) -> None:
    """Sends counts of tokens that none can be."""
    usage = '{"prompt_tokens": -9, "completion_tokens": 1e400, "prompt_tokens_details": 7}'
    content = f'{{"choices": [{{"message": {{"content": ["x", 7]}}}}], "usage": {usage}}}'.encode()
    writer.write(_OK + f"content-length: {len(content)}\r\n\r\n".encode() + content)
    await _sent(writer)


_HOSTILE: tuple[Hostile, ...] = (
    *(_endless, _one_line, _bomb, _no_type, _cut, _headers, _no_http, _deep, _wrong_counts),
)


class _Upstreams:
    """A provider of hostile replies, and an address inside, where nothing may arrive."""

    def __init__(self) -> None:
        self.hostile: Hostile = _no_type
        #: Where a redirect leads.
        self.inside_port = 0
        #: What arrived there.
        self.inside = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await self.hostile(writer)
        writer.close()

    async def redirect(self, writer: asyncio.StreamWriter) -> None:
        """Sends a redirect to an address inside."""
        where = f"http://127.0.0.1:{self.inside_port}/latest/meta-data/"
        writer.write(f"HTTP/1.1 307 X\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n".encode())
        await _sent(writer)

    async def count(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Counts what arrives inside."""
        self.inside += 1
        writer.close()


@asynccontextmanager
async def _proxied(upstreams: _Upstreams, folder: Path) -> AsyncIterator[tuple[HttpServer, Budget]]:
    provider = await asyncio.start_server(upstreams.answer, "127.0.0.1", 0)
    inside = await asyncio.start_server(upstreams.count, "127.0.0.1", 0)
    upstreams.inside_port = inside.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}"
    budget = Budget(path=folder / "spent.json", usd=100.0, period="day")
    # The memory is away, which delays nothing and loses nothing.
    async with palimpsest.connect("127.0.0.1:1") as client, provider, inside:
        proxy = Proxy(
            client=client,
            upstreams={"openai": url, "anthropic": url},
            session="default",
            queue=Queue(folder / "queue"),
            calls=CallsInProgress(folder / "queue" / "calls"),
            tokens=0,
            hosts=LOCAL,
            prices=lambda _: _PRICES,
            budget=budget,
        )
        server = HttpServer(proxy, Limits())
        await server.start("127.0.0.1:0")
        yield server, budget
        await server.stop(1.0)
        await proxy.close()


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}


async def _read(http: httpx.AsyncClient, body: dict[str, Any], most: int) -> str:
    """Reads at most so many bytes of a reply; returns how it ended."""
    read = 0
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for piece in response.aiter_raw():
                read += len(piece)
                if read >= most:
                    break
    except httpx.TransportError as error:
        return type(error).__name__
    return str(response.status_code)


async def _attack(server: HttpServer, upstreams: _Upstreams, most: int) -> dict[str, str]:
    """Returns how the request at each hostile provider ended."""
    ends: dict[str, str] = {}
    async with httpx.AsyncClient(base_url=server.url, timeout=_SECONDS) as http:
        for hostile in (*_HOSTILE, upstreams.redirect):
            upstreams.hostile = hostile
            for streamed in (False, True):
                ends[f"{hostile.__name__}/{streamed}"] = await _read(
                    http, _body(stream=streamed), most
                )
        upstreams.hostile = _no_type
        for name, content in {
            "large": b"[" * (MAX_REQUEST_BYTES + 1),
            "deep": b'{"messages": ' + b"[" * 900_000,
            "nested": b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
        }.items():
            with suppress(httpx.TransportError):
                response = await http.post("/v1/chat/completions", content=content)
                ends[name] = str(response.status_code)
    return ends


async def _astray(server: HttpServer, upstreams: _Upstreams) -> list[str]:
    """Returns the targets whose requests arrived inside, or had no answer of the proxy."""
    port = int(server.url.rpartition(":")[2])
    body, wrong = json.dumps(_body()).encode(), []
    inside = f"127.0.0.1:{upstreams.inside_port}"
    for target in (
        *(f"@{inside}/v1/chat/completions", f"http://{inside}/v1/chat/completions"),
        *(f"//{inside}/v1/chat/completions", f"/s/a/../../@{inside}/v1/responses"),
        *(f"/s/x//{inside}/v1/responses", f"/s/{'x' * 5000}/v1/responses", "/s/%00/v1/responses"),
        *(f"/s//t//@{inside}/responses", "*", ".x/v1/responses", ":1/v1/responses"),
    ):
        reply = await exchanged(port, target, body, authorization="Bearer sk-theirs")
        if reply.status in (0, 500) or upstreams.inside:
            wrong.append(f"{target[:40]}: {reply.status}")
        upstreams.inside = 0
    return wrong


async def _credited(server: HttpServer, budget: Budget) -> list[str]:
    """Returns the requests that raised what is left of the budget."""
    wrong = []
    async with httpx.AsyncClient(base_url=server.url, timeout=_SECONDS) as http:
        for fields in (
            *({"max_tokens": -1_000_000}, {"max_tokens": -1}, {"max_completion_tokens": 0}),
            *({"n": -5}, {"max_tokens": 10**9, "max_completion_tokens": 1}),
        ):
            before = json.loads(budget.path.read_text())["micro_usd"]
            response = await http.post("/v1/chat/completions", json=_body(**fields))
            after = json.loads(budget.path.read_text())["micro_usd"]
            # The reply has no counts, so that what was held stays.
            if response.status_code != 402 and after - before < 32_000:
                wrong.append(f"{fields}: {after - before} held")
    return wrong


async def _run(stage: Stage) -> Outcome:
    most = (2 if stage.short else 64) * 1024 * 1024
    upstreams = _Upstreams()
    with tempfile.TemporaryDirectory() as folder:
        async with _proxied(upstreams, Path(folder)) as (server, budget):
            memory = Memory(os.getpid())
            with memory.watched():
                ends = await asyncio.wait_for(_attack(server, upstreams, most), _SECONDS * 4)
            redirected = upstreams.inside
            wrong = [*await _astray(server, upstreams), *await _credited(server, budget)]
    failed = [name for name, status in ends.items() if status.startswith("5") and status != "502"]
    held = not (wrong or failed or redirected) and memory.growth <= _MAX_GROWTH_MIB
    said = "; ".join((*failed, *wrong)) or "nothing wrong"
    return Outcome(held=held, found=f"{ends}; memory +{memory.growth} MiB; {said}")


ATTACK = Attack(
    name="proxy_upstreams",
    finding="surfaces 3",
    summary="hostile replies of a provider, targets and budgets that lead the proxy astray",
    goal=f"nothing arrives elsewhere, no budget grows, memory within {_MAX_GROWTH_MIB} MiB",
    before="a target @HOST went to HOST with the client's key; max_tokens -1 raised the budget",
    run=_run,
)
