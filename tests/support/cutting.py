"""A TCP proxy that cuts the connections through it, freezes them, or refuses new ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url


class Proxy:
    """Forwards connections to an address, until it is asked to cut them."""

    def __init__(self, to: str) -> None:
        self._host, _, port = to.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""
        #: Connections that came through.
        self.connections = 0
        self.server: asyncio.Server | None = None
        #: Set while data passes, for each direction.
        self._goes = {"to_client": asyncio.Event(), "to_server": asyncio.Event()}
        self._refuses = False
        self.release()

    async def close(self) -> None:
        """Takes no more connections, and ends those that are there."""
        assert self.server is not None, "it was started"
        self.server.close()
        self.cut()

    def cut(self) -> None:
        """Ends all connections at once, without a word."""
        for writer in self._writers:
            writer.transport.abort()

    def hold(self, *directions: str) -> None:
        """Stops passing data on, while the connections stay open; in both directions by default."""
        for direction in directions or self._goes:
            self._goes[direction].clear()

    def refuse(self) -> None:
        """Ends all connections, and those that are made until `release`."""
        self._refuses = True
        self.cut()

    def release(self) -> None:
        """Passes on what was delayed, and all that follows."""
        self._refuses = False
        for goes in self._goes.values():
            goes.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        self.connections += 1
        if self._refuses:
            writer.transport.abort()
            return
        ends = {writer}
        # One that is cut while the far end is still called is cut as well.
        self._writers |= ends
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            ends.add(far_writer)
            self._writers |= ends
            if self.server is not None and self.server.is_serving():
                await asyncio.gather(
                    self._pass(reader, far_writer, self._goes["to_server"]),
                    self._pass(far_reader, writer, self._goes["to_client"]),
                )
        except OSError:
            # The server is not there: the client sees the end of its connection.
            pass
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, goes: asyncio.Event
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await goes.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def cutting(address: str) -> AsyncIterator[Proxy]:
    """Yields a proxy in front of the service at `address`."""
    proxy = Proxy(address)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.server = server
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.release()
        proxy.cut()
        await server.wait_closed()


@asynccontextmanager
async def relayed(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Yields a proxy in front of the database at `url`, and the URL of the database through it."""
    known = conninfo_to_dict(url)
    async with cutting(f"{known['host']}:{known['port'] or 5432}") as proxy:
        host, _, port = proxy.address.rpartition(":")
        through = make_url(url).set(host=host, port=int(port))
        yield proxy, through.render_as_string(hide_password=False)
