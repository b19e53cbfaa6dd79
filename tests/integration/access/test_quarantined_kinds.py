"""Tests that a quarantine takes trees and state memories back, and that a release restores them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.flows import ModelRequest
from service.domain.state.working_context import as_text
from service.domain.values.errors import FailedPrecondition
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.search.entry_index import EntryIndexer
from service.usecases.state.working_contexts import WorkingContexts
from service.usecases.tree.trees import Trees
from storage.engine.database import Database
from storage.memories import memories
from storage.operations import verifying
from storage.state import vectors
from tests.integration.access.test_quarantine import TARGET, editor_of, quarantine, release
from tests.integration.operations.test_redaction import (
    create,
    differences,
    redact,
    stored_memory,
)
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    STATE,
    TREE,
    Script,
    state_method,
    tree_method,
)
from tests.integration.support.writing import append_chunks, drop_wake_ups

POISON = "mallory"
#: A chunk is a step of its own.
SPECS = {"state": replace(STATE, period=1), "tree": replace(TREE, segment_tokens=16)}
METHODS = {"state": state_method, "tree": tree_method}
kinds = pytest.mark.parametrize("kind", ["state", "tree"])


def said(word: str, source: str = "user") -> Chunk:
    """Returns a text of a source, which is as long as a segment."""
    text = f"Here {word} is named, and much is said besides, for a segment of its own. "
    return Chunk(kind=ChunkKind.TEXT, text=text, source=source)


def names(ask: ModelRequest, _: int) -> str:
    """Repeats all names of the prompt, in the order of their first mention."""
    found = re.findall(r"\b(ann|ben|cyd|dan|eve|mallory)\b", ask.text)
    return " ".join(dict.fromkeys(found)) or "none"


class Kept:
    """A memory of one kind with the session's log."""

    def __init__(self, database: Database, kind: str) -> None:
        self.database, self.kind = database, kind

    async def make(self, **changes: Any) -> None:
        spec: MemorySpec = SPECS[self.kind]
        await create(self.database, replace(spec, **changes))

    async def append(self, *chunks: Chunk, first: int = 1) -> None:
        """Appends chunks, each of which is read before the next."""
        for number, chunk in enumerate(chunks, start=first):
            await append_chunks(self.database, "s", [chunk], first=number)
            await self.drain()

    async def drain(self) -> Script:
        script = Script(reply=names)
        await METHODS[self.kind](self.database, script).drain(ITEM)
        return script

    async def seen(self) -> Sequence[str]:
        """Returns the texts that readers see: vectors in use, or nodes."""
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            if self.kind == "state":
                stored = await memories.get(tx, KEY, MEMORY)
                assert stored is not None
                state = await vectors.read_state(tx, KEY, MEMORY, stored.revision)
                assert state is not None
                return [one.text for one in state.stack if one.revision]
            return [node.summary async for _, node in verifying.nodes(tx, KEY, MEMORY, 0)]

    async def words(self) -> set[str]:
        return {word for text in await self.seen() for word in text.split()} - {"none"}


async def poisoned(database: Database, kind: str) -> Kept:
    kept = Kept(database, kind)
    await kept.make()
    log = [said("ann"), said("ben"), said(POISON, "web"), said("cyd"), said("dan")]
    # A tree has a leaf once there is text enough after it.
    await kept.append(*log, said("eve"), said("eve"))
    assert POISON in await kept.words()
    return kept


@kinds
async def test_what_came_from_a_source_is_undone_and_the_rest_read_again(
    database: Database, kind: str
) -> None:
    kept = await poisoned(database, kind)
    before = await stored_memory(database)
    (memory,) = (await quarantine(database)).memories
    undone = memory.undone
    assert undone is not None
    after = await stored_memory(database)
    assert after.revision == undone.revision == before.revision + 1
    assert after.applied_position == before.applied_position - undone.reread < 3
    assert POISON not in await kept.words(), "readers see nothing of it meanwhile"
    assert {"ann"} <= await kept.words()
    assert await differences(database) == []
    script = await kept.drain()
    assert script.asked
    assert not any(POISON in one.text for one in script.asked)
    assert {"ann", "ben", "cyd", "dan"} <= await kept.words()
    assert POISON not in await kept.words()
    assert (await stored_memory(database)).applied_position == before.applied_position
    assert await differences(database) == []
    assert await EntryIndexer(database, use_cases()).catch_up(DEFAULT_TENANT, KEY)
    assert await differences(database) == []


@kinds
async def test_release_restores_what_was_there(database: Database, kind: str) -> None:
    kept = await poisoned(database, kind)
    before = await kept.seen()
    for _ in range(2):
        await quarantine(database)
        await kept.drain()
        assert await kept.seen() != before
        await release(database)
        if kind == "state":
            assert await kept.seen() == before, "vectors are kept, and nodes are not"
        asked = (await kept.drain()).asked
        assert await kept.seen() == before
        assert not asked or kind == "tree"
        assert await differences(database) == []


@kinds
async def test_what_was_held_is_read_after_the_release(database: Database, kind: str) -> None:
    kept = await poisoned(database, kind)
    await quarantine(database)
    await kept.drain()
    log = [said("mallory", "web"), said("dan"), said("dan")]
    await kept.append(*log, first=8)
    assert POISON not in await kept.words()
    await release(database)
    await kept.drain()
    words = " ".join(await kept.seen())
    assert words.count(POISON) > 0
    assert (await stored_memory(database)).applied_position == 10
    assert await differences(database) == []
    # As if nothing had been quarantined.
    twin = await kept.seen()
    await quarantine(database, "*")
    await release(database, "*")
    await kept.drain()
    assert await kept.seen() == twin


@kinds
async def test_a_quarantine_of_nothing_that_was_read_changes_nothing(
    database: Database, kind: str
) -> None:
    kept = await poisoned(database, kind)
    before = await stored_memory(database)
    for _ in range(2):
        (memory,) = (await quarantine(database, "mail")).memories
        assert memory.undone is None
    (memory,) = (await release(database, "mail")).memories
    assert memory.undone is None
    assert (await kept.drain()).asked == []
    assert (await stored_memory(database)).revision == before.revision


@kinds
async def test_two_sources_are_released_in_any_order(database: Database, kind: str) -> None:
    kept = Kept(database, kind)
    await kept.make()
    log = [said("ann"), said("ben", "mail"), said("cyd"), said(POISON, "web"), said("dan")]
    await kept.append(*log, said("eve"), said("eve"))
    before = await kept.seen()
    await quarantine(database, "web")
    await kept.drain()
    await quarantine(database, "mail")
    await kept.drain()
    assert await kept.words() == {"ann", "cyd", "dan", "eve"}
    await release(database, "web")
    await kept.drain()
    assert await kept.words() == {"ann", "cyd", POISON, "dan", "eve"}
    assert await differences(database) == []
    # What was read without either is not restored by the release of one again.
    await quarantine(database, "web")
    await kept.drain()
    await release(database, "mail")
    await kept.drain()
    assert await kept.words() == {"ann", "ben", "cyd", "dan", "eve"}
    await release(database, "web")
    await kept.drain()
    assert await kept.seen() == before
    assert await differences(database) == []


@kinds
async def test_a_step_that_is_under_way_commits_nothing_of_it(
    database: Database, kind: str
) -> None:
    kept = Kept(database, kind)
    await kept.make()
    script = Script(reply=names)

    async def meanwhile() -> None:
        if len(script.asked) == 2:
            await quarantine(database)

    script.meanwhile = meanwhile
    log = [said("ann"), said(POISON, "web"), said("ben"), said("cyd"), said("cyd")]
    await append_chunks(database, "s", log)
    await METHODS[kind](database, script).drain(ITEM)
    await kept.drain()
    assert POISON not in await kept.words()
    assert {"ann", "ben"} <= await kept.words()
    assert await differences(database) == []


async def test_no_rollback_goes_around_a_quarantine(database: Database) -> None:
    await poisoned(database, "state")
    await quarantine(database)
    with pytest.raises(FailedPrecondition, match="ReleaseSource"):
        await editor_of(database).rollback(DEFAULT_TENANT, TARGET, 3)


async def test_a_sealed_tree_is_sealed_again(database: Database) -> None:
    kept = await poisoned(database, "tree")
    wake_ups, watcher = WakeUps(drop_wake_ups), ProgressWatcher(database)
    memories = memories_of(database, wake_ups, watcher, b"k", Limits())
    await Trees(database, memories).seal(DEFAULT_TENANT, "s", "m")
    await kept.drain()
    assert (await stored_memory(database)).status == "sealed"
    await quarantine(database)
    assert (await stored_memory(database)).status == "active"
    await kept.append(said("dan"), first=8)
    stored = await stored_memory(database)
    assert (stored.status, stored.applied_position) == ("sealed", 7)
    assert POISON not in await kept.words()
    assert await differences(database) == []


@kinds
@pytest.mark.parametrize("position", [1, 5])
async def test_a_redaction_restores_nothing_that_a_quarantine_undid(
    database: Database, kind: str, position: int
) -> None:
    kept = await poisoned(database, kind)
    await quarantine(database)
    await kept.drain()
    await redact(database, ranges=[(position, position)])
    assert POISON not in await kept.words()
    await kept.drain()
    lost = {1: "ann", 5: "dan"}[position]
    assert await kept.words() == {"ann", "ben", "cyd", "dan", "eve"} - {lost}
    assert await differences(database) == []
    await release(database)
    await kept.drain()
    assert await kept.words() == {"ann", "ben", POISON, "cyd", "dan", "eve"} - {lost}
    assert await differences(database) == []


@pytest.mark.parametrize("position", [None, 3, 5])
async def test_a_context_has_nothing_of_it(database: Database, position: int | None) -> None:
    await poisoned(database, "state")
    contexts = WorkingContexts(database, ProgressWatcher(database), b"k", Limits())
    before = await contexts.read(DEFAULT_TENANT, "s", "m", position=position)
    assert POISON in as_text(before.context)
    await quarantine(database)
    after = await contexts.read(DEFAULT_TENANT, "s", "m", position=position)
    assert POISON not in as_text(after.context)
    assert "ann" in as_text(after.context)
    assert after.context.head == before.context.head
