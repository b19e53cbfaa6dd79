"""A model server that takes requests and does not reply, and notices clients that disconnect."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from tests.unit.calls.scripted_calls import make_ask


class UnresponsiveModel:
    """Accepts requests; each stays open until its client closes the connection."""

    def __init__(self, *, drips_seconds: float | None = None) -> None:
        """Without `drips_seconds` not a byte is sent, else a byte of a body so often."""
        self._drips_seconds = drips_seconds
        self.url = ""
        #: Bodies of the requests that came.
        self.requests: list[dict[str, object]] = []
        #: How many of them their clients closed.
        self.left = 0
        self._changed = asyncio.Event()

    async def until(self, *, requests: int = 0, left: int = 0) -> None:
        """Waits until so many came, and so many were left."""
        while len(self.requests) < requests or self.left < left:
            self._changed.clear()
            await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        dripping: asyncio.Task[None] | None = None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split()[0])
            self.requests.append(json.loads(await reader.readexactly(length)))
            self._changed.set()
            if self._drips_seconds is not None:
                dripping = asyncio.create_task(self._drip(writer, self._drips_seconds))
            # A client that leaves bytes unread resets it; one that has read all ends it.
            with suppress(ConnectionError):
                await reader.read()
            self.left += 1
            self._changed.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            # A connection on which nothing was asked, or that was broken off.
            pass
        finally:
            if dripping is not None:
                dripping.cancel()
            writer.close()

    async def _drip(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(seconds)


async def warm_litellm() -> None:
    """Makes litellm's first call, which takes seconds before anything is sent."""
    nobody = Config(model_base_url="http://127.0.0.1:1/v1")
    with suppress(ModelFailure):
        await LitellmTransport(nobody).complete(make_ask("task"), "openai/fake", CallPlan())


@asynccontextmanager
async def unresponsive_model(
    *, drips_seconds: float | None = None
) -> AsyncIterator[UnresponsiveModel]:
    """Such a server on a free port of this machine."""
    model = UnresponsiveModel(drips_seconds=drips_seconds)
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        server.close()
