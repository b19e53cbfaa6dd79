"""What of a log is asked for: no more than is wanted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import aio

import palimpsest
from palimpsest.v1 import chunks_pb2, session_service_pb2
from tests.unit.client.server import add, serving

HEAD = 2500


class Log:
    def __init__(self) -> None:
        #: First and last position, size and token of each page.
        self.asked: list[tuple[int, int, int, str]] = []

    async def ListChunks(
        self, request: session_service_pb2.ListChunksRequest, context: Any
    ) -> session_service_pb2.ListChunksResponse:
        wanted = request.filter.positions
        self.asked.append((wanted.first, wanted.last, request.page_size, request.page_token))
        first = int(request.page_token or max(wanted.first, 1))
        last = min(first + request.page_size - 1, wanted.last or HEAD, HEAD)
        return session_service_pb2.ListChunksResponse(
            chunks=[
                chunks_pb2.Chunk(position=at, text=f"{at}", metadata={"page": f"{at}"})
                for at in range(first, last + 1)
            ],
            next_page_token=str(last + 1) if last < min(wanted.last or HEAD, HEAD) else "",
            head=HEAD,
        )


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def session(log: Log) -> AsyncIterator[palimpsest.Session]:
    def register(server: aio.Server) -> None:
        add(
            server, "SessionService", "unary", log.ListChunks, session_service_pb2.ListChunksRequest
        )

    async with (
        serving(register) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
    ):
        yield client.session("s")


async def test_one_chunk_costs_one_chunk(log: Log, session: palimpsest.Session) -> None:
    found = await session.chunk(7)
    assert (found.position, found.text, found.metadata) == (7, "7", {"page": "7"})
    assert log.asked == [(7, 7, 1, "")]


@pytest.mark.parametrize("position", [0, HEAD + 1])
async def test_a_chunk_that_is_not_there_is_named(
    position: int, session: palimpsest.Session
) -> None:
    with pytest.raises(palimpsest.OutOfRange, match=f"position {position}: its log ends at 2500"):
        await session.chunk(position)


@pytest.mark.parametrize(
    ("first", "last", "pages"),
    [
        (10, 12, [(10, 12, 1000, "")]),
        (10, 9, []),
        (1, 1500, [(1, 1500, 1000, ""), (1, 1500, 1000, "1001")]),
        (2400, 9999, [(2400, 9999, 1000, "")]),
        (1, None, [(1, 0, 1000, ""), (1, 0, 1000, "1001"), (1, 0, 1000, "2001")]),
    ],
)
async def test_chunks_end_where_they_are_to(
    first: int, last: int | None, pages: Any, log: Log, session: palimpsest.Session
) -> None:
    found = [one.position async for one in session.chunks(from_position=first, to_position=last)]
    assert found == list(range(first, min(HEAD, HEAD if last is None else last) + 1))
    assert log.asked == pages
