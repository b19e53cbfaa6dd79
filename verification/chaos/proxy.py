"""A TCP proxy that does to connections what networks do: cuts, stalls, delays them.

One process is between ours and several servers, and has a port for each. It also cuts a
connection after a commit: the request reaches the server and the reply is lost, so that the
client cannot know whether it was committed.
"""

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verification.chaos import orders

#: How much of a connection is read at once.
READ_BYTES = 65_536
#: What a connection is cut after: the statement in the driver's own and in SQLAlchemy's way.
COMMIT = b"COMMIT"
#: A close that resets.
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(eq=False, slots=True)
class _Link:
    """A connection of a client, and ours to its server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    #: The answer to what was sent is not passed on.
    is_swallowing: bool = False

    def cut(self) -> None:
        """Resets both."""
        for writer in (self.client, self.server):
            if not writer.is_closing():
                end = writer.transport.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            writer.transport.abort()

    def close(self) -> None:
        """Closes both, with what is on its way."""
        for writer in (self.client, self.server):
            writer.close()


@dataclass(slots=True)
class _Way:
    """The way to one server."""

    port: int
    rng: random.Random
    links: set[_Link] = field(default_factory=set)
    #: Set while anything passes.
    passes: asyncio.Event = field(default_factory=asyncio.Event)
    delay_seconds: float = 0.0
    #: Commits whose answers are still to be swallowed.
    swallows: int = 0
    swallowed: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        for one in (writer, far_writer):
            one.transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )
        link = _Link(writer, far_writer)
        self.links.add(link)
        try:
            await asyncio.gather(
                self._pass(reader, far_writer, lambda data: self._sent(link, data)),
                self._pass(far_reader, writer, lambda _: self._answered(link)),
            )
        finally:
            self.links.discard(link)
            link.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        look: Callable[[bytes], bool],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self.passes.wait()
                if not look(data):
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    def _sent(self, link: _Link, data: bytes) -> bool:
        if self.swallows and COMMIT in data:
            self.swallows -= 1
            link.is_swallowing = True
        return True

    def _answered(self, link: _Link) -> bool:
        if not link.is_swallowing:
            return True
        self.swallowed += 1
        link.cut()
        return False

    def cut(self, share: float) -> int:
        """Resets a share of the connections; how many."""
        chosen = [link for link in self.links if self.rng.random() <= share]
        for link in chosen:
            link.cut()
        return len(chosen)


class Proxy:
    """The ways to several servers; what it chooses by chance follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ways: dict[str, _Way] = {}
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> "Proxy":
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for way in self._ways.values():
            way.cut(1.0)

    async def open(self, name: str, port: int, to: int) -> int:
        """Opens a way from one port of this machine, or any (0), to another; the port it is."""
        way = _Way(port=to, rng=random.Random(f"{self._seed} {name}"))
        way.passes.set()
        self._ways[name] = way
        server = await asyncio.start_server(way.serve, "127.0.0.1", port, backlog=512)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def lead(self, name: str, to: int) -> None:
        """Lets the next connections of a way lead to another port; those there are stay."""
        self._ways[name].port = to

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Returns one order: `do`, `way`, and what it takes."""
        if order["do"] == "heal":
            for way in self._ways.values():
                self._heal(way)
                way.swallows = 0
            return {"swallowed": {name: way.swallowed for name, way in self._ways.items()}}
        way = self._ways[order["way"]]
        loop = asyncio.get_running_loop()
        match order["do"]:
            case "cut":
                return {"links": way.cut(order["share"])}
            case "stall":
                way.passes.clear()
                loop.call_later(order["seconds"], way.passes.set)
            case "delay":
                way.delay_seconds = order["each_seconds"]
                loop.call_later(order["seconds"], self._heal, way)
            case "swallow":
                way.swallows += 1
            case unknown:
                raise ValueError(f"no order of a proxy: {unknown}")
        return {}

    def _heal(self, way: _Way) -> None:
        way.delay_seconds = 0.0
        way.passes.set()


def main(control: str, seed: str, *ways: str) -> None:
    """Is the proxy: ways are NAME=PORT:SERVER_PORT."""

    async def serve() -> None:
        async with Proxy(int(seed)) as proxy:
            for way in ways:
                name, _, ports = way.partition("=")
                port, _, to = ports.partition(":")
                await proxy.open(name, int(port), int(to))
            async with await orders.take(Path(control), proxy.do):
                print("ready", flush=True)
                await asyncio.Event().wait()

    asyncio.run(serve())
