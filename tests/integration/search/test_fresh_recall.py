"""What a recall says its memories have read, and what it shows because they have not."""

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.values.errors import FailedPrecondition
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config, Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.search.consistent import ConsistentSearch
from service.usecases.search.entry_index import EntryIndexer
from service.usecases.search.index import Indexer
from service.usecases.search.memories import EntryQuery
from service.usecases.search.recall import Recalled, Recaller, RecallQuery
from service.usecases.search.search import Searcher
from storage.engine.database import Database
from tests.integration.search.test_memory_search import INDEX, SAID, SESSION, change, noted, search
from tests.integration.search.test_searcher import no_rerank
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    SPEC,
    TREE,
    Script,
    add_memory,
    make,
    prism_method,
    tree_method,
)
from tests.integration.support.writing import append_texts, drop_wake_ups

AS_IT_IS = Consistency()
FRESH = Consistency(fully_applied=True)


async def recall(
    database: Database,
    query: RecallQuery,
    consistency: Consistency = AS_IT_IS,
) -> Recalled:
    watcher = ProgressWatcher(database)
    memories = memories_of(database, WakeUps(drop_wake_ups), watcher, b"key", Limits())
    searcher = Searcher(database, None, no_rerank, Config())
    chunks = ConsistentSearch(database, searcher, watcher, b"key")
    recaller = Recaller(database, chunks, memories, b"key", Config())
    return await recaller.recall(*SESSION, query, consistency, deadline=None)


async def test_what_is_not_in_entries_yet_is_the_latest(database: Database) -> None:
    await noted(database)
    indexer = Indexer(database, None, Config(), EntryIndexer(database, use_cases()))
    while await indexer.index(INDEX) == 0.0:
        pass
    # The release before writes no entries, and does not know how far they are.
    await change(database, "DELETE FROM memory_entry WHERE revision > 1")
    await change(database, "UPDATE memory SET entry_revision = 1")
    found = await recall(database, RecallQuery(query="lighthouse"))
    (memory,) = found.memories
    assert (memory.revision, memory.applied_position) == (1, 1)
    _, latest = found.recalled.text.split("# Latest")
    assert SAID[1] in latest
    assert SAID[2] in latest
    # A worker writes them.
    while await indexer.index(INDEX) == 0.0:
        pass
    found = await recall(database, RecallQuery(query="lighthouse"))
    (memory,) = found.memories
    assert (memory.revision, memory.applied_position) == (3, 3)
    assert "# Latest" not in found.recalled.text
    assert SAID[2] in found.recalled.text


async def test_a_closed_tree_holds_up_no_fresh_recall(database: Database) -> None:
    await make(database, [f"Sentence {n} is about a horse in town. " * 4 for n in range(4)], TREE)
    await tree_method(database, Script()).drain(ITEM)
    await change(database, "UPDATE memory SET seal_position = 4, status = 'sealed'")
    await append_texts(database, "s", ["The ferry is late."], first=5)
    found = await recall(database, RecallQuery(query="ferry"))
    assert "The ferry is late." in found.recalled.text.split("# Latest")[1]
    notes = memory_id(KEY, "notes")
    await add_memory(database, notes, "notes", SPEC, head=5)
    item = WorkItem(kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=notes)
    await prism_method(database, Script()).drain(item)
    indexer = Indexer(database, None, Config())
    while await indexer.index(INDEX) == 0.0:
        pass
    found = await recall(database, RecallQuery(query="lighthouse"), FRESH)
    assert [(one.memory, one.applied_position) for one in found.memories] == [
        ("m", 4),
        ("notes", 5),
    ]
    assert "# Latest" not in found.recalled.text
    entries = await search(database).find(*SESSION, EntryQuery(query="ferry"), FRESH, deadline=None)
    assert len(entries.memories) == 2
    # A request that names it fails.
    with pytest.raises(FailedPrecondition, match="closed at position 4"):
        await recall(database, RecallQuery(query="ferry", memories=["m"]), FRESH)
    with pytest.raises(FailedPrecondition, match="closed at position 4"):
        await search(database).find(
            *SESSION, EntryQuery(query="ferry", memories=["m"]), FRESH, deadline=None
        )
