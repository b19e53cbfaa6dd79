"""`python -m tests.support.raw_http2 ADDRESS WHAT STREAMS CONNECTIONS`: a hostile client.

It writes HTTP/2 frames itself, so that it can do what no gRPC client does: open calls and
send nothing (`silent`), all of a message but its last byte (`partial`), or that as the second
message of an opened append stream (`opened`). What the service ends it begins again. It ends
when its standard input does.
"""

import asyncio
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from palimpsest.v1 import session_service_pb2

#: The largest message that the service takes, in bytes.
MESSAGE_BYTES = 4 * 1024 * 1024
#: Pause between two rounds of calls begun again, in seconds.
AGAIN_SECONDS = 5.0
_PIECE = b"x" * 16384


def framed(message: bytes) -> bytes:
    """Returns a message as gRPC sends it, not compressed."""
    return b"\0" + struct.pack(">I", len(message)) + message


def silent() -> tuple[str, bytes, int]:
    """Returns a call that sends nothing: its method, what it sends first, and bytes after."""
    return "/palimpsest.v1.SessionService/AppendChunks", b"", 0


def partial() -> tuple[str, bytes, int]:
    """Returns a unary call whose message lacks its last byte."""
    return "/palimpsest.v1.SessionService/Append", _prefix(), MESSAGE_BYTES - 1


def opened() -> tuple[str, bytes, int]:
    """Returns an append stream that opens, and whose next message lacks its last byte."""
    opening = session_service_pb2.AppendChunksRequest.Open(
        session="s", producer_id="attacker", epoch=1
    )
    first = framed(session_service_pb2.AppendChunksRequest(open=opening).SerializeToString())
    return "/palimpsest.v1.SessionService/AppendChunks", first + _prefix(), MESSAGE_BYTES - 1


def _prefix() -> bytes:
    return b"\0" + struct.pack(">I", MESSAGE_BYTES)


class Attacker:
    """One connection that keeps `streams` calls open."""

    def __init__(self, address: str, call: Callable[[], tuple[str, bytes, int]]) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._call = call
        self._state = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        #: What each open call still has to send, in bytes.
        self._left: dict[int, int] = {}
        #: Calls begun so far.
        self.begun = 0

    async def run(self, streams: int) -> None:
        """Attacks until it is cancelled, or the service closes the connection."""
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        try:
            self._state.initiate_connection()
            listening = asyncio.create_task(self._listen(reader, writer))
            while not listening.done():
                while len(self._left) < min(streams, self._allowed()):
                    self._begin()
                await self._flush(writer)
                await asyncio.wait((listening,), timeout=AGAIN_SECONDS)
            listening.result()
        finally:
            writer.close()

    def _allowed(self) -> int:
        return self._state.remote_settings.max_concurrent_streams

    def _begin(self) -> None:
        method, first, more = self._call()
        number = self._state.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", method)]
        headers += [(":authority", "a"), ("content-type", "application/grpc"), ("te", "trailers")]
        self._state.send_headers(number, headers)
        if first:
            self._state.send_data(number, first)
        self._left[number] = more
        self.begun += 1

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            for event in self._state.receive_data(data):
                match event:
                    case h2.events.StreamEnded() | h2.events.StreamReset():
                        self._left.pop(event.stream_id or 0, None)
                    case h2.events.ConnectionTerminated():
                        return
            await self._flush(writer)

    async def _flush(self, writer: asyncio.StreamWriter) -> None:
        """Sends what the windows allow."""
        for number in [number for number, left in self._left.items() if left]:
            # The service may have ended the call before its answer was read.
            with suppress(h2.exceptions.StreamClosedError, h2.exceptions.NoSuchStreamError):
                self._send(number)
            writer.write(self._state.data_to_send())
            await writer.drain()
        writer.write(self._state.data_to_send())
        await writer.drain()

    def _send(self, number: int) -> None:
        while self._left.get(number):
            window = self._state.local_flow_control_window(number)
            piece = _PIECE[: min(window, self._left[number])]
            if not piece:
                return
            self._state.send_data(number, piece)
            self._left[number] -= len(piece)


async def attack(
    address: str, call: Callable[[], tuple[str, bytes, int]], streams: int, connections: int
) -> None:
    """Keeps `streams` calls open over `connections`, until standard input ends."""
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    attackers = [Attacker(address, call) for _ in range(connections)]
    running = [asyncio.create_task(attacker.run(streams // connections)) for attacker in attackers]
    async with asyncio.timeout(120):
        while sum(attacker.begun for attacker in attackers) < streams // connections * connections:
            await asyncio.wait(running, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
    print("attacking", flush=True)
    await ended
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def main() -> None:
    """Attacks as the command line says."""
    address, what, streams, connections = sys.argv[1:]
    call = {"silent": silent, "partial": partial, "opened": opened}[what]
    asyncio.run(attack(address, call, int(streams), int(connections)))


if __name__ == "__main__":
    main()
