"""Writing vectors of chunks, with a model that fails and after a change of the model."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from sqlalchemy import text

from service.domain.calls.ledger import CallScope
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.pausing import MAX_LATER
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.embeddings.embedding import EmbeddingFailed, TextVector
from service.settings.config import Config
from service.usecases.search import index
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from storage.engine.errors import Busy, Violated
from storage.log import sessions
from storage.memories import work
from storage.search import chunk_index
from tests.integration.search.test_index_words import ITEM, KEY, noted, place, rows, session
from tests.integration.support.writing import append_chunks, append_texts

__all__ = ["session"]

OTHER = session_key(DEFAULT_TENANT, "other")


@dataclass
class Counts:
    """An embedder: a vector says how long the text is; one for each `part` characters."""

    model: str = "test/counts"
    dimensions: int | None = 2
    part: int = 1000
    asked: list[list[str]] = field(default_factory=list)
    scopes: list[CallScope] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    #: Called while the model thinks.
    meanwhile: Callable[[], object] | None = None

    async def warm(self) -> None:
        """Needs nothing."""

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        self.asked.append(list(texts))
        self.scopes.append(scope)
        if self.meanwhile is not None:
            given = self.meanwhile()
            if asyncio.iscoroutine(given):
                await given
        if self.failures:
            raise self.failures.pop(0)
        return [
            [
                TextVector(
                    from_character=start,
                    to_character=min(start + self.part, len(one)),
                    values=unit(min(start + self.part, len(one)) - start),
                )
                for start in range(0, len(one), self.part)
            ]
            if one.strip()
            else []
            for one in texts
        ]

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        return unit(len(text))


def unit(number: int) -> tuple[float, float]:
    return (math.cos(number), math.sin(number))


def indexer(database: Database, embedder: Counts | None, config: Config | None = None) -> Indexer:
    return Indexer(database, embedder, config or Config())


#: What failed is not tried again before a test says so.
PATIENT = Config(step_backoff_seconds=250)


async def vectors(database: Database, key: UUID = KEY) -> list[tuple[int, int, str, int, int]]:
    found = await rows(
        database,
        "SELECT position, part, model, from_character, to_character FROM chunk_vector"
        " WHERE session_key = :key ORDER BY position, part",
        key=key,
    )
    return [(int(str(p)), int(str(n)), str(m), int(str(a)), int(str(b))) for p, n, m, a, b in found]


async def due(database: Database) -> None:
    """Ends the wait before the next try."""
    await rows(database, "UPDATE session SET index_ready_at = now() RETURNING 1")


async def test_each_part_has_a_vector_and_blank_texts_have_none(
    session: None, database: Database
) -> None:
    chunks = [
        Chunk(kind=ChunkKind.MESSAGE, role="user", text="hello"),
        Chunk(kind=ChunkKind.TEXT, text="  \n "),
        Chunk(kind=ChunkKind.STEP, observation="a door", action="open"),
    ]
    await append_chunks(database, "s", chunks)
    embedder = Counts(part=8)
    assert await indexer(database, embedder).index(ITEM) is None
    assert embedder.asked == [[one.as_text() for one in chunks]]
    assert [one.occasion for one in embedder.scopes] == ["embed:1-3"]
    assert await vectors(database) == [
        (1, 0, "test/counts", 0, 8),
        (1, 1, "test/counts", 8, 11),
        (3, 0, "test/counts", 0, 8),
        (3, 1, "test/counts", 8, 16),
        (3, 2, "test/counts", 16, 24),
        (3, 3, "test/counts", 24, 32),
    ]
    ((stored,),) = await rows(
        database, "SELECT embedding FROM chunk_vector WHERE position = 1 AND part = 1"
    )
    assert stored == pytest.approx(unit(3), abs=1e-6)
    at = await place(database)
    assert (at.indexed_position, at.embedded_position, at.embedding_model) == (3, 3, "test/counts")
    assert await noted(database) == []


async def test_batches_end_at_chunks_and_at_bytes(
    session: None, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "EMBED_CHUNKS", 3)
    monkeypatch.setattr(index, "EMBED_BYTES", 10)
    await append_texts(database, "s", ["a", "b", "c", "d" * 9, "e" * 9, "f" * 20, "g"])
    embedder = Counts()
    assert await indexer(database, embedder).index(ITEM) is None
    assert [[one[0] for one in asked] for asked in embedder.asked] == [
        ["a", "b", "c"],
        ["d"],
        ["e"],
        ["f"],
        ["g"],
    ]
    assert [one.occasion for one in embedder.scopes][:2] == ["embed:1-3", "embed:4-4"]


async def test_words_go_on_while_vectors_wait_for_their_model(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    embedder = Counts(failures=[EmbeddingFailed("it is away", retryable=True)])
    assert await indexer(database, embedder, PATIENT).index(ITEM) is None
    at = await place(database)
    assert (at.indexed_position, at.embedded_position, at.attempts, at.may_embed) == (
        1,
        0,
        1,
        False,
    )
    assert await rows(database, "SELECT index_failure, has_unindexed FROM session") == [
        ("it is away", True)
    ]
    assert await noted(database) == [], "nothing can be done now"
    await append_texts(database, "s", ["two"], first=2)
    assert await noted(database) == [ITEM], "words can"
    assert await indexer(database, embedder, PATIENT).index(ITEM) is None
    assert (await place(database)).indexed_position == 2
    assert len(embedder.asked) == 1, "it was not time to ask again"
    assert await noted(database) == []
    await due(database)
    assert await noted(database) == [ITEM]
    assert await indexer(database, embedder, PATIENT).index(ITEM) is None
    at = await place(database)
    assert (at.embedded_position, at.attempts) == (2, 0)
    assert await rows(database, "SELECT index_failure, has_unindexed FROM session") == [("", False)]


@pytest.mark.parametrize(
    ("failure", "attempts", "seconds"),
    [
        (EmbeddingFailed("away", retryable=True), 0, 1.0),
        (EmbeddingFailed("away", retryable=True), 3, 8.0),
        (EmbeddingFailed("away", retryable=True), 40, 300.0),
        (EmbeddingFailed("busy", retryable=True, retry_seconds=77.0), 0, 77.0),
        (EmbeddingFailed("busy", retryable=True, retry_seconds=900.0), 40, 900.0),
        (EmbeddingFailed("no such model", retryable=False), 0, 300.0),
    ],
)
async def test_failures_are_tried_again_ever_later(
    session: None, database: Database, failure: Exception, attempts: int, seconds: float
) -> None:
    await append_texts(database, "s", ["one"])
    await rows(database, "UPDATE session SET index_attempts = :n RETURNING 1", n=attempts)
    # In the name of this model: the failures of another one do not count.
    await rows(database, "UPDATE session SET embedding_model = 'test/counts' RETURNING 1")
    await indexer(database, Counts(failures=[failure])).index(ITEM)
    ((wait, counted),) = await rows(
        database,
        "SELECT extract(epoch FROM index_ready_at - now())::float8, index_attempts FROM session",
    )
    assert counted == attempts + 1
    # By chance up to a half less, or somewhat more than the provider asked for; and the
    # database's clock has gone on.
    least, most = (1.0, 1 + MAX_LATER) if getattr(failure, "retry_seconds", None) else (0.5, 1.0)
    assert seconds * least - 60 < float(str(wait)) <= seconds * most


async def test_a_defect_is_raised_and_not_met_again_at_once(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    failing = Counts(failures=[ZeroDivisionError("oh")])
    with pytest.raises(ZeroDivisionError):
        await indexer(database, failing, PATIENT).index(ITEM)
    assert await noted(database) == []
    assert not (await place(database)).may_embed
    ((wait,),) = await rows(
        database, "SELECT extract(epoch FROM index_ready_at - now())::float8 FROM session"
    )
    # It may have been a mishap: the next try comes as soon as that of a model that is away.
    assert float(str(wait)) <= PATIENT.step_backoff_seconds


@pytest.mark.parametrize("error", [Busy("it took too long"), Violated("a check", "a_check")])
async def test_vectors_that_the_database_refuses_are_not_paid_for_again_at_once(
    session: None, database: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await append_texts(database, "s", ["one"])
    embedder = Counts()

    async def refuse(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(chunk_index, "write_vectors", refuse)
        with pytest.raises(type(error)):
            await indexer(database, embedder, PATIENT).index(ITEM)
    assert await noted(database) == []
    await indexer(database, embedder, PATIENT).index(ITEM)
    assert len(embedder.asked) == 1
    await due(database)
    await indexer(database, embedder, PATIENT).index(ITEM)
    assert len(await vectors(database)) == 1
    assert (await place(database)).attempts == 0


async def test_another_model_begins_at_the_first_chunk_and_replaces_what_is_there(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["x" * 30, "y" * 5])
    await indexer(database, Counts(part=10)).index(ITEM)
    assert len(await vectors(database)) == 4
    await append_texts(database, "s", ["z"], first=3)
    other = Counts(model="test/other")
    await indexer(database, other).index(ITEM)
    assert await vectors(database) == [
        (1, 0, "test/other", 0, 30),
        (2, 0, "test/other", 0, 5),
        (3, 0, "test/other", 0, 1),
    ]
    assert [one.occasion for one in other.scopes] == ["embed:1-3"]


async def test_sessions_without_chunks_to_come_get_vectors_of_another_model_too(
    session: None, database: Database
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, OTHER, "other")
        await sessions.create(tx, session_key(DEFAULT_TENANT, "empty"), "empty")
    await append_texts(database, "s", ["one"])
    await append_texts(database, "other", ["two"])
    await indexer(database, None).index(ITEM)
    with_model = indexer(database, Counts())
    await with_model.index(item_of(OTHER))
    assert await noted(database) == []
    assert await indexer(database, None).note_all() == 0, "there is no model to lack"
    assert await with_model.note_all() == 1
    assert await noted(database) == [ITEM]
    await with_model.index(ITEM)
    assert await with_model.note_all() == 0
    assert await indexer(database, Counts(model="test/other")).note_all() == 2
    assert set(await noted(database)) == {ITEM, item_of(OTHER)}


async def test_sessions_are_noted_in_the_order_in_which_appends_lock_them(
    database: Database,
) -> None:
    keys = [UUID(int=number) for number in (1, 2, 3)]
    async with database.transaction(DEFAULT_TENANT) as tx:
        for key in reversed(keys):
            await sessions.create(tx, key, str(key))

    async def note() -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await chunk_index.note_unembedded(tx, keys[::-1])

    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await sessions.lock_alone(tx, keys[0])
        noting = asyncio.create_task(note())
        await waits(database)
        # None of them is delayed by the worker that waits for the first.
        await tx.execute("SET LOCAL lock_timeout = '1s'")
        for key in keys[1:]:
            assert await sessions.lock_alone(tx, key)
    await noting
    assert {item.session_key for item in await noted(database)} == set(keys)


async def waits(database: Database) -> None:
    """Waits until a transaction waits for a lock of another one."""
    async with asyncio.timeout(30):
        while await rows(database, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
            await asyncio.sleep(0.02)


def item_of(key: UUID) -> WorkItem:
    return WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=key, item_id=key)


async def test_chunks_of_a_time_without_a_model_are_embedded_when_there_is_one_again(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    await indexer(database, Counts()).index(ITEM)
    await append_texts(database, "s", ["two"], first=2)
    await indexer(database, None).index(ITEM)
    assert await noted(database) == []
    again = indexer(database, Counts())
    assert await again.note_all() == 1
    await again.index(ITEM)
    assert [position for position, *_ in await vectors(database)] == [1, 2]


async def test_the_sweeper_sees_no_more_than_that(session: None, database: Database) -> None:
    await append_texts(database, "s", ["one"])
    await indexer(database, Counts()).index(ITEM)
    for model in ("test/counts", ""):
        async with database.sweeping() as tx:
            assert await work.unembedded(tx, model, UUID(int=0), 10) == []
    async with database.sweeping() as tx:
        found = await work.unembedded(tx, "x", UUID(int=0), 10)
        assert [one.session_key for one in found] == [KEY]
        assert await work.unembedded(tx, "x", KEY, 10) == []
    async with database.sweeping() as tx:
        assert await tx.fetch(text("SELECT session_key FROM session")) == []


async def test_an_overtaken_indexer_writes_nothing(session: None, database: Database) -> None:
    await append_texts(database, "s", ["one", "two"])
    await indexer(database, None).index(ITEM)
    other = Counts(model="test/other")

    async def overtake() -> None:
        first.meanwhile = None
        await indexer(database, other).index(ITEM)

    first = Counts(meanwhile=overtake)
    assert await indexer(database, first).index(ITEM) is None
    assert {model for _, _, model, _, _ in await vectors(database)} == {"test/other"}
    assert (await place(database)).embedding_model == "test/other"


async def test_any_number_at_once_write_the_same_vectors(session: None, database: Database) -> None:
    await append_texts(database, "s", [f"word {n}" for n in range(300)])
    embedder = Counts()
    await asyncio.gather(*(indexer(database, embedder).index(ITEM) for _ in range(4)))
    await indexer(database, embedder).index(ITEM)
    assert [(position, part) for position, part, *_ in await vectors(database)] == [
        (n, 0) for n in range(1, 301)
    ]
    assert (await place(database)).embedded_position == 300
    assert await noted(database) == []


async def test_a_worker_that_dies_leaves_everything_to_the_next(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    waiting: asyncio.Event = asyncio.Event()

    async def think() -> None:
        waiting.set()
        await asyncio.Event().wait()

    embedder = Counts(meanwhile=think)
    running = asyncio.create_task(indexer(database, embedder).index(ITEM))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await vectors(database) == []
    assert await noted(database) == [ITEM]
    await indexer(database, Counts()).index(ITEM)
    assert len(await vectors(database)) == 1


async def test_few_sessions_are_embedded_at_once_and_the_others_come_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "EMBED_AT_ONCE", 1)
    keys = [session_key(DEFAULT_TENANT, name) for name in "ab"]
    for key, name in zip(keys, "ab", strict=True):
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, key, name)
        await append_texts(database, name, ["one"])

    async def other() -> None:
        embedder.meanwhile = None
        assert await both.index(item_of(keys[1])) is None
        async with database.transaction(DEFAULT_TENANT) as tx:
            held = await chunk_index.read_place(tx, keys[1])
        assert held is not None
        assert (held.indexed_position, held.embedded_position, held.attempts) == (1, 0, 0)

    embedder = Counts(meanwhile=other)
    both = indexer(database, embedder)
    await both.index(item_of(keys[0]))
    assert len(await vectors(database, keys[0])) == 1
    await due(database)
    await both.index(item_of(keys[1]))
    assert len(await vectors(database, keys[1])) == 1


@pytest.mark.prove
async def test_ten_thousand_chunks_are_indexed_in_turns(session: None, database: Database) -> None:
    await append_texts(database, "s", [f"chunk number {n}" for n in range(10_000)])
    embedder = Counts()
    turns = 0
    while await indexer(database, embedder).index(ITEM) is not None:
        turns += 1
    assert turns >= 1, "others got their turn meanwhile"
    at = await place(database)
    assert (at.indexed_position, at.embedded_position) == (10_000, 10_000)
    assert await rows(database, "SELECT count(*) FROM chunk_vector") == [(10_000,)]
