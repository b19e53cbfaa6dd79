"""A model server for chaos: OpenAI's protocol, replies that say which call made them, faults.

It reads a prompt no further than it must: what stands in its text goes into the memory
under each chunk's name, everything else gets a sentence. Whole replies hold `[s<serial>]`,
and every request is written down before it is answered. Faults are ordered from outside:
the next so many requests get one.
"""

import asyncio
import hashlib
import json
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from verification.chaos import orders
from verification.chaos.history import ClientLeft, ModelCalled, Writer
from verification.chaos.workload import NAME

#: How long a reply takes when nothing is wrong.
REPLY_SECONDS = 0.005
#: What a slow reply takes, and one that comes drop by drop: longer than a lease.
SLOW_SECONDS = 2.5
#: What a 429 asks for.
RETRY_AFTER_SECONDS = 1
#: Characters of an oversize reply: more than any step may read.
OVERSIZE_CHARACTERS = 2_000_000
#: Pieces of a reply that comes drop by drop.
DRIPS = 20


class ModelFault(StrEnum):
    """What may be wrong with an answer."""

    SLOW = "slow"
    DRIP = "drip"
    TOO_MANY = "429"
    BROKEN = "500"
    DROPPED = "dropped"
    #: The body of the response ends in the midst of its JSON.
    TRUNCATED = "truncated"
    #: The response is none of the protocol.
    MALFORMED = "malformed"
    #: The response is whole, and its text no revision that fits the schema.
    UNFITTING = "unfitting"
    OVERSIZE = "oversize"


#: The response to these is whole, but its text is not what was asked for.
_STRANGE = (ModelFault.UNFITTING, ModelFault.OVERSIZE)
#: These take their time.
_LATE = (ModelFault.SLOW, ModelFault.DRIP)
_NOT_PAID = (ModelFault.TOO_MANY, ModelFault.BROKEN, ModelFault.DROPPED)


#: What a prompt for a revision asks for.
CHANGES = '{"changes": ['


def reply_text(prompt: str, serial: int) -> str:
    """Returns what the model says to a prompt."""
    mark = f"[s{serial}]"
    head, found, text = prompt.rpartition("\n[TEXT]\n")
    if found and CHANGES in head:
        names = dict.fromkeys(one[0] for one in NAME.finditer(text))
        added = [{"op": "add", "path": f"$.topics.{name}", "value": mark} for name in names]
        return json.dumps({"note": mark, "changes": added})
    if "\n[PATHS]\n" in prompt:
        names = dict.fromkeys(one[0] for one in NAME.finditer(prompt))
        paths = [f"$.topics.{name}" for name in list(names)[-3:]]
        return "\n".join(["[ANSWER]", f"It is said so {mark}.", "[PATHS]", *paths])
    if "\n[QUOTES]\n" in prompt:
        return f"[ANSWER]\nIt is said so {mark}.\n[QUOTES]\n"
    if found or "\n[STEPS]\n" in prompt or "\n[STATES]\n" in prompt or "[SUMMARIES]\n" in prompt:
        return f"The river bends, and boats wait for rain {mark}."
    return json.dumps({"note": mark, "changes": []})


def _strange_text(fault: ModelFault, serial: int) -> str:
    mark = f"[s{serial}]"
    if fault is ModelFault.UNFITTING:
        lines = ('{"$.topics": {"add": 7}}', '{"$.nowhere.x": {"add": "y"}}', '{"$.edits": {')
        return "\n".join(["[OBJECTS FOR ADD]", *lines, mark])
    return json.dumps({"note": mark + "x" * OVERSIZE_CHARACTERS, "changes": []})


class _Server:
    def __init__(self, history: Writer) -> None:
        self._history = history
        self._serial = 0
        #: Faults to come, each for one request.
        self._faults: deque[ModelFault] = deque()
        self._outcomes: Counter[str] = Counter()

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """`fault` and `count`; or `heal`, which says what became of all requests."""
        if order["do"] == "heal":
            self._faults.clear()
        else:
            self._faults.extend([ModelFault(order["fault"])] * order["count"])
        return {"outcomes": dict(self._outcomes)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._answer(reader, writer):
                pass
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request; returns whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        request = json.loads(await reader.readexactly(length))
        fault = self._faults.popleft() if self._faults else None
        serial = self._note(request, _asker(head), fault)
        if fault is ModelFault.DROPPED:
            return False
        if fault is ModelFault.TOO_MANY:
            headers = f"retry-after: {RETRY_AFTER_SECONDS}\r\n"
            await _send(writer, 429, b'{"error": {"message": "too many"}}', headers)
            return True
        if fault is ModelFault.BROKEN:
            await _send(writer, 500, b'{"error": {"message": "broken"}}')
            return True
        body = _body(request, _prompt(request), serial, fault)
        if fault is ModelFault.MALFORMED:
            body = b'{"choices": "none", "usage": [' + body[:20] + b"]}"
        await asyncio.sleep(SLOW_SECONDS if fault is ModelFault.SLOW else REPLY_SECONDS)
        if writer.is_closing() or reader.at_eof():
            self._history.write(ClientLeft(serial=serial, at=time.monotonic()))
        if fault is ModelFault.TRUNCATED:
            await _send(writer, 200, body[: len(body) // 2], length=len(body))
            return False
        await _send(writer, 200, body, drips=DRIPS if fault is ModelFault.DRIP else 1)
        return True

    def _note(self, request: dict[str, Any], asker: str, fault: ModelFault | None) -> int:
        self._serial += 1
        is_whole = fault in (None, ModelFault.SLOW, ModelFault.DRIP, *_STRANGE)
        outcome = "replied" if is_whole or fault is None else fault.value
        messages = json.dumps(request["messages"]).encode()
        self._history.write(
            ModelCalled(
                serial=self._serial,
                prompt=hashlib.sha256(messages).hexdigest(),
                outcome=outcome,
                is_paid=fault not in _NOT_PAID,
                asker=asker,
                is_whole=is_whole,
                seconds=SLOW_SECONDS if fault in _LATE else REPLY_SECONDS,
                at=time.monotonic(),
            )
        )
        self._outcomes[fault.value if fault else "replied"] += 1
        return self._serial


def _asker(head: bytes) -> str:
    """Returns the key that it was called with: in a campaign each executor has its own."""
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "authorization":
            return value.strip().removeprefix("Bearer ")
    return ""


def _prompt(request: dict[str, Any]) -> str:
    contents = [message["content"] for message in request["messages"]]
    return "".join(
        one if isinstance(one, str) else "".join(part.get("text", "") for part in one)
        for one in contents
    )


def _body(request: dict[str, Any], prompt: str, serial: int, fault: ModelFault | None) -> bytes:
    text = (
        _strange_text(fault, serial)
        if fault is not None and fault in _STRANGE
        else reply_text(prompt, serial)
    )
    tokens = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    said = {
        "id": str(serial),
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
        "choices": [choice],
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }
    return json.dumps(said).encode()


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    headers: str = "",
    *,
    length: int | None = None,
    drips: int = 1,
) -> None:
    length = len(body) if length is None else length
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n{headers}\r\n"
    )
    writer.write(head.encode())
    size = len(body) // drips + 1
    for begin in range(0, len(body), size):
        writer.write(body[begin : begin + size])
        await writer.drain()
        if drips > 1:
            await asyncio.sleep(SLOW_SECONDS / drips)


def main(control: str, port: str, history: str) -> None:
    """Is the model server."""

    async def serve() -> None:
        server = _Server(Writer(Path(history)))
        await asyncio.start_server(server.serve, "127.0.0.1", int(port), backlog=512, limit=2**20)
        async with await orders.take(Path(control), server.do):
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())
