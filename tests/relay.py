"""A relay to a server that can be made to stand still: its host is there and says nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url


class Relay:
    """Passes bytes on both ways, while it goes."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._goes = asyncio.Event()
        self._goes.set()
        self._passing: set[asyncio.Task[None]] = set()

    def hold(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._goes.clear()

    def let_go(self) -> None:
        """What was held passes, and what comes."""
        self._goes.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        there, here = await asyncio.open_connection(self._host, self._port)
        for one in (self._pass(reader, here), self._pass(there, writer)):
            task = asyncio.create_task(one)
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._goes.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            # The one end is gone: the other one hears of it.
            pass
        finally:
            writer.close()

    async def end(self) -> None:
        """Breaks all connections."""
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)


@asynccontextmanager
async def relayed(url: str) -> AsyncIterator[tuple[Relay, str]]:
    """A relay to the database at `url`, and the URL of the database through it."""
    known = conninfo_to_dict(url)
    relay = Relay(str(known["host"]), int(known["port"] or 5432))
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        through = make_url(url).set(host="127.0.0.1", port=port)
        yield relay, through.render_as_string(hide_password=False)
    finally:
        server.close()
        await relay.end()
