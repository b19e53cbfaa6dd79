"""Recalls from services that answer in every way, by the hook's own HTTP."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from palimpsest_hook.recalling import recalled

GOOD = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"text": "Tabs."}'


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yields the URL of a service with one answer, and the requests that it reads."""
    read: list[bytes] = []

    def serve() -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            read.append(connection.recv(65536))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", read
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def recall(url: str, environment: Mapping[str, str] = {}) -> str:
    return recalled(
        url,
        "s",
        query="Tabs?",
        thread="t",
        tokens=10,
        seconds=30.0,
        environment=environment,
    )


def test_the_text_of_a_good_answer_is_recalled_with_the_token_sent() -> None:
    with answering(GOOD) as (url, read):
        assert recall(url, {"PALIMPSEST_TOKEN": "pk_1"}).endswith(":\n\nTabs.")
    head, _, body = read[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /palimpsest.v1.SessionService/Recall HTTP/1.0"
    assert b"authorization: Bearer pk_1" in lines
    assert f"content-length: {len(body)}".encode() in lines


@pytest.mark.parametrize(
    "answer",
    [
        GOOD.replace(b"200 OK", b"503 Unavailable"),
        GOOD.replace(b"200 OK", b"OK"),
        GOOD.replace(b"HTTP/1.1", b"SSH-2.0"),
        GOOD.replace(b'"Tabs."', b"7"),
        GOOD[:-1],
        b"\xff",
        b"",
    ],
)
def test_any_other_answer_recalls_nothing(answer: bytes) -> None:
    with answering(answer) as (url, read):
        assert recall(url) == ""
    assert len(read) == 1


def test_a_token_with_a_line_break_is_not_sent() -> None:
    with answering(GOOD) as (url, read):
        assert recall(url, {"PALIMPSEST_TOKEN": "a\r\nx: y"}) == ""
    assert read in ([], [b""])
