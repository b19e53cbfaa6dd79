"""Streams of changes over HTTP for versions with a handshake: GET /mcp/SESSION.

A client of such a version gets an id when it begins. It subscribes by requests that name it, and
reads what has changed from a stream that names it. Every other request is served without it.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason
from service.mcp.subscriptions import Subscriptions
from service.usecases.log.concurrency_limiter import BUSY_RETRY_SECONDS
from storage.engine.tasks import cancel

#: The header with the id.
ID_HEADER = "mcp-session-id"
#: For how long subscriptions wait for a client that opens its stream, for the first time or again.
KEPT_SECONDS = 60.0
#: How often a stream without changes sends a comment, so that nothing between takes it for dead.
ALIVE_SECONDS = 15.0
#: Characters of an id that are random; the others show which client it was given to.
_RANDOM = 32


class ChangeStream:
    """What a client subscribed to, and what of it has changed."""

    def __init__(self) -> None:
        self.kept = Subscriptions(give_up_seconds=0.0)
        #: What is to be reported, each memory once.
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._reader: object = None
        self._is_closed = False
        #: Ends what a client does not read.
        self.expiry: asyncio.Task[None] | None = None

    @property
    def is_read(self) -> bool:
        """Whether a client reads it."""
        return self._reader is not None

    async def changed(self, uri: str) -> None:
        """Reports a change to the client as soon as it reads."""
        self._changed[uri] = None
        self._wake.set()

    async def close(self) -> None:
        """Ends the subscriptions, and the response to the client."""
        self._is_closed = True
        self._wake.set()
        await self.kept.close()

    async def events(self) -> AsyncGenerator[bytes]:
        """Yields changes as server-sent events. A further reader ends an earlier one."""
        # What an earlier reader was sent, it may not have got.
        self._changed |= dict.fromkeys(self.kept.uris)
        self._reader = reader = object()
        self._wake.set()
        try:
            yield b": open\n\n"
            while self._reader is reader and not self._is_closed:
                self._wake.clear()
                changed, self._changed = self._changed, {}
                for uri in changed:
                    yield _event("notifications/resources/updated", {"uri": uri})
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    yield b": alive\n\n"
        finally:
            if self._reader is reader:
                self._reader = None


class ChangeStreams:
    """The streams of the clients that began at this server, by their ids."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._secret = secrets.token_bytes(32)
        self._streams: dict[str, ChangeStream] = {}

    def new_id(self, owner: str) -> str:
        """Returns an id for a client. It takes no room here until the client uses it."""
        random = secrets.token_hex(_RANDOM // 2)
        return random + self._proof(random, owner)

    def find(self, given: str, owner: str) -> ChangeStream | None:
        """Returns a client's stream; None for an id that this server did not give to `owner`.

        Raises Exhausted (TOO_MANY_WATCHES).
        """
        random = given[:_RANDOM]
        proof = self._proof(random, owner).encode()
        if not hmac.compare_digest(given[_RANDOM:].encode("utf-8", "replace"), proof):
            return None
        if given not in self._streams:
            if len(self._streams) >= self._most:
                raise Exhausted(
                    Reason.TOO_MANY_WATCHES,
                    f"this server has {self._most} streams of changes: open one later",
                    {"limit": self._most},
                    retry_seconds=BUSY_RETRY_SECONDS,
                )
            self._streams[given] = ChangeStream()
            self._expire(given)
        return self._streams[given]

    async def read(self, given: str, stream: ChangeStream) -> AsyncIterator[bytes]:
        """Yields the events of a stream, which stays for a while after its reader has gone."""
        try:
            async with aclosing(stream.events()) as events:
                async for event in events:
                    yield event
        finally:
            if not stream.is_read and self._streams.get(given) is stream:
                self._expire(given)

    async def close(self) -> None:
        """Ends all streams."""
        streams = list(self._streams.values())
        self._streams.clear()
        await cancel([one.expiry for one in streams if one.expiry is not None])
        for one in streams:
            await one.close()

    def _expire(self, given: str) -> None:
        stream = self._streams[given]
        if stream.expiry is None or stream.expiry.done():
            stream.expiry = asyncio.create_task(self._expired(given, stream))

    async def _expired(self, given: str, stream: ChangeStream) -> None:
        """Ends a stream that has no reader for a while."""
        until = asyncio.get_running_loop().time() + KEPT_SECONDS
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(KEPT_SECONDS / 10)
            if stream.is_read:
                return
        self._streams.pop(given, None)
        await stream.close()

    def _proof(self, random: str, owner: str) -> str:
        text = json.dumps([random, owner]).encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


def _event(method: str, params: Mapping[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return f"event: message\ndata: {json.dumps(message)}\n\n".encode()
