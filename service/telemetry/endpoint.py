"""The metrics of a process, and how it is, over HTTP: /metrics, /livez and /readyz.

It is served by the process's own event loop, so that a reply proves that the loop runs. It
has no authentication, so requests are small, and connections short and few. A new connection over
the limit closes the oldest, so that silent clients cannot lock out scrapers and probes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import h11
import structlog

_log = structlog.get_logger("palimpsest.metrics")

#: Bytes of a request's line and headers.
MAX_REQUEST_BYTES = 8192
#: How long a connection lasts at most: until its request has come, and the response is read.
CONNECTION_SECONDS = 10.0
#: Connections at once.
MAX_CONNECTIONS = 64
#: For how long further scrapes receive the result of the last: many cost as much as one.
FRESH_SECONDS = 1.0
#: How often a process that may wait for a taken port tries again.
AGAIN_SECONDS = 2.0

#: Errors of an address that cannot be used: a host that is no name is noticed last.
_REFUSED = (OSError, UnicodeError, OverflowError)
_OPEN = b"application/openmetrics-text"
_TEXT = "text/plain; charset=utf-8"


class Renders(Protocol):
    """Has the metrics of this process."""

    def render(self, is_open: bool) -> tuple[bytes, str]:
        """Returns them, as OpenMetrics if it `is_open`, and their content type."""
        ...


class CannotListen(Exception):
    """The address is taken, or is none of this machine; the message says which."""


class Endpoint:
    """What one process serves."""

    def __init__(self, metrics: Renders | None, cause: Callable[[], str]) -> None:
        """`metrics`: None where nothing is measured. `cause`: says why the process is not ready,
        or nothing."""
        self._metrics = metrics
        self._cause = cause
        #: The oldest first.
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        # A pool of its own: others may be busy for long.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._rendering = asyncio.Lock()
        #: As OpenMetrics, and as text: until when it is fresh, and what it is.
        self._rendered: dict[bool, tuple[float, bytes, str]] = {}
        self._server: asyncio.Server | None = None

    @asynccontextmanager
    async def at(self, address: str, *, waits: bool = False) -> AsyncIterator[None]:
        """Answers at HOST:PORT. Raises CannotListen, unless it `waits` for the port."""
        listening: asyncio.Task[None] | None = None
        try:
            try:
                await self._listen(address)
            except _REFUSED as error:
                said = f"{address}: {getattr(error, 'strerror', None) or error}"
                if not waits:
                    raise CannotListen(said) from error
                _log.warning("metrics are not served yet", cause=said)
                listening = asyncio.create_task(self._listen_again(address))
            yield
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait((listening,))
            self._close()

    async def _listen_again(self, address: str) -> None:
        while self._server is None:
            await asyncio.sleep(AGAIN_SECONDS)
            with suppress(*_REFUSED):
                await self._listen(address)

    async def _listen(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = await asyncio.start_server(
            self._accept,
            host.removeprefix("[").removesuffix("]"),
            int(port),
            limit=MAX_REQUEST_BYTES,
            # How many asyncio accepts at once: no more than there may be.
            backlog=MAX_CONNECTIONS,
        )
        bound = self._server.sockets[0].getsockname()[1]
        _log.info("metrics are served", listen=f"{host}:{bound}")

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.transport.abort()
        for task in self._connections:
            task.cancel()
        self._threads.shutdown(wait=False)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                await self._answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            # Gone, or too slow: there is no client to report to.
            pass
        except Exception:
            # Whatever it is, the connection must not stay.
            _log.exception("a request failed")
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(MAX_REQUEST_BYTES))
        except h11.RemoteProtocolError as error:
            status, said, kind, is_head = error.error_status_hint, b"", _TEXT, False
        else:
            if not isinstance(event, h11.Request):
                return
            is_head = event.method == b"HEAD"
            try:
                status, said, kind = await self._respond(event)
            except Exception:
                # A defect of what is read, a gauge for example: the client gets an error.
                _log.exception("a request failed")
                status, said, kind = 500, b"failed: the log of this process says why\n", _TEXT
        headers = [("Content-Type", kind), ("Content-Length", str(len(said)))]
        if status == 405:
            headers.append(("Allow", "GET, HEAD"))
        response = h11.Response(status_code=status, headers=[*headers, ("Connection", "close")])
        writer.write(connection.send(response) or b"")
        if not is_head:
            writer.write(connection.send(h11.Data(said)) or b"")
        await writer.drain()

    async def _respond(self, request: h11.Request) -> tuple[int, bytes, str]:
        if request.method not in (b"GET", b"HEAD"):
            return 405, b"only GET and HEAD are answered\n", _TEXT
        match request.target.partition(b"?")[0]:
            case b"/metrics":
                accepted = (value for name, value in request.headers if name == b"accept")
                is_open = any(_OPEN in one for one in accepted)
                if self._metrics is None:
                    return 404, b"OTEL_SDK_DISABLED: nothing is measured\n", _TEXT
                return 200, *await self._render(self._metrics, is_open)
            case b"/livez":
                return 200, b"alive\n", _TEXT
            case b"/readyz":
                cause = self._cause()
                if not cause:
                    return 200, b"ready\n", _TEXT
                return 503, f"{cause}\n".encode(errors="replace"), _TEXT
        return 404, b"there are /metrics, /livez and /readyz\n", _TEXT

    async def _render(self, metrics: Renders, is_open: bool) -> tuple[bytes, str]:
        loop = asyncio.get_running_loop()
        async with self._rendering:
            until, said, kind = self._rendered.get(is_open, (0.0, b"", ""))
            if loop.time() >= until:
                said, kind = await loop.run_in_executor(self._threads, metrics.render, is_open)
                self._rendered[is_open] = loop.time() + FRESH_SECONDS, said, kind
            return said, kind
