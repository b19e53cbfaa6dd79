"""Indexes the words of chunks: which, up to where, and by several workers at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.usecases.search import index
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from storage.log import sessions
from storage.search import chunk_index
from storage.search.chunk_index import IndexPlace
from storage.search.chunk_text import AS_TEXT
from tests.integration.support.writing import append_chunks, append_texts
from tests.support.runnable import unindexed

KEY = session_key(DEFAULT_TENANT, "s")
ITEM = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
#: Every kind, every part there and not, characters of one to four bytes, line ends, and what
#: means something to SQL, to the driver or to the text search.
CHUNKS = [
    Chunk(kind=ChunkKind.TEXT, text="The mice were running;\n\nthey 'ran' 100% of %s at night."),
    Chunk(kind=ChunkKind.TEXT, text=" \t\n"),
    Chunk(kind=ChunkKind.TEXT, text="… & | ! <-> ( : * \\ '"),
    Chunk(kind=ChunkKind.MESSAGE, role="user", text="Où est le café à Zürich? 漢字 🙂"),
    Chunk(kind=ChunkKind.MESSAGE, role="", text="nobody says this"),
    Chunk(kind=ChunkKind.STEP, observation="A door.", thought="Open it?", action="open(door)"),
    Chunk(kind=ChunkKind.STEP, observation="Only seen: this."),
    Chunk(kind=ChunkKind.STEP, thought="Only thought."),
    Chunk(kind=ChunkKind.STEP, observation="Seen.", action="act"),
    Chunk(kind=ChunkKind.STEP, thought="two\nlines", action="go"),
]
CHUNKS += [
    replace(CHUNKS[0], thread="support-17"),
    replace(CHUNKS[3], source="user:42, \"x\" \\ 'y' %s 👩\u200d👧", thread="שלום] [e\u0301"),
    replace(CHUNKS[5], occurred_at=datetime(1, 1, 1, tzinfo=UTC)),
    replace(CHUNKS[6], occurred_at=datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    replace(
        CHUNKS[1],
        source="crm",
        thread="t",
        occurred_at=datetime(9999, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
    ),
]
CHUNKS += [
    replace(chunk, observed_first=first)
    for first in (True, None)
    for chunk in CHUNKS
    if chunk.kind is ChunkKind.STEP
]


@pytest.fixture
async def session(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")


def indexer(database: Database) -> Indexer:
    return Indexer(database, None, Config())


async def place(database: Database) -> IndexPlace:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await chunk_index.read_place(tx, KEY)
    assert found is not None
    return found


async def noted(database: Database) -> list[WorkItem]:
    async with database.sweeping() as tx:
        return list(await unindexed(tx, 10))


async def rows(database: Database, query: str, **values: object) -> Sequence[tuple[object, ...]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [tuple(row) for row in await tx.fetch(text(query), values)]


async def test_the_database_reads_a_chunk_as_a_model_does(
    session: None, database: Database
) -> None:
    await append_chunks(database, "s", CHUNKS)
    said = await rows(database, f"SELECT {AS_TEXT} FROM chunk c ORDER BY position")
    assert [one for (one,) in said] == [chunk.as_text() for chunk in CHUNKS]


async def test_words_are_those_of_the_text_in_the_language_of_the_session(
    session: None, database: Database
) -> None:
    await append_chunks(database, "s", CHUNKS)
    assert await indexer(database).index(ITEM) is None
    found = await rows(database, "SELECT words::text, length FROM chunk_word ORDER BY position")
    expected = await rows(
        database,
        "SELECT to_tsvector('english', t)::text, (SELECT count(*) FROM"
        " unnest(to_tsvector('english', t)) l, unnest(l.positions))"
        " FROM unnest(CAST(:texts AS text[])) WITH ORDINALITY AS said (t, at) ORDER BY at",
        texts=[chunk.as_text() for chunk in CHUNKS],
    )
    assert found == expected
    words, length = found[0]
    assert "'mice'" in str(words)
    assert "'run'" in str(words)
    # mice, running, ran, 100, s, night: "the", "were", "they", "of" and "at" are no words.
    assert length == str(words).count(":") + str(words).count(",")


async def test_appends_note_that_there_is_something_to_index(
    session: None, database: Database
) -> None:
    assert await noted(database) == []
    await append_texts(database, "s", ["one"])
    assert await noted(database) == [ITEM]
    await indexer(database).index(ITEM)
    assert await noted(database) == []
    await append_texts(database, "s", ["two", "three"], first=2)
    assert await noted(database) == [ITEM]
    await indexer(database).index(ITEM)
    assert (await place(database)).indexed_position == 3


async def test_the_sweeper_sees_sessions_to_index_and_only_their_keys(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    async with database.sweeping() as tx:
        with pytest.raises(Exception, match="permission denied"):
            await tx.execute(text("SELECT name FROM session"))
    await indexer(database).index(ITEM)
    async with database.sweeping() as tx:
        seen = await tx.fetch(text("SELECT session_key FROM session"))
        assert seen == []


async def test_an_empty_session_that_is_noted_is_unmarked(
    session: None, database: Database
) -> None:
    await rows(database, "UPDATE session SET has_unindexed = true RETURNING 1")
    assert await indexer(database).index(ITEM) is None
    assert await noted(database) == []


async def test_a_session_that_is_not_there_is_not_indexed(database: Database) -> None:
    assert await indexer(database).index(ITEM) is None


async def test_chunks_that_come_while_it_ends_are_noted_anew(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    await indexer(database).index(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await append_texts(database, "s", ["two"], first=2)
        # What was at the head when it began is not at the head any more.
        assert not await chunk_index.finish(tx, KEY, None)
    assert await noted(database) == [ITEM]


async def test_any_number_at_once_write_each_word_once(session: None, database: Database) -> None:
    await append_texts(database, "s", [f"word{n}" for n in range(1200)])
    await asyncio.gather(*(indexer(database).index(ITEM) for _ in range(4)))
    # The worker that was overtaken gave up; the next one does what is left.
    assert await indexer(database).index(ITEM) is None
    assert (await place(database)).indexed_position == 1200
    assert await rows(
        database, "SELECT count(*), count(DISTINCT words::text), max(position) FROM chunk_word"
    ) == [(1200, 1200, 1200)]
    assert await noted(database) == []


async def test_a_long_backlog_gives_the_worker_back_and_goes_on(
    session: None, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_BATCHES", 3)
    monkeypatch.setattr(chunk_index, "WORDS_CHUNKS", 100)
    await append_texts(database, "s", ["word"] * 1000)
    came_to = []
    seconds: float | None = 0.0
    while seconds is not None:
        seconds = await indexer(database).index(ITEM)
        came_to.append((await place(database)).indexed_position)
    assert came_to == [300, 600, 900, 1000]
    assert await noted(database) == []


async def test_it_ends_between_batches_when_it_is_stopped(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    stop = asyncio.Event()
    stop.set()
    assert await indexer(database).index(ITEM, stop=stop) is None
    assert (await place(database)).indexed_position == 0
    assert await noted(database) == [ITEM]


async def test_a_batch_ends_at_its_bytes_and_has_one_chunk_at_least(
    session: None, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_index, "WORDS_BYTES", 10)
    await append_texts(database, "s", ["four", "five", "a longer one than that", "six"])
    reached = []
    async with database.transaction(DEFAULT_TENANT) as tx:
        after: int | None = 0
        while after is not None:
            words = await chunk_index.write_words(tx, KEY, after)
            after = None if words is None else words.position
            reached.append(after)
    assert reached == [2, 3, 4, None]


#: Texts of the longest chunk whose words take much place: many, all unlike, with several
#: readings each; and of characters of three bytes.
LONG = {
    "addresses": lambda n: f"h{n:x}.co/p{n:x}",
    "compounds": lambda n: f"a{n:x}-b{n:x}",
    "numbers": lambda n: f"{n:x}",
    "accented": lambda n: f"ÿ{n}",
    "ideographs": lambda n: "漢字" + chr(0x4E00 + n % 20000),
}


@pytest.mark.parametrize("kind", LONG)
async def test_the_longest_chunk_is_indexed_as_far_as_the_database_can(
    session: None, database: Database, kind: str
) -> None:
    words = " ".join(LONG[kind](n) for n in range(130_000))
    chunk = Chunk(kind=ChunkKind.TEXT, text=words.encode()[: 256 * 1024].decode(errors="ignore"))
    await append_chunks(database, "s", [chunk])
    assert await indexer(database).index(ITEM) is None
    assert (await place(database)).indexed_position == 1
    ((found, length),) = await rows(database, "SELECT length(words), length FROM chunk_word")
    assert int(str(found)) > 1000
    assert int(str(length)) > 1000


async def test_a_log_of_any_length_is_indexed_and_verified(
    session: None, database: Database
) -> None:
    """Positions that fit a smallint by themselves, and with a batch added to them do not."""
    for after in (2**15 - 10, 2**31 - 10):
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert await chunk_index.write_words(tx, KEY, after) is None
            values = {"session": KEY, "after": after, "last": after + 20}
            sizes = {"chunks": chunk_index.WORDS_CHUNKS, "bytes": chunk_index.WORDS_BYTES}
            upto = await tx.fetch(chunk_index.BATCH_END, {**values, **sizes})
            assert upto[0][0] is None
