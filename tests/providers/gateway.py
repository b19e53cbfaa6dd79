"""A gateway between us and a provider, which answers in its place.

A company's proxy, a load balancer, a login page: their responses have no provider's shape.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: A request's head and body come in one piece here, nearly always; this is looked at.
_MAX_BYTES = 1024 * 1024
#: How a handshake begins.
_TLS = b"\x16\x03"


@dataclass
class Gateway:
    """A server with scripted responses, byte for byte."""

    port: int
    #: Answers to the next requests; the last of them stays.
    answers: list[bytes] = field(default_factory=list)
    #: First lines of the requests.
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Returns an answer with a body; headers are named with `_` for `-`."""
    named = {"content_type": "text/html", "content_length": str(len(body)), **headers}
    lines = [f"HTTP/1.1 {status}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items() if value]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def gateway() -> Iterator[Gateway]:
    """Yields a gateway on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Gateway(port=server.getsockname()[1])
        thread = threading.Thread(target=_serve, args=(server, found), daemon=True)
        thread.start()
        yield found
        # Wakes the thread, which waits for a connection.
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve(server: socket.socket, found: Gateway) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            request = _request(connection)
            if request:
                found.asked.append(request.split(b"\r\n", 1)[0].decode(errors="replace"))
                said = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
                connection.sendall(said)


def _request(connection: socket.socket) -> bytes:
    """Returns a whole request; empty when it breaks off."""
    read = b""
    try:
        while len(read) < _MAX_BYTES:
            head, found, body = read.partition(b"\r\n\r\n")
            if found:
                lengths = [
                    int(line.partition(b":")[2])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                ]
                if len(body) >= (lengths[0] if lengths else 0):
                    return read
            if read.startswith(_TLS):
                # Answered in plain text, as by a port that knows no TLS.
                return read
            part = connection.recv(65536)
            if not part:
                return b""
            read += part
    except OSError:
        return b""
    return read
