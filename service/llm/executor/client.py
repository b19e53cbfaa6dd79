"""The worker's side: sends orders to an executor, and starts one if necessary."""

import asyncio
import os
import socket
import subprocess
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelReply
from service.domain.values.fault_hook import boundary
from service.llm.executor.spawning import PARENT_FD, Spawned, near_model, spawn
from service.llm.executor.wire import (
    NO_ORDER,
    failure_from_json,
    frame,
    read_frame,
    reply_from_json,
    request_to_json,
)
from service.llm.gateway.call_executor import LeaseLost
from service.llm.gateway.gateway import MakesCalls
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallRequest
from service.llm.providers.streamed_reply import OnText
from service.telemetry import logs, tracing
from storage.engine.errors import Unreachable

_log = structlog.get_logger("palimpsest.executor")

#: How often the connection is checked; the interval doubles while the process is gone.
RECONNECT_SECONDS = 5.0
MAX_RECONNECT_SECONDS = 60.0


class CallBroke(Exception):
    """A defect in the executor; the message names it."""


class RemoteExecutor:
    """Makes calls through an executor in another process."""

    def __init__(
        self,
        path: Path | None,
        *,
        stop_seconds: float,
        spawned: Spawned | None = None,
        metrics_listen: str | None = None,
    ) -> None:
        """`path`: where a shared executor listens; without it the worker has one of its own, the
        one that was `spawned` for it, if any, which serves metrics at `metrics_listen`, if set."""
        self._path = path
        self._spawned = spawned
        self._stop_seconds = stop_seconds
        self._metrics_listen = metrics_listen
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._numbers = count(1)
        self._waiting: dict[int, _PendingCall] = {}
        #: Set once the process accepts orders.
        self._ready = asyncio.Event()

    async def make(self, order: CallRequest) -> ModelReply:
        """Returns the reply, stored durably. Raises ModelFailure, LeaseLost, StorageError."""
        number = next(self._numbers)
        said: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        streams = {} if order.on_text is None else {"tells": True}
        more = {"about": logs.work_fields(), "trace": tracing.traceparent()}
        said_of_it = {name: value for name, value in more.items() if value}
        raw = frame({"id": number, "order": request_to_json(order), **streams, **said_of_it})
        try:
            try:
                writer = await self._connected()
                self._waiting[number] = _PendingCall(
                    said=said, key=order.key, on_text=order.on_text
                )
                boundary("order", "connected")
                writer.write(raw)
                await writer.drain()
                boundary("order", "sent")
            except OSError as error:
                raise _gone(str(error)) from error
            outcome = await said
            boundary("outcome", "received")
            return _reply(outcome)
        finally:
            # Also if the caller was cancelled before all of it was sent.
            self._waiting.pop(number, None)

    @property
    def is_connected(self) -> bool:
        """Whether there is a process that accepts orders."""
        return self._writer is not None

    def call_off(self, key: bytes) -> None:
        """Cancels a call in progress that has no caller left."""
        for number, waiting in self._waiting.items():
            if waiting.key == key and self._writer is not None:
                self._writer.write(frame({"id": number, "call_off": key.hex()}))

    async def start(self) -> None:
        """Connects now, so that the first call does not wait."""
        with suppress(OSError):
            await self._connected()

    async def stay_connected(self) -> None:
        """Reconnects whenever the process is gone, until cancelled.

        A worker without calls would otherwise report it as gone until its next call.
        """
        pause = RECONNECT_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self.is_connected:
                pause = RECONNECT_SECONDS
            else:
                # A process that dies while it starts is not restarted in a tight loop.
                pause = min(2 * pause, MAX_RECONNECT_SECONDS)
                await self.start()

    async def wait_until_ready(self, seconds: float) -> None:
        """Waits until the process accepts orders, for at most `seconds`: imports take seconds."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._connected()
                await self._ready.wait()

    async def close(self) -> None:
        """Disconnects; waits at most `stop_seconds` for a process of its own to end.

        The process completes its calls in any case, except under `up`: that stops the database
        next, so no reply could be stored.
        """
        if self._spawned is not None:
            # It has no calls yet.
            self._own().close()
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, self._stop_seconds)
            except subprocess.TimeoutExpired:
                if not os.environ.get(PARENT_FD):
                    _log.warning("the executor is left to finish its calls")
                    return
                _log.warning("calls took longer than the time to stop; they are made again")
                self._process.kill()
                await asyncio.to_thread(self._process.wait)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                if self._path is None:
                    reader, self._writer = await asyncio.open_connection(sock=self._own())
                else:
                    reader, self._writer = await asyncio.open_unix_connection(self._path)
                # It serves all calls, so its log lines name none of them.
                self._reading = asyncio.create_task(
                    self._read(reader, self._writer), context=Context()
                )
            return self._writer

    def _own(self) -> socket.socket:
        """Returns the socket to a process of our own: the given one first, then new ones."""
        spawned, self._spawned = self._spawned or spawn(self._metrics_listen), None
        self._process = spawned.process
        return spawned.end

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (said := await read_frame(reader)) is not None:
                if said["id"] == NO_ORDER:
                    self._ready.set()
                waiting = self._waiting.get(said["id"])
                if waiting is not None and not waiting.said.done():
                    waiting.hear(said)
        finally:
            # Callers must not wait for an executor that is gone; the next call starts another.
            self._ready.set()
            if self._writer is writer:
                self._writer = None
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.said.done():
                    waiting.said.set_exception(_gone("it went away"))
                    # Retrieved, as a caller that is still sending gets its error there.
                    waiting.said.exception()


@dataclass(frozen=True, kw_only=True, slots=True)
class _PendingCall:
    """A call whose outcome is awaited."""

    #: The frame with the outcome.
    said: asyncio.Future[dict[str, Any]]
    key: bytes
    on_text: OnText | None

    def hear(self, said: dict[str, Any]) -> None:
        """Handles a frame from the executor."""
        if "heard" not in said:
            self.said.set_result(said)
        elif self.on_text is not None:
            self.on_text(said["heard"], said["restarts"])


class ExecutorRouter:
    """Chooses between this process and the executor for each call; see `MakesCalls`."""

    def __init__(self, local: MakesCalls, remote: MakesCalls) -> None:
        self._local = local
        self._remote = remote

    async def make(self, order: CallRequest) -> ModelReply:
        """Makes a call where its model is."""
        executor = self._local if near_model(order.model) else self._remote
        return await executor.make(order)

    def call_off(self, key: bytes) -> None:
        """Cancels a call in either."""
        self._local.call_off(key)
        self._remote.call_off(key)


def _gone(cause: str) -> ModelFailure:
    return ModelFailure(
        f"the process that makes the calls is gone: {cause}",
        retryable=True,
        fault=Fault.EXECUTOR_GONE,
    )


def _reply(said: dict[str, Any]) -> ModelReply:
    if "text" in said:
        return reply_from_json(said)
    if "failure" in said:
        raise failure_from_json(said)
    if "lease_lost" in said:
        raise LeaseLost
    if "storage" in said:
        raise Unreachable(said["storage"])
    raise CallBroke(said["broken"])
