"""Requests in HTTP/1.1 whose bytes no client library checks or changes.

`python -m tests.support.raw_http1 PORT WHAT CONNECTIONS` floods the tools for models of a server:
with bodies that come a byte at a time (`slow`), with requests of the largest size as fast as they
are answered (`large`), or with streams of changes that it never reads (`listening`). What the
server ends it begins again. It ends when its standard input does.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

SECONDS = 60.0
#: Bytes of the largest request that is served.
LARGEST_BYTES = 1024 * 1024
#: Pause before a connection that the server ended is opened again.
AGAIN_SECONDS = 5.0
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a server sent until it closed the connection."""

    status: int
    content: str


async def exchanged(port: int, target: str, body: bytes, **headers: str) -> Reply:
    """Returns the reply to a POST, over a connection of its own; status 0: it was closed.

    Underscores in names of headers are hyphens.
    """
    given = {"host": f"127.0.0.1:{port}", "content-length": str(len(body)), **headers}
    lines = [f"POST {target} HTTP/1.1", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    head = "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head + body)
            said = await reader.read()
        except ConnectionError:
            return Reply(status=0, content="")
        finally:
            writer.close()
    first, _, rest = said.decode("utf-8", "replace").partition("\r\n")
    status = first.split(" ")[1] if first.startswith("HTTP/1.1 ") else "0"
    return Reply(status=int(status), content=rest)


def request(method: str, **params: Any) -> dict[str, Any]:
    """Returns a request of the protocol."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}


def head(port: int, method: str, name: str, size: int) -> bytes:
    """Returns the head of a request with a body of `size` bytes."""
    lines = [
        f"POST /mcp/s HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {size}",
        "content-type: application/json\r\naccept: application/json, text/event-stream",
        f"mcp-protocol-version: {VERSION}\r\nmcp-method: {method}",
    ]
    return "\r\n".join([*lines, *([f"mcp-name: {name}"] if name else []), "", ""]).encode()


Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Notes that a connection does what it is for.
Begun = Callable[[], None]


async def slow(port: int, opened: Opened, begun: Begun) -> None:
    """Sends a body a byte at a time."""
    reader, writer = opened
    writer.write(head(port, "tools/list", "", LARGEST_BYTES))
    while not reader.at_eof():
        writer.write(b" ")
        await writer.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 1.0)
        begun()


async def large(port: int, opened: Opened, begun: Begun) -> None:
    """Sends requests of the largest size, as fast as they are answered."""
    reader, writer = opened
    bodies = []
    for arguments in ({"positions": [1] * 300_000}, {"text": "x" * 1_000_000}):
        params = {"name": "forget", "arguments": {**arguments, "dry_run": True}}
        bodies.append(json.dumps(request("tools/call", **params), separators=(",", ":")).encode())
    begun()
    for body in itertools.cycle(bodies):
        writer.write(head(port, "tools/call", "forget", len(body)) + body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        lengths = [
            one for one in answer.lower().split(b"\r\n") if one.startswith(b"content-length")
        ]
        await reader.readexactly(int(lengths[0].split(b":")[1]))


async def listening(port: int, opened: Opened, begun: Begun) -> None:
    """Opens a stream of changes, and reads nothing."""
    reader, writer = opened
    names = {"resourceSubscriptions": ["palimpsest://memories/m"]}
    body = json.dumps(request("subscriptions/listen", notifications=names)).encode()
    writer.write(head(port, "subscriptions/listen", "", len(body)) + body)
    await writer.drain()
    # What the server opens or refuses with its head, it has done.
    await reader.readuntil(b"\r\n\r\n")
    begun()
    await asyncio.Event().wait()


FLOODS: dict[str, Callable[[int, Opened, Begun], Awaitable[None]]] = {
    "slow": slow,
    "large": large,
    "listening": listening,
}


async def _flood(port: int, what: str, begun: Begun) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            opened = await asyncio.open_connection("127.0.0.1", port)
            try:
                await FLOODS[what](port, opened, begun)
            finally:
                opened[1].close()
        await asyncio.sleep(AGAIN_SECONDS)


async def _run(port: int, what: str, connections: int) -> None:
    began, all_began = 0, asyncio.Event()

    def begun() -> None:
        nonlocal began
        began += 1
        if began >= connections:
            all_began.set()

    async with asyncio.TaskGroup() as group:
        floods = [group.create_task(_flood(port, what, begun)) for _ in range(connections)]
        await all_began.wait()
        print("attacking", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for one in floods:
            one.cancel()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
