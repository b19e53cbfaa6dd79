"""The scripted model as an OpenAI-compatible server, for the service's worker to call."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from evaluation.reliability.scripted import ScriptedModel
from service.domain.prompting.tokens import estimate_tokens

#: The model's name in the service.
MODEL = "openai/scripted"
#: The longest request that is read, in bytes.
MAX_REQUEST_BYTES = 16 * 1024 * 1024


@contextmanager
def serving(model: ScriptedModel) -> Iterator[str]:
    """Serves the model at a free port of this machine; the base URL."""

    class Handler(_Handler):
        scripted = model

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # It serves while the process waits for other things.
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    #: Set by `serving`.
    scripted: ScriptedModel
    # Connections stay open from call to call.
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the library's name
        """A completion."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_REQUEST_BYTES:
            self.close_connection = True
            self._send(HTTPStatus.BAD_REQUEST, {"error": {"message": "the request is too long"}})
            return
        try:
            request = json.loads(self.rfile.read(int(length)))
            prompt = "\n".join(_text(message["content"]) for message in request["messages"])
        except (ValueError, TypeError, KeyError):
            self._send(HTTPStatus.BAD_REQUEST, {"error": {"message": "it is no chat completion"}})
            return
        self._send(HTTPStatus.OK, _completion(prompt, self.scripted.reply(prompt)))

    def _send(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet: the terminal is the command's."""


def _text(content: Any) -> str:
    """Returns a message's content, in one piece or in blocks."""
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def _completion(prompt: str, reply: str) -> dict[str, Any]:
    read, written = estimate_tokens(prompt), estimate_tokens(reply)
    return {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": reply},
            }
        ],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }
