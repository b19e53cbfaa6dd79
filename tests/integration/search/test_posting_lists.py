"""Posting lists of long sessions: what is written, and that searches find the same by them."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.usecases.search.index import Indexer
from service.usecases.search.search import Searcher, SearchQuery
from storage.engine.database import Database
from storage.operations import verifying
from storage.search import chunk_index, posting_lists
from tests.integration.search.test_search_words import assert_same, find, plain, texts_by_chance
from tests.integration.support.search_rows import KEY, Looks, index_words, make_session
from tests.integration.support.writing import append_texts
from tests.support.harness import Servers

ITEM = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
BLOCK = 32


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of a hundred chunks are long, and each way of reading them is taken."""
    monkeypatch.setattr(posting_lists, "BLOCK_CHUNKS", BLOCK)
    monkeypatch.setattr(posting_lists, "LOOK_CHUNKS", 8)
    monkeypatch.setattr(posting_lists, "OWN_HOLDERS", 4)
    monkeypatch.setattr(posting_lists, "READ_BLOCKS", 1)
    monkeypatch.setattr(posting_lists, "RARE_HOLDERS", 12)


async def rows(database: Database, query: str) -> Sequence[tuple[object, ...]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [tuple(row) for row in await tx.fetch(text(query))]


async def blocks(database: Database) -> list[tuple[object, ...]]:
    return list(
        await rows(
            database,
            "SELECT first_position, last_position FROM posting_block ORDER BY last_position",
        )
    )


async def index(database: Database) -> None:
    """Indexes as a worker does."""
    indexer = Indexer(database, None, Config())
    while await indexer.index(ITEM) is not None:
        pass


async def write_blocks(database: Database) -> None:
    """Turns around what has words."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        place = await chunk_index.read_place(tx, KEY)
        assert place is not None
        after: int | None = place.listed_position
        while after is not None:
            after = await posting_lists.write_block(tx, KEY, after, place.indexed_position)


QUERIES = (
    *("w0", "w3", "w39", "w0 w1", "w0 w1 w2 w3", "w0 w38", "w1 w2 w39 w37", "w5 w9 w17"),
    *("w0 nowhere", "nowhere", " ".join(f"w{number}" for number in range(40))),
)


@pytest.mark.prove
@pytest.mark.parametrize(("indexed", "depth"), [(300, 5), (300, 40), (290, 5), (200, 400)])
async def test_the_best_by_lists_are_the_best_of_all(
    database: Database, indexed: int, depth: int
) -> None:
    texts = texts_by_chance(21, 300)
    await make_session(database, texts)
    await index_words(database, indexed)
    await write_blocks(database)
    assert len(await blocks(database)) == indexed // BLOCK
    for query in QUERIES:
        hits = await find(database, query, depth=depth)
        wanted = plain(texts, query)
        assert [hit.score for hit in hits] == pytest.approx(
            [s for _, s in wanted[:depth]], rel=1e-6
        )
        scores = dict(wanted)
        for hit in hits:
            assert hit.score == pytest.approx(scores[hit.position], rel=1e-6)


async def test_of_equal_chunks_the_earlier_come(database: Database) -> None:
    await make_session(database, ["the same words"] * 100)
    await index(database)
    hits = await find(database, "same words", depth=7)
    assert [hit.position for hit in hits] == [1, 2, 3, 4, 5, 6, 7]
    hits = await find(database, "same words", depth=4, low=10)
    assert [hit.position for hit in hits] == [10, 11, 12, 13]


@pytest.mark.prove
@pytest.mark.parametrize(
    ("low", "high"), [(1, 31), (1, 64), (20, 200), (33, 96), (40, 90), (97, 97)]
)
async def test_a_part_of_a_session_is_ranked_by_itself(
    database: Database, low: int, high: int
) -> None:
    texts = texts_by_chance(22, 200)
    await make_session(database, texts)
    await index(database)
    for query in QUERIES:
        hits = await find(database, query, depth=300, low=low, high=high)
        wanted = plain(texts[low - 1 : high], query)
        assert_same(hits, [(low - 1 + position, score) for position, score in wanted])


async def test_other_filters_apply_before_ranking(database: Database) -> None:
    texts = texts_by_chance(23, 150)
    await make_session(database, texts)
    await index(database)
    hits = await find(database, "w0 w2", depth=300, kinds=("text",))
    assert_same(hits, plain(texts, "w0 w2"))
    assert await find(database, "w0 w2", kinds=("step",)) == []


@pytest.mark.parametrize("own", [1, 3, 10_000])
async def test_it_does_not_matter_which_words_share_rows(
    database: Database, monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    monkeypatch.setattr(posting_lists, "OWN_HOLDERS", own)
    texts = [
        *texts_by_chance(24, 90),
        "o'brien \\ back:slash",
        "Où est le café 漢字 🙂",
        *["w0"] * 30,
    ]
    await make_session(database, texts)
    await index_words(database, len(texts))
    queries = (*QUERIES, "o'brien slash", "café", "漢字")
    before = [await find(database, query, depth=300) for query in queries]
    await write_blocks(database)
    assert len(await blocks(database)) == 3
    for query, known in zip(queries, before, strict=True):
        hits = await find(database, query, depth=300)
        assert_same(hits, [(hit.position, hit.score) for hit in known])


@pytest.mark.prove
@pytest.mark.parametrize("statistics", ["none", "of an empty table", "of a shorter one", "true"])
async def test_a_search_for_common_words_looks_at_no_more_of_a_longer_session(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    servers: Servers,
    url: str,
    statistics: str,
) -> None:
    """Reads as much of a session four times as long: as many chunks, and only the ends of lists."""
    chance = random.Random(25)
    texts = [
        " ".join(["common", "usual", *(f"w{chance.randrange(500)}" for _ in range(1 + n % 50))])
        for n in range(4 * 16 * BLOCK)
    ]
    looked: list[Counter[str]] = []
    analyzing = "ANALYZE session, chunk, chunk_word, posting_block, posting_list"
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        for table in ("chunk", "chunk_word", "posting_block", "posting_list"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        if statistics == "of an empty table":
            connection.execute(analyzing)
    await make_session(database, texts[: len(texts) // 4])
    looks = Looks(monkeypatch)
    for count in (len(texts) // 4, len(texts)):
        if count == len(texts):
            await append_texts(database, "s", texts[count // 4 :], first=count // 4 + 1)
        await index(database)
        if statistics == "true" or (statistics == "of a shorter one" and not looked):
            with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
                connection.execute(analyzing)
        looks.forget()
        hits = await find(database, "common", depth=3)
        assert [hit.position for hit in hits] == [1, 51, 101]
        looked.append(await looks.rows(database))
    shorter, longer = looked
    assert longer["chunk_word"] <= shorter["chunk_word"] + BLOCK
    assert longer["chunk"] == 0
    # In each block the groups of the word, and the row that it might share; and three places.
    assert longer["posting_list"] - 2 * len(texts) // BLOCK <= 3


async def test_rare_words_decide_without_the_lists_of_common_ones(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["common " * 3 + f"w{n}" for n in range(10 * BLOCK)]
    for at in (3, 90, 200, 201):
        texts[at] = "a long chunk with common words and a needle"
    await make_session(database, texts)
    await index(database)
    read: list[Sequence[tuple[int, int]]] = []
    reading = posting_lists._read

    async def seen(*given: object) -> object:
        read.append(given[-1])  # type: ignore[arg-type]
        return await reading(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(posting_lists, "_read", seen)
    hits = await find(database, "common needle", depth=4)
    assert_same(hits, plain(texts, "common needle")[:4])
    assert [hit.position for hit in hits] == [4, 91, 201, 202]
    # The word that is read is the second one, in the blocks that have it.
    assert read == [[(1, 0), (1, 2), (1, 6)]]


async def test_a_worker_writes_blocks_as_words_come(database: Database) -> None:
    texts = texts_by_chance(26, 4 * BLOCK)
    await make_session(database, texts[:10])
    await index(database)
    assert await blocks(database) == []
    await append_texts(database, "s", texts[10 : BLOCK + 5], first=11)
    await index(database)
    assert await blocks(database) == [(1, BLOCK)]
    await append_texts(database, "s", texts[BLOCK + 5 :], first=BLOCK + 6)
    await index(database)
    assert await blocks(database) == [(1 + at * BLOCK, BLOCK * (at + 1)) for at in range(4)]
    assert await rows(database, "SELECT has_unindexed FROM session") == [(False,)]


async def test_a_block_ends_before_its_words_are_too_many(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting_lists, "BLOCK_WORDS", 40)
    texts = ["four words of it"] * 16 + ["one " * 50] * 2 + ["ten words " * 5] * 3
    await make_session(database, texts)
    await index(database)
    assert await blocks(database) == [(1, 10), (11, 16), (17, 17), (18, 18)]
    assert_same(await find(database, "one of ten"), plain(texts, "one of ten"))


async def test_a_block_ends_before_its_bytes_are_too_many(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting_lists, "BLOCK_BYTES", 100, raising=False)
    texts = ["x" * 40, "y" * 40, "z" * 40, "long " + "w" * 120, *["é" * 30] * 3, *["few"] * 2]
    await make_session(database, texts)
    await index(database)
    assert await blocks(database) == [(1, 2), (3, 3), (4, 4), (5, 5), (6, 6)]
    assert_same(await find(database, "long few"), plain(texts, "long few"))


async def test_any_number_at_once_write_each_block_once(database: Database) -> None:
    await make_session(database, texts_by_chance(27, 6 * BLOCK))
    await index_words(database, 6 * BLOCK)
    await asyncio.gather(*(Indexer(database, None, Config()).index(ITEM) for _ in range(4)))
    await index(database)
    assert await blocks(database) == [(1 + at * BLOCK, BLOCK * (at + 1)) for at in range(6)]
    assert await wrong(database) == []


async def test_a_block_that_fails_is_tried_again_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_session(database, texts_by_chance(28, 2 * BLOCK))
    with monkeypatch.context() as patched:
        patched.setattr(posting_lists, "_WRITE", "SELECT 1 / 0")
        with pytest.raises(Exception, match="DivisionByZero"):
            await index(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        place = await chunk_index.read_place(tx, KEY)
    assert place is not None
    assert (place.listed_position, place.words_attempts, place.may_write_lists) == (0, 1, False)
    # Looked at again before long, for chunks that come meanwhile, but not at once.
    await rows(database, "UPDATE session SET words_ready_at = now() + interval '1h' RETURNING 1")
    await index(database)
    noted = "SELECT has_unindexed, index_ready_at > now(), index_ready_at < words_ready_at"
    assert await rows(database, f"{noted} FROM session") == [(True, True, True)]
    await rows(database, "UPDATE session SET words_ready_at = now() RETURNING 1")
    await index(database)
    assert len(await blocks(database)) == 2
    state = "SELECT has_unindexed, words_attempts, words_failure FROM session"
    assert await rows(database, state) == [(False, 0, "")]


async def test_words_do_not_wait_for_lists(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_by_chance(31, 4 * BLOCK)
    await make_session(database, texts[: 3 * BLOCK])
    await index_words(database, 2 * BLOCK)
    indexed = "SELECT indexed_position, words_attempts, words_failure LIKE 'posting lists: %'"
    with monkeypatch.context() as patched:
        patched.setattr(posting_lists, "_WRITE", "SELECT 1 / 0")
        for attempts in (1, 2):
            with pytest.raises(Exception, match="DivisionByZero"):
                await index(database)
            expected = [(3 * BLOCK, attempts, True)]
            assert await rows(database, f"{indexed} FROM session") == expected
            await rows(database, "UPDATE session SET words_ready_at = now() RETURNING 1")
        await rows(
            database, "UPDATE session SET words_ready_at = now() + interval '1h' RETURNING 1"
        )
        await append_texts(database, "s", texts[3 * BLOCK :], first=3 * BLOCK + 1)
        await index(database)
        assert await rows(database, f"{indexed} FROM session") == [(4 * BLOCK, 2, True)]
    assert await blocks(database) == []


async def search(database: Database) -> list[int]:
    """Searches as a client does."""
    searcher = Searcher(database, None, no_rerank, Config())
    page = await searcher.find(DEFAULT_TENANT, "s", SearchQuery(query="same", limit=3))
    return [one.position for one in page.found]


async def no_rerank(*_: object, **__: object) -> Sequence[int]:
    """Fails: these searches do not rerank."""
    raise AssertionError


NOTED = "SELECT has_unindexed FROM session"
#: As where a lock is not to be had in time.
REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN RAISE 'refused' USING ERRCODE = 'lock_not_available'; END$$;
CREATE TRIGGER refusing BEFORE UPDATE ON session EXECUTE FUNCTION refuse();
"""


async def test_lists_that_are_deleted_while_they_are_searched_are_left_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_session(database, texts_by_chance(23, 100))
    await index(database)
    read = posting_lists.read_listed

    async def deleting(*args: Any) -> posting_lists.ListedPostings:
        listed = await read(*args)
        await rows(database, "DELETE FROM posting_list RETURNING 1")
        return listed

    assert min(hit.position for hit in await find(database, "w0 w38", depth=100)) < 3 * BLOCK
    monkeypatch.setattr(posting_lists, "read_listed", deleting)
    for query in ("w0", "w0 w1", "w0 w38"):
        await find(database, query, depth=100)
        await rows(database, "DELETE FROM posting_block RETURNING 1")
        await write_blocks(database)


async def test_a_search_notes_a_long_session_without_lists(database: Database) -> None:
    """Leaves a session as a worker of the release before does, which marks what it cannot list."""
    await make_session(database, ["the same words"] * 3 * BLOCK)
    await index_words(database, 3 * BLOCK)
    await rows(database, "UPDATE session SET has_unindexed = false RETURNING 1")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(text("SELECT 1 FROM session FOR UPDATE"))
        # No transaction waits for its lock.
        assert await search(database) == [1, 2, 3]
    assert await rows(database, NOTED) == [(False,)]
    assert await search(database) == [1, 2, 3]
    assert await rows(database, NOTED) == [(True,)]
    await index(database)
    assert len(await blocks(database)) == 3
    assert await search(database) == [1, 2, 3]
    assert await rows(database, NOTED) == [(False,)]


async def test_a_search_finds_where_nothing_can_be_noted(
    database: Database, servers: Servers, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_session(database, ["the same words"] * BLOCK)
    await index_words(database, BLOCK)
    await rows(database, "UPDATE session SET has_unindexed = false RETURNING 1")
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute(REFUSING)
    assert await search(database) == [1, 2, 3]
    assert "session not noted for indexing" in capsys.readouterr().out
    assert await rows(database, NOTED) == [(False,)]


async def wrong(database: Database) -> list[tuple[int, int, str]]:
    async with database.snapshot(DEFAULT_TENANT) as tx:
        return [one async for one in verifying.lists(tx, KEY, 10**6)]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("UPDATE posting_block SET words = words + 1 WHERE last_position = 64", "it counts"),
        ("DELETE FROM posting_list WHERE last_position = 64 AND key = 'w0'", "1 rows differ"),
        (
            "UPDATE posting_list SET places[1] = '' WHERE last_position = 64 AND key = 'w0'",
            "1 rows",
        ),
        ("UPDATE chunk_word SET words = '' WHERE position = 40", "rows differ"),
    ],
)
async def test_a_block_that_is_not_what_its_words_make_is_found(
    database: Database, servers: Servers, url: str, spoil: str, said: str
) -> None:
    await make_session(database, texts_by_chance(29, 3 * BLOCK))
    await index(database)
    assert await wrong(database) == []
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        assert connection.execute(spoil).rowcount == 1
    found = await wrong(database)
    assert {(first, last) for first, last, _ in found} == {(33, 64)}
    assert any(said in how for *_, how in found)


async def test_blocks_that_leave_chunks_out_are_found(
    database: Database, servers: Servers, url: str
) -> None:
    await make_session(database, texts_by_chance(30, 3 * BLOCK))
    await index(database)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("DELETE FROM posting_list WHERE last_position = 64")
        connection.execute("DELETE FROM posting_block WHERE last_position = 64")
    assert await wrong(database) == [(65, 96, "the block before ends at 32")]
    async with database.snapshot(DEFAULT_TENANT) as tx:
        found = [one async for one in verifying.lists(tx, KEY, 90)]
    assert (65, 96, "some of its chunks have no words") in found
