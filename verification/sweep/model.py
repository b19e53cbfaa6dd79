"""The model server of a sweep: it counts its requests, and now and then it fails once.

A prompt that failed succeeds the next time. So steps, answers and memories back off, stall and
are retried, and in the end all of them are complete.
"""

import asyncio
import hashlib
import json
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from verification.chaos.history import ModelCalled, Writer
from verification.chaos.model_server import CHANGES, reply_text
from verification.chaos.workload import NAME

#: How long a reply takes, as a rule, and a slow one: longer than the renewal of a lease.
REPLY_SECONDS = 0.005
SLOW_SECONDS = 0.3
#: One in so many prompts is slow, and one fails with 500 the first time. Those of answers
#: all do.
SLOW_ONE_IN = 7
BROKEN_ONE_IN = 9
#: One in so many chunks of a producer is too long the first time: a failure that is final,
#: and stops its memory. Another one is refused in words that count as a try.
REFUSED_ONE_IN = 3
WRONG_KEY = "incorrect api key"
#: A model whose name begins so refuses the key of its first call.
REFUSES = "refuses-"
TOO_LONG = "maximum context length exceeded"
NOT_NOW = "not this time"
DIMENSIONS = 8


class Model:
    """What it was asked, and what it says."""

    def __init__(self, paid: Path) -> None:
        self._paid = Writer(paid)
        self._serial = 0
        #: What has failed once and does not again.
        self._failed: set[str] = set()

    async def respond(self, path: str, request: dict[str, Any], asker: str) -> tuple[int, Any]:
        """Status and body of the response to a process of that id."""
        if path.endswith("/embeddings"):
            return 200, _vectors(request)
        prompt = _prompt(request)
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        status, said = self._refusal(request["model"], prompt, digest)
        if status != 200:
            return status, {"error": {"message": said, "type": "told"}}
        # Before it replies: the caller pays, whether it receives the reply or not.
        # Others are asked meanwhile.
        serial = self._serial = self._serial + 1
        self._paid.write(
            ModelCalled(
                serial=serial,
                prompt=digest,
                outcome="replied",
                is_paid=True,
                at=time.monotonic(),
                asker=asker,
            )
        )
        await asyncio.sleep(SLOW_SECONDS if _one_in(SLOW_ONE_IN, digest) else REPLY_SECONDS)
        return 200, _completion(request, prompt, reply_text(prompt, serial), serial)

    def _refusal(self, model: str, prompt: str, digest: str) -> tuple[int, str]:
        if model.startswith(REFUSES) and model not in self._failed:
            self._failed.add(model)
            return 401, WRONG_KEY
        head, found, text = prompt.rpartition("\n[TEXT]\n")
        if found and CHANGES in head:
            for one in NAME.finditer(text):
                said = {2: TOO_LONG, 1: NOT_NOW}.get(int(one[2]) % REFUSED_ONE_IN)
                if said is not None and one[0] not in self._failed:
                    self._failed.add(one[0])
                    return 400, said
        is_answer = "\n[PATHS]\n" in prompt or "\n[QUOTES]\n" in prompt
        fails = is_answer or _one_in(BROKEN_ONE_IN, digest[::-1])
        if fails and digest not in self._failed:
            self._failed.add(digest)
            return 500, NOT_NOW
        return 200, ""


def _one_in(number: int, digest: str) -> bool:
    return int(digest[:8], 16) % number == 0


def _prompt(request: dict[str, Any]) -> str:
    contents = [message["content"] for message in request["messages"]]
    return "".join(
        one if isinstance(one, str) else "".join(part.get("text", "") for part in one)
        for one in contents
    )


def _completion(request: dict[str, Any], prompt: str, text: str, serial: int) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    tokens = {"prompt_tokens": len(prompt) // 4 + 1, "completion_tokens": len(text) // 4 + 1}
    return {
        "id": str(serial),
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
        "choices": [choice],
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }


def _vectors(request: dict[str, Any]) -> dict[str, Any]:
    data = []
    for at, text in enumerate(request["input"]):
        digest = hashlib.sha256(text.encode()).digest()
        values = [float(one) + 1.0 for one in digest[:DIMENSIONS]]
        data.append({"object": "embedding", "index": at, "embedding": values})
    tokens = sum(len(text) // 4 + 1 for text in request["input"])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request["model"], "usage": usage}


async def _serve(model: Model, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
            assert length is not None, "clients say how much they send"
            request = json.loads(await reader.readexactly(int(length[1])))
            asker = re.search(r"authorization: *bearer (\S+)", head, re.IGNORECASE)
            assert asker is not None, "our processes have a key"
            status, said = await model.respond(head.split(" ", 2)[1], request, asker[1])
            body = json.dumps(said).encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
    writer.transport.abort()


def main(port: str, paid: str) -> None:
    """Is the model server; a zygote's child."""

    async def serve() -> None:
        model = Model(Path(paid))
        await asyncio.start_server(
            lambda reader, writer: _serve(model, reader, writer), "127.0.0.1", int(port)
        )
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())
