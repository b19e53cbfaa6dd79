"""Adaptive memories fold by themselves, at the same places whatever worker steps them."""

import math
from dataclasses import replace
from typing import Any

import pytest

from service.app.kinds import memories_of
from service.domain.prism.folding import FoldState
from service.domain.prism.spec import ADAPTIVE_FOLD_TOKENS, Encoding
from service.domain.prompting.flows import ModelRequest
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Editor, Target
from service.usecases.memories.memory_method import MemoryChange, StepWait, Turn
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.step_engine import StepEngine
from storage.engine.claims import Claim
from storage.engine.database import Database
from storage.memories import history, memories, revisions
from storage.memories.history import StoredRevision
from storage.prism import states
from tests.integration.support.crashing import Killed
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    Script,
    make,
    prism_method,
    read,
)
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.contents import content_of
from tests.support.prices import PLAIN

ADAPTIVE: dict[str, Any] = {"encoding": Encoding.ADAPTIVE, "fold_tokens": ADAPTIVE_FOLD_TOKENS}
OTHER = memory_id(KEY, "other")
KEYS = 5
#: A fold that rewrites more than the last key is hardly ever worth it.
DEAR = replace(PLAIN, write=50.0)


def topic(number: int) -> str:
    """Reply number `number`: one of a few topics gets a new text."""
    text = f"what step {number} said of it, at length"
    return f'[OBJECTS FOR UPDATE]\n{{"$.topics.t{number % KEYS}": {{"update": "{text}"}}}}'


def script() -> Script:
    return Script(reply=_reply)


def _reply(ask: ModelRequest, _: int) -> str:
    # By the chunk, so that what is read twice is answered alike.
    (text,) = content_of(ask).texts
    return topic(int(text.rpartition(" ")[2]) + 1)


async def log_of(database: Database, memory: Any = MEMORY) -> list[StoredRevision]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return list(await history.list_revisions(tx, KEY, memory, -1, 1000))


async def folds(database: Database, memory: Any = MEMORY) -> list[int]:
    return [one.revision for one in await log_of(database, memory) if one.kind == "fold"]


async def stored_state(database: Database, memory: Any = MEMORY) -> Any:
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, memory)
    assert held is not None
    return held.fold_state


async def chunks(database: Database, count: int, **changes: Any) -> None:
    await make(database, [f"chunk {n}" for n in range(count)], **ADAPTIVE, **changes)


async def test_an_adaptive_memory_folds_by_itself(database: Database) -> None:
    await chunks(database, 60)
    made = script()
    await prism_method(database, made).drain(ITEM)
    folded = await folds(database)
    assert len(folded) > 2
    stored = await read(database)
    assert stored.applied_position == 60
    assert stored.revision == 60 + len(folded), "a step for each chunk, and the folds"
    # The prompt after a fold shows a base and no amendments.
    shown = [[segment.kind.value for segment in ask.segments] for ask in made.asked]
    assert sum("amendments" not in kinds for kinds in shown) >= len(folded)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await states.read_shown(tx, KEY, MEMORY, stored.revision)
        newest = await tx.fetch("SELECT value FROM prism_value")
        assert rows is not None
        assert rows.base != "{}"
        assert f"step {60}" in newest[0][0]


async def test_a_memory_beside_it_that_reads_the_same_folds_at_the_same_places(
    database: Database,
) -> None:
    await chunks(database, 40)
    await prism_method(database, script()).drain(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=KEY,
            memory_id=OTHER,
            name="other",
            spec=replace(SPEC, **ADAPTIVE),
            head=40,
            value="{}",
            digest=b"",
        )
    item = WorkItem(kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=OTHER)
    # One revision at a time, each by another worker, which has only what is stored.
    while True:
        worker = prism_method(database, script())
        work = await worker._claim(item)
        if isinstance(work, StepWait):
            break
        await worker._advance(work, Turn(until=math.inf))
    first, second = await log_of(database), await log_of(database, OTHER)
    assert [one.kind for one in first] == [one.kind for one in second]
    assert [one.digest for one in first[1:]] == [one.digest for one in second[1:]]
    assert len(await folds(database, OTHER)) > 1
    assert await stored_state(database) == await stored_state(database, OTHER)


async def test_a_worker_that_dies_between_a_fold_and_its_step_is_taken_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chunks(database, 40)

    commit = StepEngine._commit

    async def dies(self: StepEngine[Any], held: Claim, change: MemoryChange[Any]) -> Any:
        done = await commit(self, held, change)
        if change.new.kind == "fold":
            raise Killed
        return done

    made = script()
    monkeypatch.setattr(StepEngine, "_commit", dies)
    deaths = 0
    for _ in range(100):
        try:
            await prism_method(database, made).drain(ITEM)
        except Killed:
            deaths += 1
        else:
            break
    assert deaths == len(await folds(database)) > 1
    assert (await read(database)).applied_position == 40
    assert len(made.asked) == 40, "no prompt was made twice"


async def test_a_prompt_that_was_paid_for_is_not_folded_for_at_other_prices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chunks(database, 12)

    made = script()
    with monkeypatch.context() as patched:
        commit = revisions.commit_revision

        async def last_dies(tx: Any, held: Any, new: Any, **more: Any) -> bool:
            if new.to_position == 10:
                raise Killed
            return await commit(tx, held, new, **more)

        patched.setattr(revisions, "commit_revision", last_dies)
        with pytest.raises(Killed):
            await prism_method(database, made, prices=DEAR).drain(ITEM)
    before = await folds(database)
    assert (len(made.asked), max(before) < (await read(database)).revision) == (10, True)
    # Configured anew before another worker takes over: a fold costs nothing.
    free = replace(PLAIN, read=1.0, write=1.0)
    await prism_method(database, made, prices=free).drain(ITEM)
    assert (await read(database)).applied_position == 12
    assert len(made.asked) == 12, "no prompt was paid for twice"
    assert len(await folds(database)) > len(before)


async def test_an_edit_by_hand_begins_the_count_anew(database: Database) -> None:
    await chunks(database, 8)
    await prism_method(database, script(), prices=DEAR).drain(ITEM)
    before = await read(database)
    state = await stored_state(database)
    assert FoldState.from_json(state, before.revision).prompts > 1
    hidden = memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"token-key", Limits()
    )
    editor = Editor(database, hidden, Limits())
    await editor.rollback(DEFAULT_TENANT, Target(session="s", memory="m"), 2)
    after = await read(database)
    stale = await stored_state(database)
    assert FoldState.from_json(stale, after.revision) == FoldState.anew(after.revision)
    await append_texts(database, "s", ["chunk 8"], first=9)
    await prism_method(database, script(), prices=DEAR).drain(ITEM)
    newest = FoldState.from_json(await stored_state(database), (await read(database)).revision)
    assert newest.prompts == 1


async def test_a_chunk_that_comes_when_the_cache_is_cold_is_the_time_to_fold(
    database: Database,
) -> None:
    await chunks(database, 8)
    await prism_method(database, script(), prices=DEAR).drain(ITEM)
    before = await folds(database)
    await append_texts(database, "s", ["chunk 8"], first=9)
    await prism_method(database, script(), prices=DEAR).drain(ITEM)
    assert await folds(database) == before
    await append_texts(database, "s", ["chunk 9"], first=10)
    # Less than no time: the chunk comes later than the last revision by more than that.
    forgetful = replace(DEAR, ttl_seconds=-1)
    await prism_method(database, script(), prices=forgetful).drain(ITEM)
    assert len(await folds(database)) == len(before) + 1


async def test_what_a_release_before_left_is_begun_anew(database: Database) -> None:
    await chunks(database, 20)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("UPDATE memory SET fold_state = '[1, 2]'")
    await prism_method(database, script()).drain(ITEM)
    assert (await stored_state(database))["revision"] == (await read(database)).revision
    assert await folds(database) != []


async def test_memories_that_are_folded_by_size_count_nothing(database: Database) -> None:
    await make(database, [f"{n}" for n in range(30)])
    await prism_method(database, script()).drain(ITEM)
    assert await folds(database) == []
    assert await stored_state(database) is None
