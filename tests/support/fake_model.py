"""An OpenAI-compatible server that counts its calls: the model, faked at its transport."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.support.fake_streams import Streaming

#: How often a server in a thread looks whether it is to end; the library's half second would be
#: most of the time that a short test takes.
POLL_SECONDS = 0.02


@dataclass
class FakeModel:
    """What the server was asked, and what it is to say."""

    #: Status, headers and body of the next replies; when it is empty `reply` serves.
    script: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    #: The requests as they came.
    requests: list[dict[str, Any]] = field(default_factory=list)
    #: Text of the reply to the n-th prompt, from 1.
    reply: Callable[[int], str] = lambda n: (
        f'[OBJECTS FOR ADD]\n{{"$.topics.t{n}": {{"add": ["x"]}}}}'
    )
    url: str = ""
    #: How it answers a request for a stream.
    streaming: Streaming = field(default_factory=Streaming)
    #: Streams that the client did not read to their end.
    left: int = 0
    #: Each request has a thread, and each a number of its own.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a service that asks it."""
        return {
            "PALIMPSEST_MODEL": "openai/fake",
            "PALIMPSEST_MODEL_BASE_URL": self.url,
            "PALIMPSEST_MODEL_API_KEY": "sk-not-to-be-logged",
        }

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """Returns the response to a completion request."""
        prompt = prompt_of(request)
        with self._lock:
            self.prompts.append(prompt)
            self.requests.append(request)
            number = len(self.prompts)
            if self.script:
                return self.script.pop(0)
        body = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": self.reply(number)},
                }
            ],
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "total_tokens": 110,
                "prompt_tokens_details": {"cached_tokens": 64},
            },
        }
        return 200, {}, json.dumps(body)


def prompt_of(request: dict[str, Any]) -> str:
    """Returns the text of a request: in one message or several, in one piece or in blocks."""
    # Anthropic has the instructions beside the messages.
    contents = (request.get("system", ""), *(one["content"] for one in request["messages"]))
    return "".join(
        one if isinstance(one, str) else "".join(block["text"] for block in one) for one in contents
    )


class _Server(ThreadingHTTPServer):
    #: Clients that wait to be let in: one without a place tries again after a second, and longer.
    request_queue_size = 512


class Responds(Protocol):
    """What answers a request: status, headers and body."""

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]: ...


@contextmanager
def fake_model() -> Iterator[FakeModel]:
    """Yields an OpenAI-compatible server on a free port of this machine."""
    model = FakeModel()
    with served(model) as url:
        model.url = f"{url}/v1"
        yield model


@contextmanager
def served(model: Responds) -> Iterator[str]:
    """Yields a server on a free port of this machine that answers like `model`; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(length))
            status, headers, body = model.respond(request)
            if request.get("stream") and status == 200 and isinstance(model, FakeModel):
                self._stream(model, model.streaming.events(body))
                return
            raw = body.encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def _stream(self, model: FakeModel, events: Iterator[bytes | None]) -> None:
            # Chunks, so that a stream that breaks is not taken for one that ends.
            self.protocol_version = "HTTP/1.1"
            self.send_response(200)
            for name, value in (
                ("Content-Type", "text/event-stream"),
                ("Transfer-Encoding", "chunked"),
                ("Connection", "close"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = True
            for event in events:
                if event is None:
                    return
                try:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                except ConnectionError:
                    # The client has gone.
                    model.left += 1
                    return
            with suppress(ConnectionError):
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Keeps quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
