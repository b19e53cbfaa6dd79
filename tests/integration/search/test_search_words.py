"""Which chunks fit a query's words best, compared with a plain BM25."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.search.fusing import ScoredChunk
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.log.ranges import Range
from storage.search import finding, words
from storage.search.finding import read_place
from storage.search.words import UnindexedChunks, read_by_words, read_tail
from tests.integration.support.search_rows import KEY, Looks, index_words, make_session, plain_bm25
from tests.integration.support.writing import append_chunks

VOCABULARY = [f"w{number}" for number in range(40)]


def texts_by_chance(seed: int, count: int) -> list[str]:
    chance = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(VOCABULARY))]
    return [
        " ".join(chance.choices(VOCABULARY, weights, k=chance.randint(1, 60))) for _ in range(count)
    ]


async def find(
    database: Database,
    query: str,
    *,
    depth: int = 100,
    low: int = 1,
    high: int = 10**6,
    **wanted: object,
) -> Sequence[ScoredChunk]:
    async with database.direct(DEFAULT_TENANT) as tx:
        place = await read_place(tx, KEY, query)
        assert place is not None
        within = Range(from_position=low, to_position=min(high, place.head), **wanted)  # type: ignore[arg-type]
        tail = await read_tail(tx, KEY, place, within)
        return await read_by_words(tx, KEY, place, within, tail, depth)


async def tail_of(
    database: Database, query: str, *, low: int = 1, high: int = 10**6
) -> UnindexedChunks:
    async with database.direct(DEFAULT_TENANT) as tx:
        place = await read_place(tx, KEY, query)
        assert place is not None
        within = Range(from_position=low, to_position=min(high, place.head))
        return await read_tail(tx, KEY, place, within)


def plain(texts: Sequence[str], query: str) -> list[tuple[int, float]]:
    """Position and score of the texts that have a word, best first."""
    scores = plain_bm25(texts, query)
    order = sorted(range(len(texts)), key=lambda at: (-scores[at], at))
    return [(at + 1, scores[at]) for at in order if scores[at] > 0]


def assert_same(hits: Sequence[ScoredChunk], wanted: Sequence[tuple[int, float]]) -> None:
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in wanted], rel=1e-6)
    by_position = dict(wanted)
    assert {hit.position for hit in hits} == set(by_position)
    for hit in hits:
        assert hit.score == pytest.approx(by_position[hit.position], rel=1e-6)


@pytest.mark.parametrize("indexed", [0, 1, 60, 119, 120])
async def test_chunks_are_ranked_as_plain_bm25_ranks_them_wherever_the_index_ends(
    database: Database, indexed: int
) -> None:
    texts = texts_by_chance(7, 120)
    await make_session(database, texts)
    await index_words(database, indexed)
    for query in ("w3", "w1 w20 w39", "w0 w0 w5", " ".join(VOCABULARY)):
        assert_same(await find(database, query, depth=200), plain(texts, query))


async def test_what_is_indexed_while_it_is_searched_is_found_once(database: Database) -> None:
    texts = texts_by_chance(7, 120)
    await make_session(database, texts)
    await index_words(database, 40)
    async with database.direct(DEFAULT_TENANT) as tx:
        place = await read_place(tx, KEY, "w1 w3")
        assert place is not None
        within = Range(from_position=1, to_position=place.head)
        # Between the looks of a search, for example while its query is embedded.
        await index_words(database, 100)
        tail = await read_tail(tx, KEY, place, within)
        hits = await read_by_words(tx, KEY, place, within, tail, 200)
    assert len({hit.position for hit in hits}) == len(hits)
    assert_same(hits, plain(texts, "w1 w3"))


async def test_of_many_chunks_the_best_come(database: Database) -> None:
    texts = texts_by_chance(8, 200)
    await make_session(database, texts)
    await index_words(database, 150)
    best = await find(database, "w2 w9", depth=5)
    assert [hit.score for hit in best] == pytest.approx(
        [score for _, score in plain(texts, "w2 w9")[:5]], rel=1e-6
    )


async def test_of_a_long_tail_the_newest_chunks_are_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "TAIL_CHUNKS", 100)
    texts = texts_by_chance(9, 400)
    await make_session(database, texts)
    await index_words(database, 50)
    read = [*texts[:50], *texts[300:]]
    hits = await find(database, "w7 w30", depth=2000)
    assert_same(hits, [(p + 250 * (p > 50), s) for p, s in plain(read, "w7 w30")])
    assert (await tail_of(database, "w7 w30")).unread == 250
    # What is asked for is the newest that counts.
    hits = await find(database, "w7 w30", depth=2000, low=101, high=200)
    assert_same(hits, [(100 + p, s) for p, s in plain(texts[100:200], "w7 w30")])
    assert (await tail_of(database, "w7 w30", low=101, high=200)).unread == 0
    assert (await tail_of(database, "w7 w30", low=101, high=210)).unread == 10


async def test_of_a_tail_of_large_chunks_so_many_bytes_are_read(database: Database) -> None:
    filler = "v " * 100_000
    texts = [filler + f"w{number}" for number in range(12)]
    await make_session(database, texts)
    # After the first 16,383 words nothing is kept but that a word is there.
    assert [hit.position for hit in await find(database, "w11 w1")] == [12]
    assert (await tail_of(database, "w11")).unread == 12 - words.TAIL_BYTES // 200_003


async def test_a_search_looks_at_no_more_of_a_tail_than_it_says(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_session(database, [f"word{number % 7} again" for number in range(5000)])
    looks = Looks(monkeypatch)
    await find(database, "again word3", depth=10)
    # Twice to see where it begins, and once to read it.
    assert 0 < (await looks.rows(database))["chunk"] <= 3 * words.TAIL_CHUNKS


@pytest.mark.parametrize("count", [1, 2, 3, 10, 63, 254, 255])
async def test_occurrences_are_counted_exactly(database: Database, count: int) -> None:
    texts = [" ".join(["needle"] * count + ["hay"] * 300), "hay hay"]
    await make_session(database, texts)
    await index_words(database, 2)
    (hit,) = await find(database, "needle")
    texts[0] = " ".join(["needle"] * count + ["hay"] * 255)  # of more, no places are kept
    assert hit.score == pytest.approx(plain(texts, "needle")[0][1], rel=1e-6)


async def test_signs_of_a_query_are_words_or_nothing(database: Database) -> None:
    await make_session(database, ["it's o'brien's \\ back:slash", "nothing of it", "a & b | !c"])
    await index_words(database, 2)
    for query in (
        "o'brien & !nothing",
        "back\\slash <-> ' \" :* |",
        "'; DROP TABLE chunk; --",
        "%s %(x)s",
    ):
        assert {hit.position for hit in await find(database, query)} <= {1, 2, 3}
    assert [hit.position for hit in await find(database, "c & | !")] == [3]
    assert await find(database, "& | ! ' \\") == ()


async def test_the_language_of_the_session_counts(database: Database) -> None:
    await make_session(database, ["The wolves were running", "A wolf", "the"], language="english")
    await index_words(database, 1)
    assert {hit.position for hit in await find(database, "wolf runs")} == {1, 2}
    assert await find(database, "the") == ()


async def test_the_longest_words_of_a_long_query_count(database: Database) -> None:
    await make_session(database, ["early", "brief", "marsupial"])
    others = " ".join(f"short{number}" for number in range(finding.MAX_WORDS - 1))
    assert [hit.position for hit in await find(database, f"early {others} brief")] == [1]
    # Wherever it is: what code is about is often after the request.
    assert [hit.position for hit in await find(database, f"early {others} marsupial")] == [3]
    many = " ".join(f"marsupial{number}" for number in range(2000))
    assert list(await find(database, f"early {many}")) == []


@pytest.mark.parametrize("indexed", [0, 3, 6])
async def test_filters_apply_before_ranking(database: Database, indexed: int) -> None:
    chunks = [
        Chunk(kind=ChunkKind.TEXT, text="wolf wolf wolf"),
        Chunk(kind=ChunkKind.MESSAGE, role="ann", text="wolf", metadata={"room": "a", "n": "1"}),
        Chunk(kind=ChunkKind.STEP, observation="a wolf", thought="run", action="run"),
        Chunk(kind=ChunkKind.MESSAGE, role="bob", text="wolf and wolf", metadata={"room": "b"}),
        Chunk(kind=ChunkKind.TEXT, text="a sheep"),
        Chunk(kind=ChunkKind.MESSAGE, role="ann", text="sheep", metadata={"room": "a"}),
    ]
    await make_session(database, [])
    await append_chunks(database, "s", chunks)
    await index_words(database, indexed)

    async def positions(**wanted: object) -> set[int]:
        return {hit.position for hit in await find(database, "wolf", **wanted)}  # type: ignore[arg-type]

    now = datetime.now(UTC)
    assert await positions() == {1, 2, 3, 4}
    assert await positions(low=2, high=3) == {2, 3}
    assert await positions(kinds=("message",)) == {2, 4}
    assert await positions(kinds=("message", "step")) == {2, 3, 4}
    assert await positions(metadata={"room": "a"}) == {2}
    assert await positions(metadata={"room": "a", "n": "2"}) == set()
    assert await positions(
        from_time=now - timedelta(hours=1), to_time=now + timedelta(hours=1)
    ) == {1, 2, 3, 4}
    assert await positions(to_time=now - timedelta(hours=1)) == set()
    # Documents and their frequencies are those that pass.
    hits = await find(database, "wolf", kinds=("message",))
    assert_same(hits, [(p, s) for p, s in zip((4, 2), _message_scores(), strict=True)])


def _message_scores() -> list[float]:
    scores = plain_bm25(["ann wolf", "bob wolf and wolf", "ann sheep"], "wolf")
    return [scores[1], scores[0]]


async def test_of_many_lengths_a_sample_is_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_by_chance(10, 300)
    await make_session(database, texts)
    await index_words(database, 300)
    monkeypatch.setattr(words, "SAMPLE_CHUNKS", 60)
    hits = await find(database, "w4 w11", depth=300)
    wanted = plain(texts, "w4 w11")
    assert {hit.position for hit in hits} == {position for position, _ in wanted}
    # The mean of 60 of the 300 lengths is not far from that of all.
    assert [hit.score for hit in hits] == pytest.approx([s for _, s in wanted], rel=0.1)


async def test_an_empty_range_of_the_index_costs_nothing_of_the_tail(database: Database) -> None:
    texts = texts_by_chance(11, 40)
    await make_session(database, texts)
    await index_words(database, 20)
    hits = await find(database, "w1 w2", low=21)
    assert_same(hits, [(20 + p, s) for p, s in plain(texts[20:], "w1 w2")])
    async with database.direct(DEFAULT_TENANT) as tx:
        place = await read_place(tx, KEY, "w1")
        assert place is not None
        within = Range(from_position=1, to_position=20)
        assert await read_tail(tx, KEY, place, within) == UnindexedChunks()


async def test_a_tail_that_was_deleted_meanwhile_is_empty(database: Database) -> None:
    await make_session(database, ["A wolf.", "A dog."])
    async with database.transaction(DEFAULT_TENANT) as tx:
        place = await read_place(tx, KEY, "wolf")
        assert place is not None
        tail = await read_tail(tx, uuid4(), place, Range(from_position=1, to_position=2))
    assert tail == UnindexedChunks()
