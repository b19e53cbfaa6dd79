"""The proxy of a campaign: what it lets through, cuts, and swallows after a commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from verification.chaos.proxy import Proxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def proxied(heard: list[bytes]) -> AsyncIterator[tuple[Proxy, Ends]]:
    """Yields a proxy to a server that says back what it hears, and a connection through it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            heard.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Proxy(1) as proxy:
        port = await proxy.open("way", 0, server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield proxy, (reader, writer)
        writer.close()


async def test_a_commit_arrives_and_its_answer_does_not() -> None:
    heard: list[bytes] = []
    async with proxied(heard) as (proxy, (reader, writer)):
        proxy.do({"do": "swallow", "way": "way"})
        writer.write(b"SELECT")
        assert await reader.read(1000) == b"SELECT"
        writer.write(b"COMMIT")
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        assert heard == [b"SELECT", b"COMMIT"]
        assert proxy.do({"do": "heal"}) == {"swallowed": {"way": 1}}


async def test_nothing_passes_one_that_stalls_until_it_is_healed() -> None:
    async with proxied([]) as (proxy, (reader, writer)):
        proxy.do({"do": "stall", "way": "way", "seconds": 60})
        writer.write(b"x")
        reading = asyncio.create_task(reader.readexactly(1))
        await asyncio.wait((reading,), timeout=0.1)
        assert not reading.done()
        proxy.do({"do": "heal"})
        assert await reading == b"x"


async def test_a_cut_resets_what_is_open() -> None:
    async with proxied([]) as (proxy, (reader, writer)):
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert proxy.do({"do": "cut", "way": "way", "share": 1.0}) == {"links": 1}
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
