"""Many memories at once, or a long past, cause no waits, pass no limits and cost no more."""

import asyncio
from typing import Any

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.prism.memory import PrismMemory
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.errors import Exhausted, PalimpsestError
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.paths import Path
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.settings.config import Limits
from service.usecases.answers.readers.citing import cite
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import history as looking_back
from service.usecases.memories import memories as memories_module
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.history import History
from service.usecases.memories.memories import Memories
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import flushing, revisions, stalls
from storage.prism import amendment_log, states
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    STATE,
    TREE,
    Script,
    make,
    prism_method,
    read,
)
from tests.integration.support.statements import statements
from tests.integration.support.writing import append_texts, drop_wake_ups

TARGET = Target(session="s", memory="m")


def limited(database: Database, **limits: Any) -> Memories:
    return memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"token-key", Limits(**limits)
    )


async def test_memories_that_are_made_at_once_do_not_pass_the_limit(url: str) -> None:
    database = Database.connect(url, pool_size=8, name="test")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    memories = limited(database, max_memories=2)
    made = await asyncio.gather(
        *(memories.create(DEFAULT_TENANT, "s", f"m{n}", SPEC) for n in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Exhausted) for one in made) == 6
    assert len((await memories.list_after(DEFAULT_TENANT, "s", "", None)).items) == 2
    await database.close()


@pytest.mark.parametrize("spec", [SPEC, TREE, STATE], ids=["prism", "tree", "state"])
async def test_what_says_why_no_memory_is_made(database: Database, spec: MemorySpec) -> None:
    memories = limited(database, max_memories=1)

    async def refused(session: str, name: str) -> PalimpsestError:
        with pytest.raises(PalimpsestError) as caught:
            await memories.create(DEFAULT_TENANT, session, name, spec)
        return caught.value

    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    await memories.create(DEFAULT_TENANT, "s", "m", spec)
    assert (await refused("none", "m")).reason is Reason.SESSION_NOT_FOUND
    # A session that is full has it nevertheless.
    assert (await refused("s", "m")).reason is Reason.MEMORY_EXISTS
    assert (await refused("s", "other")).reason is Reason.TOO_MANY_MEMORIES
    assert [
        one.name for one in (await memories.list_after(DEFAULT_TENANT, "s", "", None)).items
    ] == ["m"]


@pytest.mark.parametrize("texts", [[], ["a", "b"]], ids=["empty", "written"])
@pytest.mark.parametrize("spec", [SPEC, TREE, STATE], ids=["prism", "tree", "state"])
async def test_a_memory_is_made_as_it_is_read(
    database: Database, spec: MemorySpec, texts: list[str]
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    if texts:
        await append_texts(database, "s", texts)
    memories = limited(database)
    made = await memories.create(DEFAULT_TENANT, "s", "m", spec)
    assert made == await memories.get(DEFAULT_TENANT, "s", "m")
    assert (made.head, made.is_idle) == (len(texts), not texts)


async def test_a_flush_and_an_append_do_not_wait_for_each_other(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    await append_texts(database, "s", ["a"])
    memories = limited(database)
    first, second = sorted(("m1", "m2"), key=lambda name: memory_id(KEY, name))
    lock = "UPDATE memory SET has_work = true WHERE memory_id = %(memory)s"
    for name in (first, second):
        await memories.create(DEFAULT_TENANT, "s", name, SPEC)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            "SELECT 1 FROM session WHERE session_key = %(key)s FOR NO KEY UPDATE", {"key": KEY}
        )
        await tx.execute(lock, {"memory": memory_id(KEY, second)})
        flush = asyncio.create_task(memories.flush(DEFAULT_TENANT, "s", ""))
        await _until_somebody_waits(database)
        await tx.execute(lock, {"memory": memory_id(KEY, first)})
    _, head = await flush
    assert head == 1


async def test_a_retry_of_all_leaves_out_no_memory_that_is_locked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories_module, "RETRY_MEMORIES", 2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    memories = limited(database)
    names = sorted((f"m{n}" for n in range(5)), key=lambda name: memory_id(KEY, name))
    for name in names:
        await memories.create(DEFAULT_TENANT, "s", name, SPEC)
    stall = """
        WITH stalled AS (UPDATE memory SET status = 'stalled' RETURNING memory_id)
        INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id, from_position,
            to_position, attempts, cause)
        SELECT %(key)s, memory_id, gen_random_uuid(), %(tenant)s, 0, 1, 5, 'no' FROM stalled
    """
    lock = "UPDATE memory SET has_work = true WHERE memory_id = %(memory)s"
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(stall, {"key": KEY, "tenant": DEFAULT_TENANT})
    async with database.transaction(DEFAULT_TENANT) as tx:
        # As an append, which writes to the memories in any order.
        await tx.execute(
            "SELECT 1 FROM session WHERE session_key = %(key)s FOR NO KEY UPDATE", {"key": KEY}
        )
        await tx.execute(lock, {"memory": memory_id(KEY, names[1])})
        retry = asyncio.create_task(memories.retry_all(DEFAULT_TENANT, ""))
        await _until_somebody_waits(database)
        await tx.execute(lock, {"memory": memory_id(KEY, names[0])})
    assert await retry == 5
    assert await memories.retry_all(DEFAULT_TENANT, "s") == 0


async def test_a_retry_of_all_waits_for_a_step(database: Database) -> None:
    await make(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
        assert held is not None
        await stalls.add_dead_letter(tx, held, to_position=1, cause="no", resolution=None)
        await stalls.stall(tx, held)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await revisions.lock(tx, KEY, MEMORY) is not None
        retry = asyncio.create_task(limited(database).retry_all(DEFAULT_TENANT, "s"))
        await _until_somebody_waits(database)
    assert await retry == 1
    assert (await read(database)).status == "active"


async def _until_somebody_waits(database: Database) -> None:
    while True:
        async with database.transaction(DEFAULT_TENANT) as tx:
            waiting = await tx.fetch("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if waiting[0][0]:
                return
        await asyncio.sleep(0.02)


async def test_a_page_of_provenance_reads_no_more_of_the_past_than_it_needs(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking_back, "ORIGIN_AMENDMENTS", 10)
    monkeypatch.setattr(amendment_log, "READ_AMENDMENTS", 5)
    await make(database, ["a"])
    editor = Editor(database, limited(database), Limits())
    for number in range(60):
        edits = [Edit(op=None, path="$.topics.t", value_json=f'"{number}"')]
        await editor.revise(DEFAULT_TENANT, TARGET, edits)
    look, shown = History(database, use_cases()), []
    before: tuple[int, int] | None = None
    for _ in range(3):
        with statements() as sent:
            found = await look.provenance(
                DEFAULT_TENANT, "s", "m", "$.topics.t", revision=60, before=before, limit=4
            )
        assert sum("FROM amendment" in one for one in sent) <= 5
        page = found.entries[:4]
        before = (page[-1].amendment.revision, page[-1].amendment.ordinal)
        shown += [(one.amendment.revision, one.in_effect, one.origin) for one in page]
    assert shown == [(60, True, True), *((n, False, False) for n in range(59, 48, -1))]


async def test_rollbacks_do_not_cost_a_query_each(database: Database) -> None:
    await make(database, ["a"])
    editor = Editor(database, limited(database), Limits())
    for number in range(20):
        edits = [Edit(op=None, path="$.topics.t", value_json=f'"{number}"')]
        await editor.revise(DEFAULT_TENANT, TARGET, edits)
        newest = (await read(database)).revision
        await editor.rollback(DEFAULT_TENANT, TARGET, newest)
    with statements() as sent:
        found = await History(database, use_cases()).provenance(
            DEFAULT_TENANT, "s", "m", "$.topics.t", revision=None, before=None, limit=100
        )
    assert [one.amendment.revision for one in found.entries] == list(range(39, 0, -2))
    assert sum("FROM amendment" in one for one in sent) <= 3


async def test_a_citation_follows_no_more_of_what_was_merged_than_it_shows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text {n}" for n in range(30)]
    await make(database, texts)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        await flushing.want_consolidation(tx, held, 30)

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.purpose is not Purpose.CONSOLIDATE:
            return f'[OBJECTS FOR ADD]\n{{"$.topics.t{number}": {{"add": "text {number}"}}}}'
        gone = "\n".join(f"$.topics.t{n}" for n in range(2, 31))
        return (
            '[OBJECTS FOR UPDATE]\n{"$.topics.t1": {"update": "merged"}}\n'
            f"[OBJECTS FOR REMOVE]\n{gone}"
        )

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    monkeypatch.setattr("service.usecases.answers.readers.citing.MAX_SOURCES", 5)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await states.read_nearest(tx, KEY, MEMORY, 31)
        assert rows is not None
        memory = PrismMemory.load(SPEC.schema(), base_json=rows.base, amendments=rows.amendments)
        with statements() as sent:
            (cited,) = await cite(tx, (KEY, MEMORY), memory, [Path(("topics", "t1"))], 31)
    assert cited.position in range(1, 31)
    assert sum("FROM amendment" in one for one in sent) <= 2 + 5
