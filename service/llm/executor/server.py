"""The executor's side: accepts orders from workers, and completes them even if these are gone."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from service.domain.values.fault_hook import boundary
from service.llm.executor.wire import (
    NO_ORDER,
    failure_to_json,
    frame,
    read_frame,
    reply_to_json,
    request_from_json,
)
from service.llm.gateway.call_executor import CallExecutor, LeaseLost
from service.llm.providers.failures import ModelFailure
from service.llm.providers.streamed_reply import OnText
from service.telemetry import logs, tracing
from storage.engine.errors import StorageError

_log = structlog.get_logger("palimpsest.executor")


class ExecutorServer:
    """Serves workers over Unix sockets."""

    def __init__(self, executor: CallExecutor, *, stop_seconds: float | None = None) -> None:
        """`stop_seconds`: how long calls may go on after a stop; None: without limit."""
        self._executor = executor
        self._stop_seconds = stop_seconds
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one worker until it disconnects."""
        making: set[asyncio.Task[None]] = set()
        writer.write(frame({"id": NO_ORDER}))
        try:
            while (said := await read_frame(reader)) is not None:
                if "call_off" in said:
                    # An order that came together with this has to begin first.
                    await asyncio.sleep(0)
                    self._executor.call_off(bytes.fromhex(said["call_off"]))
                    continue
                task = asyncio.create_task(self._answer(said, writer))
                making.add(task)
                task.add_done_callback(making.discard)
        except ValueError as error:
            _log.warning("a worker was disconnected for a malformed frame", cause=str(error))
        finally:
            # Its calls go on in the executor; their answers have no reader.
            for task in making:
                task.cancel()
            await asyncio.gather(*making, return_exceptions=True)
            writer.close()

    async def serve_one(self, at: socket.socket, stop: asyncio.Event) -> None:
        """Serves the worker at the other end of `at` until it disconnects, or `stop` is set.

        Calls in progress are completed: all of them if the worker is gone, which may have been
        killed, or within `stop_seconds` if `stop` is set.
        """
        serving = asyncio.create_task(self.serve(*await asyncio.open_connection(sock=at)))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            await self._executor.finish(self._stop_seconds if stop.is_set() else None)
        finally:
            serving.cancel()
            stopped.cancel()
            await asyncio.gather(serving, stopped, return_exceptions=True)

    async def listen(self, path: Path, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Serves all workers that connect at `path`, until `stop` is set."""

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self.serve(reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        server = await asyncio.start_unix_server(connected, sock=_bound(path))
        ready()
        try:
            await stop.wait()
        finally:
            server.close()
            await self._executor.finish(self._stop_seconds)
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _answer(self, said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            await self._say(said, writer)
        except (ConnectionError, RuntimeError) as error:
            _log.info("the worker of a reply is gone; the reply is stored", cause=str(error))
        except Exception:
            # The worker must not wait forever: it sees the end of the connection, and its next
            # try finds a reply that is stored.
            _log.exception("an order gets no answer")
            writer.close()

    async def _say(self, said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = said["id"]
        boundary("order", "received")

        def hear(text: str, restarts: bool) -> None:
            # A reply is small: no need to wait for a worker that reads slowly.
            if not writer.is_closing():
                writer.write(frame({"id": number, "heard": text, "restarts": restarts}))

        with logs.about(**said.get("about", {})), tracing.continued(said.get("trace", "")):
            outcome = await self._outcome(said["order"], hear if said.get("tells") else None)
        boundary("outcome", "known")
        writer.write(frame({"id": number, **outcome}))
        await writer.drain()
        boundary("outcome", "sent")

    async def _outcome(self, order: dict[str, Any], on_text: OnText | None) -> dict[str, Any]:
        try:
            reply = await self._executor.make(replace(request_from_json(order), on_text=on_text))
        except ModelFailure as error:
            return failure_to_json(error)
        except LeaseLost:
            return {"lease_lost": True}
        except StorageError as error:
            return {"storage": str(error)}
        except Exception as error:
            # One broken call must not end the others.
            _log.exception("call broke")
            return {"broken": f"{type(error).__name__}: {error}"}
        return reply_to_json(reply)


def _bound(path: Path) -> socket.socket:
    """Returns a socket at `path` to which only our own user can connect."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    # Before it listens, since any process that can connect can spend.
    path.chmod(0o600)
    return bound
