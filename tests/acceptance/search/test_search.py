"""Searching by words and vectors, as it is run: an API, a worker, a server of vectors."""

import asyncio
from collections.abc import Iterator

import pytest

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from tests.integration.support.search_rows import can_have_vectors
from tests.support.fake_embeddings import FakeEmbeddings, fake_embeddings
from tests.support.harness import Servers, api, worker

TEXTS = (
    "The wolf ran over the hill.",
    "Der Wolf lief.",
    "The sea was calm and wide.",
    "A wolf and the sea.",
)


@pytest.fixture(scope="module")
def served(servers: Servers) -> Iterator[tuple[str, FakeEmbeddings]]:
    url = servers.new_database()
    if not can_have_vectors(servers.as_superuser(url)):
        pytest.skip("this PostgreSQL has no pgvector")
    with fake_embeddings() as fake:
        settings = {
            "PALIMPSEST_EMBEDDING_MODEL": "openai/vectors",
            "PALIMPSEST_EMBEDDING_BASE_URL": fake.url,
            "PALIMPSEST_EMBEDDING_API_KEY": "secret",
        }
        with api(url, **settings) as (_, address), worker(url, **settings):
            yield address, fake


# The processes import what asks for vectors, which takes long on a busy machine.
@pytest.mark.timeout(400)
async def test_words_and_vectors_find_together(served: tuple[str, FakeEmbeddings]) -> None:
    address, fake = served
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        async with session.producer("p") as producer:
            for text in TEXTS:
                await producer.append(text)
            await producer.flush()
        waited = await session.search("wolf", fully_applied=True, timeout=120)
        assert waited.read_point.applied_position == waited.index.embedded_position == len(TEXTS)
        index = await session.search_index()
        assert index.embedding_model
        assert index.vectors_unavailable == ""
        result = await session.search("a wolf and the sea", timeout=120)
        assert result.mode == "hybrid"
        best = result.results[0]
        assert best.chunk.text == TEXTS[3]
        assert (best.words_rank, best.vectors_rank) == (1, 1)
        assert best.vectors_score == pytest.approx(1.0, abs=1e-5)
        assert "a wolf and the sea" in fake.texts
        # All have a vector, whatever words they have.
        near = await session.search("wolf", mode="vectors")
        assert near.mode == "vectors"
        assert len(near.results) == len(TEXTS)
        usage = await session.usage()
        assert {line.purpose for line in usage.lines} == {"embed"}

        # The vector of a query that was asked before is kept: these are new.
        fake.script += [(500, {}, "{}")] * 20
        words = await session.search("wolf hill", timeout=120)
        assert words.mode == "words"
        assert words.index.failure
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        hybrid = session_service_pb2.SearchChunksRequest(
            session="s", query="wolf sea", mode=session_service_pb2.SEARCH_MODE_HYBRID
        )
        with pytest.raises(palimpsest.Unavailable) as refused:
            # Once: what is tried again until its time is up may end in the midst of a try.
            await client.call(stub.SearchChunks, hybrid, timeout=120, retry=False)
        assert refused.value.reason == "EMBEDDING_FAILED"


@pytest.mark.timeout(400)
async def test_entries_of_memories_get_vectors(served: tuple[str, FakeEmbeddings]) -> None:
    address, fake = served
    fake.script.clear()
    async with palimpsest.connect(address) as client:
        session = await client.create_session("entries")
        ack = await session.append("The sea was calm.")
        notes = await session.create_memory("notes", "class N:\n    seen: list[str]\n")
        await notes.get(after=ack.read_token, timeout=200)
        await notes.edit([Edit.put("$.seen", ["a wolf", "the sea"])])
        found = await session.search_memories("wolf", memories=["notes"], fully_applied=True)
        best = found.results[0]
        assert (best.entry.path, best.entry.value) == ("$['seen'][0]", "a wolf")
        assert (best.entry.text, best.words_rank, best.entry.positions) == ("seen: a wolf", 1, None)
        (read,) = found.memories
        assert (read.memory, read.read_point.applied_position, read.behind) == ("notes", 1, False)
        # Vectors follow, and find what has no word of the query.
        while not any(one.vectors_rank for one in found.results):
            await asyncio.sleep(0.1)
            found = await session.search_memories("seen: the sea", mode="hybrid", timeout=120)
        assert found.results[0].vectors_score == pytest.approx(1.0, abs=1e-5)
        near = await session.search_memories("harbour", mode="vectors", path_prefix="$.seen")
        assert {one.entry.path for one in near.results} == {"$['seen'][0]", "$['seen'][1]"}
        with pytest.raises(palimpsest.NotFound) as missing:
            await session.search_memories("wolf", memories=["none"])
        assert missing.value.reason == "MEMORY_NOT_FOUND"
        with pytest.raises(palimpsest.InvalidArgument) as invalid:
            await session.search_memories("wolf", path_prefix="$[")
        assert invalid.value.reason == "PATH_INVALID"
