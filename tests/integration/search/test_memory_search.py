"""Entries of memories: written with revisions, found by words and vectors, and made up for."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.prism.amendments import Op
from service.domain.prompting.flows import ModelRequest
from service.domain.search.entries import WrittenEntry
from service.domain.values.errors import FailedPrecondition, InvalidInput, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config, Limits
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.verify import Verifier
from service.usecases.search.entry_index import EntryIndexer
from service.usecases.search.index import Indexer
from service.usecases.search.memories import EntryQuery, EntrySearch, MemorySearch
from service.usecases.search.search import Searcher, SearchMode
from storage.engine.database import Database, Transaction
from storage.engine.errors import Unreachable
from storage.memories import entries
from tests.integration.search.test_index_vectors import Counts
from tests.integration.search.test_searcher import no_rerank
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    SPEC,
    STATE,
    TREE,
    Script,
    add_memory,
    make,
    prism_method,
    state_method,
    tree_method,
)
from tests.integration.support.search_rows import can_have_vectors
from tests.integration.support.writing import append_texts
from tests.support.harness import Servers

SESSION = (DEFAULT_TENANT, "s")
INDEX = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
SAID = ("The ferry to Bergen leaves at nine.", "Ann keeps bees.", "Ann's bees swarmed.")


def noting(ask: ModelRequest, number: int) -> str:
    """Has each chunk noted under a topic of its own."""
    return f'[OBJECTS FOR ADD]\n{{"$.topics.topic_{number}": {{"add": "{SAID[number - 1]}"}}}}'


async def noted(database: Database, texts: Sequence[str] = SAID) -> None:
    await make(database, list(texts))
    await prism_method(database, Script(reply=noting)).drain(ITEM)


def search(database: Database, embedder: Counts | None = None) -> MemorySearch:
    async def wakes(items: Sequence[WorkItem]) -> None:
        """No worker runs."""

    watcher = ProgressWatcher(database)
    memories = memories_of(database, WakeUps(wakes), watcher, b"key", Limits())
    searcher = Searcher(database, embedder, no_rerank, Config())
    return MemorySearch(database, searcher, memories, b"key")


async def find(
    database: Database, query: str, embedder: Counts | None = None, **wanted: Any
) -> EntrySearch:
    return await search(database, embedder).find(
        *SESSION, EntryQuery(query=query, **wanted), Consistency(), deadline=None
    )


def shown(found: EntrySearch) -> list[tuple[str, str, int, tuple[int, int]]]:
    return [
        (
            one.found.entry.path,
            one.found.entry.text,
            one.found.revision,
            (one.found.first_position, one.found.last_position),
        )
        for one in found.hits
    ]


async def entries_of(database: Database) -> list[tuple[Any, ...]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [
            tuple(row)
            for row in await tx.fetch(
                "SELECT memory_id, path, part, value, words, length, revision, first_position,"
                " last_position, model FROM memory_entry ORDER BY memory_id, path, part"
            )
        ]


async def change(database: Database, statement: str) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await tx.execute(statement) > 0


async def index(database: Database, embedder: Counts | None = None) -> None:
    indexer = Indexer(database, embedder, Config(), EntryIndexer(database, use_cases()))
    await indexer.note_all()
    await indexer.note_entries()
    while await indexer.index(INDEX) == 0.0:
        pass


async def wrong(database: Database) -> list[str]:
    async with database.snapshot(DEFAULT_TENANT) as tx:
        found = await Verifier(database, use_cases()).wrong_entries(tx, KEY, "m")
    return [one.name for one in found]


async def test_what_a_step_wrote_is_found_with_its_chunks(database: Database) -> None:
    await noted(database)
    found = await find(database, "who has bees?")
    assert shown(found) == [
        ("$['topics']['topic_2']", "topics / topic 2: Ann keeps bees.", 2, (2, 2)),
        ("$['topics']['topic_3']", "topics / topic 3: Ann's bees swarmed.", 3, (3, 3)),
    ]
    assert (found.mode, found.failure) == (SearchMode.WORDS, "")
    assert [one.words_rank for one in found.hits] == [1, 2]
    ((memory, _),) = found.memories
    assert (memory.name, memory.revision, memory.applied_position) == ("m", 3, 3)
    assert not memory.is_behind
    assert await wrong(database) == []
    assert shown(await find(database, "topic")) != [], "names on the path are words too"
    assert (await find(database, "no such thing at all")).hits == []
    assert len((await find(database, "bees", limit=1)).hits) == 1


async def test_filters(database: Database) -> None:
    await noted(database)
    await add_memory(database, memory_id(KEY, "other"), "other", SPEC, head=3)

    async def paths(**wanted: Any) -> list[str]:
        return [path for path, *_ in shown(await find(database, "bees ferry", **wanted))]

    ferry, bees, swarm = (f"$['topics']['topic_{number}']" for number in (1, 2, 3))
    assert set(await paths()) == {ferry, bees, swarm}
    assert await paths(memories=("other",)) == []
    assert set(await paths(memories=("other", "m"))) == {ferry, bees, swarm}
    assert await paths(path_prefix="$.topics.topic_2") == [bees]
    assert await paths(path_prefix="/topics/topic_2") == [bees]
    assert await paths(path_prefix="$.topics.topic") == [], "a prefix ends with a whole name"
    # An entry that has the place within it.
    assert await paths(path_prefix="$.topics.topic_2.more") == [bees]
    assert len(await paths(path_prefix="$")) == 3
    assert await paths(path_prefix="0.") == []
    assert set(await paths(chunks=ChunkFilter(from_position=2))) == {bees, swarm}
    assert await paths(chunks=ChunkFilter(sources=("nobody",))) == []
    with pytest.raises(NotFound, match="memory 'none'"):
        await paths(memories=("none",))
    with pytest.raises(InvalidInput, match="characters"):
        await paths(path_prefix="$.'" + "x" * 1000 + "'")
    with pytest.raises(InvalidInput, match="before from_position"):
        await paths(chunks=ChunkFilter(from_position=2, to_position=1))


async def test_what_is_not_there_is_named(database: Database) -> None:
    with pytest.raises(NotFound, match="session 's'"):
        await find(database, "x")
    await make(database, [])
    found = await find(database, "x", mode=SearchMode.WORDS)
    assert (found.hits, len(found.memories)) == ([], 1)
    with pytest.raises(FailedPrecondition) as refused:
        await find(database, "x", mode=SearchMode.VECTORS)
    assert refused.value.reason is Reason.VECTORS_UNAVAILABLE


async def test_edits_by_hand_rest_on_no_chunk_and_removals_take_entries_away(
    database: Database,
) -> None:
    await noted(database)
    edits = [
        Edit(op=None, path="$.topics.topic_2", value_json='"Ann keeps sheep."'),
        Edit(op=None, path="$.topics.topic_4", value_json='"Bo keeps bees."'),
    ]
    await edit(database, edits)
    assert shown(await find(database, "keeps")) == [
        ("$['topics']['topic_2']", "topics / topic 2: Ann keeps sheep.", 4, (0, 0)),
        ("$['topics']['topic_4']", "topics / topic 4: Bo keeps bees.", 4, (0, 0)),
    ]
    await edit(database, [Edit(op=Op.REMOVE, path="$.topics.topic_4", value_json="")])
    assert [path for path, *_ in shown(await find(database, "bo"))] == []
    await editor(database).rollback(DEFAULT_TENANT, Target(session="s", memory="m"), 2)
    assert shown(await find(database, "bees")) == [
        ("$['topics']['topic_2']", "topics / topic 2: Ann keeps bees.", 6, (0, 0))
    ]
    assert (await find(database, "swarmed")).hits == []
    assert await wrong(database) == []


def editor(database: Database) -> Editor:
    return Editor(database, search(database)._memories, Limits())


async def edit(database: Database, edits: Sequence[Edit]) -> None:
    await editor(database).revise(DEFAULT_TENANT, Target(session="s", memory="m"), edits)


async def test_summaries_of_a_tree_are_found_by_their_nodes(database: Database) -> None:
    await make(database, [f"Sentence {n} is about a horse in town. " * 4 for n in range(12)], TREE)
    await tree_method(database, Script()).drain(ITEM)
    found = await find(database, "part", limit=100)
    assert {"0.1", "1.1"} <= {path for path, *_ in shown(found)}
    of = {path: positions for path, _, _, positions in shown(found)}
    assert of["0.1"][0] == 1
    assert of["1.1"][0] == 1
    assert of["1.1"][1] > of["0.1"][1]
    leaves = await find(database, "part", limit=100, path_prefix="0.")
    assert {path[:2] for path, *_ in shown(leaves)} == {"0."}
    assert await wrong(database) == []


async def test_only_vectors_of_a_state_that_are_in_use_are_found(database: Database) -> None:
    await make(database, [f"step {n}" for n in range(7)], STATE)
    await state_method(database, Script()).drain(ITEM)
    ((path, _, revision, positions),) = shown(await find(database, "reached"))
    assert (path, revision, positions) == ("1.2", 2, (1, 6))
    await editor(database).rollback(DEFAULT_TENANT, Target(session="s", memory="m"), 1)
    ((path, _, revision, positions),) = shown(await find(database, "reached"))
    assert (path, revision, positions) == ("1.1", 1, (1, 3))
    assert await wrong(database) == []


async def test_what_the_release_before_wrote_is_made_up_for(database: Database) -> None:
    await noted(database)
    await edit(database, [Edit(op=None, path="$.topics.topic_1", value_json='"No ferry."')])
    complete = await entries_of(database)
    # It writes no entries, and does not know how far they are.
    await change(database, "DELETE FROM memory_entry WHERE revision > 1")
    await change(database, "UPDATE memory SET entry_revision = 1")
    assert await wrong(database) == []
    found = await find(database, "bees ferry")
    assert found.hits == []
    ((memory, _),) = found.memories
    assert (memory.revision, memory.applied_position, memory.is_behind) == (1, 1, True)
    # What comes then stands on entries that are not there: it is left for later as well.
    await append_texts(database, "s", ["Cats."], first=4)
    await prism_method(database, Script()).drain(ITEM)
    assert (await find(database, "bees")).memories[0][0].is_behind
    await index(database)
    again = await entries_of(database)
    assert [row for row in again if row[6] < 5] == complete
    assert await wrong(database) == []
    ((memory, _),) = (await find(database, "bees")).memories
    assert (memory.revision, memory.is_behind) == (5, False)


async def test_a_search_has_missing_entries_written(database: Database) -> None:
    await noted(database)
    indexer = Indexer(database, None, Config(), EntryIndexer(database, use_cases()))
    while await indexer.index(INDEX) == 0.0:
        pass
    await change(database, "UPDATE memory SET entry_revision = 0")
    await change(database, "DELETE FROM memory_entry")
    assert (await find(database, "bees")).hits == []
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await tx.fetch("SELECT has_unindexed FROM session") == [(True,)]
    while await indexer.index(INDEX) == 0.0:
        pass
    assert len((await find(database, "bees")).hits) == 2


async def test_rows_that_were_spoilt_are_found_and_repaired(database: Database) -> None:
    await noted(database)
    complete = await entries_of(database)
    await change(database, "DELETE FROM memory_entry WHERE revision = 1")
    await change(database, "UPDATE memory_entry SET value = '\"x\"' WHERE revision = 2")
    await change(database, "UPDATE memory_entry SET words = '', length = 0 WHERE revision = 3")
    await change(
        database,
        "INSERT INTO memory_entry SELECT session_key, memory_id, gen_random_uuid(), tenant_id,"
        " '$', 0, '1', '', 0, 1, 0, 0 FROM memory",
    )
    assert await wrong(database) == ["memory.entries"] * 4
    await Verifier(database, use_cases()).repair_entries(*SESSION)
    assert await entries_of(database) == complete
    assert await wrong(database) == []


class Batches:
    """Writes single entries, and has something happen before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, before: int) -> None:
        self.written: list[str] = []
        self.happens: Callable[[], Awaitable[None]] | None = None
        self._before, self._rewrite = before, entries.rewrite
        monkeypatch.setattr(entries, "BATCH_ENTRIES", 1)
        monkeypatch.setattr(entries, "rewrite", self.rewrite)

    async def rewrite(
        self, tx: Transaction, key: UUID, memory: UUID, revision: int, made: Sequence[WrittenEntry]
    ) -> bool:
        if len(self.written) == self._before and self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        is_written = await self._rewrite(tx, key, memory, revision, made)
        if is_written:
            self.written += [one.entry.path[-9:-2] for one in made]
        return is_written


async def test_a_rewrite_that_breaks_off_goes_on_where_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await noted(database)
    complete = await entries_of(database)
    await change(database, "UPDATE memory SET entry_revision = 0")
    await change(database, "DELETE FROM memory_entry")
    batches = Batches(monkeypatch, before=2)

    async def dies() -> None:
        raise Unreachable("the server went away")

    batches.happens = dies
    indexer = EntryIndexer(database, use_cases())
    with pytest.raises(Unreachable):
        await indexer.catch_up(DEFAULT_TENANT, KEY)
    found = await find(database, "topic")
    assert len(found.hits) == 2
    assert (found.memories[0][0].revision, found.memories[0][0].is_behind) == (0, True)
    assert await indexer.catch_up(DEFAULT_TENANT, KEY)
    assert batches.written == ["topic_1", "topic_2", "topic_3"]
    assert await entries_of(database) == complete
    assert not (await find(database, "topic")).memories[0][0].is_behind


async def test_a_change_during_a_rewrite_is_not_undone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await noted(database)
    await change(database, "UPDATE memory SET entry_revision = 0")
    batches = Batches(monkeypatch, before=2)

    async def changes() -> None:
        await edit(database, [Edit(op=None, path="$.topics.topic_1", value_json='"No ferry."')])

    await change(database, "DELETE FROM memory_entry")
    batches.happens = changes
    indexer = EntryIndexer(database, use_cases())
    assert not await indexer.catch_up(DEFAULT_TENANT, KEY)
    assert (await find(database, "topic")).memories[0][0].is_behind
    assert await indexer.catch_up(DEFAULT_TENANT, KEY)
    assert batches.written == ["topic_1", "topic_2", "topic_1", "topic_3"]
    assert len((await find(database, "no ferry")).hits) == 1
    assert await wrong(database) == []


async def test_a_repair_goes_on_after_a_change(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await noted(database)
    await change(database, "UPDATE memory_entry SET words = '', length = 0")
    batches = Batches(monkeypatch, before=2)

    async def changes() -> None:
        await edit(database, [Edit(op=None, path="$.topics.topic_1", value_json='"No ferry."')])

    batches.happens = changes
    await Verifier(database, use_cases()).repair_entries(*SESSION)
    assert batches.written == ["topic_1", "topic_2", "topic_3"]
    assert len((await find(database, "topic")).hits) == 3
    assert await wrong(database) == []


async def test_nothing_is_left_of_what_is_deleted(database: Database) -> None:
    await noted(database)
    deleter = Deleter(database, WakeUps(_pass))
    await deleter.delete_memory(*SESSION, "m", allow_missing=False)
    assert (await find(database, "bees")).memories == []
    assert (await find(database, "bees")).hits == []


async def _pass(items: Sequence[WorkItem]) -> None:
    """No worker runs."""


@pytest.fixture
def able(servers: Servers, url: str) -> None:
    if not can_have_vectors(servers.as_superuser(url)):
        pytest.skip("this PostgreSQL has no pgvector")


async def test_vectors_follow_and_stay_with_what_says_the_same(
    able: None, database: Database
) -> None:
    await noted(database)
    embedder = Counts()
    await index(database, embedder)
    assert {row[-1] for row in await entries_of(database)} == {"test/counts"}
    texts = [text for asked in embedder.asked for text in asked]
    assert set(texts) >= {"topics / topic 2: Ann keeps bees."}
    found = await find(database, "topics / topic 2: Ann keeps bees.", embedder)
    assert found.mode is SearchMode.HYBRID
    best = found.hits[0]
    assert (best.found.revision, best.words_rank, best.vectors_rank) == (2, 1, 1)
    assert best.vectors_score == pytest.approx(1.0, abs=1e-5)
    near = await find(database, "zzz", embedder, mode=SearchMode.VECTORS)
    assert (near.mode, len(near.hits)) == (SearchMode.VECTORS, 3)
    # Of what changes only that is embedded again, of a new model all.
    embedder.asked.clear()
    await edit(database, [Edit(op=None, path="$.topics.topic_1", value_json='"No ferry."')])
    await index(database, embedder)
    assert embedder.asked == [["topics / topic 1: No ferry."]]
    other = Counts(model="test/other")
    await index(database, other)
    assert sum(len(asked) for asked in other.asked) == len(SAID) + 3
    assert {row[-1] for row in await entries_of(database)} == {"test/other"}
    assert await wrong(database) == []


async def test_a_memory_without_chunks_is_found_by_vectors(able: None, database: Database) -> None:
    await make(database, [])
    await edit(database, [Edit(op=None, path="$.topics.bees", value_json='"Ann keeps bees."')])
    text = "topics / bees: Ann keeps bees."
    embedder = Counts()
    none = await find(database, text, embedder, mode=SearchMode.VECTORS)
    assert (none.hits, "no vectors" in none.failure) == ([], True)
    await index(database, embedder)
    assert embedder.asked == [[text]]
    near = await find(database, text, embedder, mode=SearchMode.VECTORS)
    assert (len(near.hits), near.failure) == (1, "")
    assert (await find(database, text, embedder)).mode is SearchMode.HYBRID
    # Chunks that come later take nothing from it.
    await append_texts(database, "s", ["Cats."])
    await index(database, embedder)
    assert embedder.asked.count([text]) == 1
    assert {row[-1] for row in await entries_of(database)} == {"test/counts"}


async def test_a_memory_without_chunks_is_embedded_by_another_model(
    able: None, database: Database
) -> None:
    await make(database, [])
    await edit(database, [Edit(op=None, path="$.topics.bees", value_json='"Ann keeps bees."')])
    await index(database, Counts())
    other = Counts(model="test/other")
    assert (await find(database, "bees", other)).mode is SearchMode.WORDS
    await index(database, other)
    assert {row[-1] for row in await entries_of(database)} == {"test/other"}
    assert (await find(database, "bees", other)).mode is SearchMode.HYBRID
    assert len(other.asked) == 1


async def test_tenants_see_their_own(servers: Servers, url: str, database: Database) -> None:
    await noted(database)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        other = connection.execute(
            "INSERT INTO tenant (tenant_id, name) VALUES (gen_random_uuid(), 'x')"
            " RETURNING tenant_id"
        ).fetchone()
    assert other is not None
    async with database.transaction(other[0]) as tx:
        assert await tx.fetch("SELECT FROM memory_entry") == []
