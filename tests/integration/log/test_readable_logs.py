"""Whatever a log may hold, the official client reads all of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from uuid import uuid4

import pytest
from grpc import aio
from hypothesis import example, given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.rpc.pages import PAGE_BYTES
from service.settings.config import Limits
from tests.support.properties import examples

LIMITS = Limits()
#: Of a whole log, so that an example takes seconds.
MOST_BYTES = 9 * 2**20
#: Of metadata, as the proto has them.
PAIRS, KEY, VALUE = 16, 64, 1024
WORD = "zebra "


@dataclass(frozen=True, kw_only=True)
class Run:
    """Chunks that are alike."""

    count: int
    content_bytes: int
    pairs: int
    value_characters: int
    #: Of one to four bytes.
    character: str

    def chunks(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Texts and metadata."""
        width = len(self.character.encode())
        text = WORD + self.character * max((self.content_bytes - len(WORD)) // width, 0)
        key = self.character * (KEY - 2)
        value = self.character * self.value_characters
        for _ in range(self.count):
            yield text, {f"{key}{number:02}": value for number in range(self.pairs)}


CHARACTERS = st.sampled_from(("a", "é", "漢", "\U0001f6a2", '"', "\\", "\x01"))
RUNS = st.builds(
    Run,
    count=st.integers(1, 400),
    content_bytes=st.sampled_from((1, 100, 10_000, LIMITS.max_chunk_bytes)),
    pairs=st.sampled_from((0, 1, PAIRS)),
    value_characters=st.sampled_from((0, 20, VALUE)),
    character=CHARACTERS,
)


def fat(count: int, character: str) -> list[Run]:
    run = Run(
        count=count, content_bytes=1, pairs=PAIRS, value_characters=VALUE, character=character
    )
    return [run]


@pytest.mark.prove
@settings(max_examples=examples(8))
@example(fat(300, "a"))
@example(fat(100, "\U0001f6a2"))
@given(st.lists(RUNS, min_size=1, max_size=4))
async def test_a_legal_log_is_read_to_its_end(address: str, runs: list[Run]) -> None:
    async with palimpsest.connect(address) as client:
        session = await client.create_session(f"legal-{uuid4().hex}")
        sent: list[tuple[str, dict[str, str]]] = []
        size = 0
        async with session.producer("p") as producer:
            for text, metadata in (one for run in runs for one in run.chunks()):
                size += sum(len(part.encode()) for part in (text, *metadata, *metadata.values()))
                if sent and size > MOST_BYTES:
                    break
                sent.append((text, metadata))
                await producer.append(text, metadata=metadata)
        read = [(one.text, one.metadata) async for one in session.chunks()]
        assert read == sent
        await check_pages(client.channel, session.id, len(sent))
        found = await session.search(WORD, limit=100)
        assert 0 < len(found.results) <= min(len(sent), 100)


async def check_pages(channel: aio.Channel, session: str, count: int) -> None:
    """Checks that each page keeps to the requested size."""
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    for page_size in (0, 1000):
        request = session_service_pb2.ListChunksRequest(session=session, page_size=page_size)
        seen = 0
        while not seen or request.page_token:
            page = await stub.ListChunks(request)
            assert len(page.chunks) == 1 or page.ByteSize() <= PAGE_BYTES + 100
            assert [one.position for one in page.chunks] == [
                *islice(range(seen + 1, count + 1), len(page.chunks))
            ]
            seen += len(page.chunks)
            request.page_token = page.next_page_token
        assert seen == count
