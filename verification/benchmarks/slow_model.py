"""An OpenAI-compatible server that answers after a pause, as many as ask it at once."""

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection

#: In a reply it is replaced by the number of the request.
NUMBER = "{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Habit:
    """How requests are answered that have a text in them."""

    #: Looked for in the request's body, which is JSON: of plain letters, best.
    marker: str
    #: The pause, from 0 on.
    seconds: float
    reply: str


@contextmanager
def slow_server(seconds: float, reply: str, habits: Sequence[Habit] = ()) -> Iterator[str]:
    """Yields a server in a process of its own that says `reply` after so long; its URL.

    Requests with the marker of a habit are answered as that says: the first one counts.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, (*habits, Habit(marker="", seconds=seconds, reply=reply)))
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        assert process.pid is not None, "it was started"
        os.kill(process.pid, signal.SIGTERM)
        process.join()


def _serve(ready: Connection, habits: Sequence[Habit]) -> None:
    asyncio.run(_respond(ready, habits))


async def _respond(ready: Connection, habits: Sequence[Habit]) -> None:
    markers = [(habit.marker.encode(), habit) for habit in habits]
    numbers = count(1)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(asked.partition(b"content-length:")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                habit = next(habit for marker, habit in markers if marker in body)
                await asyncio.sleep(habit.seconds)
                writer.write(_response(habit.reply.replace(NUMBER, str(next(numbers)))))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client is gone.
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _response(reply: str) -> bytes:
    message = {"role": "assistant", "content": reply}
    usage = {"prompt_tokens": 1250, "completion_tokens": 120, "total_tokens": 1370}
    body = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "openai/slow",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": usage,
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body
