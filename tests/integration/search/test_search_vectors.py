"""Which chunks are nearest to a vector."""

import math
import random
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from service.domain.search.fusing import ScoredChunk
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.embeddings.embedding import TextVector
from storage.engine.database import Database
from storage.log.ranges import Range
from storage.search import vectors as search_vectors
from storage.search.vectors import read_by_vectors
from tests.integration.support.search_rows import (
    KEY,
    MODEL,
    can_have_vectors,
    make_session,
    unit,
    whole,
    write_vectors,
)
from tests.support.harness import Servers

SIZE = 8
#: Numbers of vectors that are hardly alike by chance.
LONG = 64


@pytest.fixture
async def vectors(servers: Servers, url: str) -> AsyncIterator[Database]:
    """Yields a database that can compare vectors."""
    if not can_have_vectors(servers.as_superuser(url)):
        pytest.skip("this PostgreSQL has no pgvector")
    database = Database.connect(url, pool_size=3, name="test")
    yield database
    await database.close()


def by_chance(seed: int, size: int = SIZE) -> tuple[float, ...]:
    chance = random.Random(seed)
    return unit(*(chance.gauss(0, 1) for _ in range(size)))


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


async def find(
    database: Database,
    vector: Sequence[float],
    *,
    depth: int = 10,
    low: int = 1,
    high: int = 10**6,
    model: str = MODEL,
    embedded_position: int = 10**6,
    has_index: bool = False,
    kinds: tuple[str, ...] = (),
) -> Sequence[ScoredChunk]:
    async with database.direct(DEFAULT_TENANT) as tx:
        within = Range(from_position=low, to_position=high, kinds=kinds)
        return await read_by_vectors(
            *(tx, KEY, model, vector, within, depth),
            embedded_position=embedded_position,
            has_index=has_index,
        )


async def fill(database: Database, count: int) -> dict[int, tuple[float, ...]]:
    texts = [f"text {number}" for number in range(count)]
    await make_session(database, texts)
    held = {position: by_chance(position) for position in range(1, count + 1)}
    await write_vectors(
        database,
        [(position, whole("text", *values)) for position, values in held.items()],
    )
    return held


async def test_the_nearest_come_first_with_the_cosine_as_score(vectors: Database) -> None:
    held = await fill(vectors, 60)
    query = by_chance(1000)
    order = sorted(held, key=lambda position: -cosine(held[position], query))
    hits = await find(vectors, query)
    assert [hit.position for hit in hits] == order[:10]
    assert [hit.score for hit in hits] == pytest.approx(
        [cosine(held[position], query) for position in order[:10]], abs=1e-5
    )
    assert (hits[0].from_character, hits[0].to_character) == (0, 4)


async def test_filters_apply_before_ranking(vectors: Database) -> None:
    held = await fill(vectors, 60)
    query = by_chance(1001)
    order = sorted(range(20, 31), key=lambda position: -cosine(held[position], query))
    hits = await find(vectors, query, low=20, high=30, depth=100)
    assert [hit.position for hit in hits] == order
    assert len(await find(vectors, query, kinds=("text",))) == 10
    assert await find(vectors, query, kinds=("step",)) == []


async def test_a_chunk_counts_by_its_best_part(vectors: Database) -> None:
    await make_session(vectors, ["a long text", "another", "a third"])
    parts = [
        TextVector(from_character=0, to_character=6, values=unit(0, 1, 0)),
        TextVector(from_character=6, to_character=11, values=unit(1, 0.1, 0)),
    ]
    await write_vectors(
        vectors, [(1, parts), (2, whole("another", 1, 1, 0)), (3, whole("a third", 0, 0, 1))]
    )
    hits = await find(vectors, unit(1, 0, 0))
    assert [hit.position for hit in hits] == [1, 2, 3]
    assert (hits[0].from_character, hits[0].to_character) == (6, 11)


async def fill_parts(database: Database, parts_of_first: int, *, others: int = 40) -> None:
    """Writes chunks of one part, after one of many, whose vectors are all drawn by chance."""
    await make_session(database, ["a" * parts_of_first, *("text" for _ in range(others))])
    many = [
        TextVector(from_character=at, to_character=at + 1, values=by_chance(5000 + at, LONG))
        for at in range(parts_of_first)
    ]
    rest = [(at, whole("text", *by_chance(at, LONG))) for at in range(2, others + 2)]
    await write_vectors(database, [(1, many), *rest])


@pytest.mark.parametrize("has_index", [False, True])
async def test_a_chunk_of_many_parts_is_not_near_by_chance_alone(
    vectors: Database, monkeypatch: pytest.MonkeyPatch, has_index: bool
) -> None:
    if has_index:
        # By the statement for an index, whether there is one or not.
        monkeypatch.setattr(search_vectors, "EXACT_VECTORS", 10)
    await fill_parts(vectors, 60)
    ranks = []
    for seed in range(2000, 2030):
        hits = await find(vectors, by_chance(seed, LONG), depth=41 if not has_index else 5)
        positions = [hit.position for hit in hits]
        ranks.append(positions.index(1) if 1 in positions else len(positions))
        assert all(hit.score < hit.cosine for hit in hits if hit.position == 1)
        assert all(hit.score == hit.cosine for hit in hits if hit.position != 1)
    # By its nearest part alone it would be the first nearly always.
    assert sum(rank == 0 for rank in ranks) <= 10


async def test_what_is_near_is_found_in_a_chunk_of_many_parts(vectors: Database) -> None:
    await fill_parts(vectors, 30)
    query = by_chance(5007, LONG)
    hits = await find(vectors, query)
    assert hits[0].position == 1
    assert (hits[0].from_character, hits[0].to_character) == (7, 8)
    assert hits[0].cosine == pytest.approx(1, abs=1e-5)


async def test_vectors_of_another_model_or_length_do_not_count(vectors: Database) -> None:
    await make_session(vectors, ["one", "two", "three"])
    await write_vectors(vectors, [(1, whole("one", 1, 0, 0))], model="test/other")
    await write_vectors(vectors, [(2, whole("two", 1, 0)), (3, whole("three", 1, 0, 0))])
    assert [hit.position for hit in await find(vectors, unit(1, 0, 0))] == [3]
    assert [hit.position for hit in await find(vectors, unit(1, 0, 0), model="test/other")] == [1]


async def test_many_vectors_are_searched_by_an_index_and_then_one_by_one(
    vectors: Database, servers: Servers, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await fill(vectors, 200)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute(
            f"""CREATE INDEX ON chunk_vector
            USING hnsw ((embedding::vector({SIZE})) vector_cosine_ops)
            WHERE array_length(embedding, 1) = {SIZE}"""
        )

    async def many(*_: object) -> bool:
        return True

    monkeypatch.setattr(search_vectors, "_are_many", many)
    query = by_chance(1002)
    order = sorted(held, key=lambda position: -cosine(held[position], query))
    hits = await find(vectors, query, has_index=True)
    assert len(set(order[:10]) & {hit.position for hit in hits}) >= 9
    # The index alone would end with too few.
    hits = await find(vectors, query, low=191, high=200, depth=10, has_index=True)
    assert {hit.position for hit in hits} == set(range(191, 201))


async def test_few_vectors_are_not_searched_by_an_index(vectors: Database) -> None:
    await fill(vectors, 30)
    values = {"session": KEY, "low": 1, "high": 10**6}
    async with vectors.direct(DEFAULT_TENANT) as tx:
        assert not await search_vectors._are_many(tx, 10_000, values)
        # Without counting, where chunks are few, and where there are many.
        assert not await search_vectors._are_many(tx, 5, {})
        assert await search_vectors._are_many(tx, search_vectors.EXACT_VECTORS + 1, {})
