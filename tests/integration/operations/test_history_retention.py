"""History of memories is thinned to the last state of each day; dates of rows are the clock."""

from collections.abc import Mapping
from typing import Any

import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.prism.amendments import Op
from service.domain.prism.spec import Encoding
from service.domain.prompting.flows import ModelRequest
from service.domain.values import fault_hook
from service.domain.values.errors import FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.history import History
from service.usecases.memories.memories import Memories
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations import retention as usecase
from service.usecases.search.entry_index import EntryIndexer
from storage.engine.database import Database
from storage.memories import entries
from tests.integration.operations.test_retention import Sql, differences, retain, run, run_killed
from tests.integration.operations.test_retention import admin as admin
from tests.integration.support.crashing import Killed
from tests.integration.support.scripted import ITEM, KEY, MEMORY, Script, make, prism_method, read
from tests.integration.support.writing import append_texts, drop_wake_ups

DAYS, A_DAY = 5, 8
REVISIONS = DAYS * A_DAY
#: The last revision of each day; the newest ten revisions are kept in any case.
KEPT = [8, 16, 24]


def topics(ask: ModelRequest, number: int) -> str:
    """Writes one of five topics, which later steps replace."""
    return f'[OBJECTS FOR ADD]\n{{"$.topics.t{number % 5}": {{"add": "v{number} {"x" * 40}"}}}}'


def memories_over(database: Database) -> Memories:
    return memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"key", Limits()
    )


async def complete(database: Database, admin: Sql) -> None:
    """Writes the first state, and its digest, which `make` leaves out."""
    first = use_cases()["prism"].first((await read(database)).spec)
    for table in ("prism_base", "prism_value"):
        await admin(f"UPDATE {table} SET value = %s", first.value)
    await admin("UPDATE revision SET digest = %s", first.digest)


async def built(database: Database, admin: Sql, encoding: Encoding = Encoding.IN_PLACE) -> None:
    """Makes a memory that changed eight times a day on five days, long ago."""
    await make(database, [f"chunk {number}" for number in range(REVISIONS)], encoding=encoding)
    await complete(database, admin)
    await prism_method(database, Script(reply=topics)).drain(ITEM)
    if encoding is not Encoding.ADAPTIVE:
        assert (await read(database)).revision == REVISIONS
    await admin(
        "UPDATE revision SET created_at = date_trunc('day', now(), 'UTC')"
        f" - make_interval(days => 40 - ((revision - 1) / {A_DAY})::integer)"
        " + make_interval(mins => revision::integer) WHERE revision > 0"
    )


async def states(database: Database, upto: int = REVISIONS) -> Mapping[int, str]:
    """Returns the value at each revision that can be read."""
    memories = memories_over(database)
    found = {}
    for revision in range(upto + 1):
        try:
            reading = await memories.read_revision(DEFAULT_TENANT, "s", "m", revision)
        except FailedPrecondition as error:
            assert error.reason is Reason.HISTORY_EXPIRED
        else:
            found[revision] = reading.value_json
    return found


async def written(database: Database) -> list[Any]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return sorted(await entries.read_all(tx, KEY, MEMORY), key=lambda one: one.entry.path)


async def origins(database: Database) -> dict[str, Any]:
    """Returns where each topic came from, as GetProvenance says."""
    history = History(database, use_cases())
    found = {}
    for number in range(5):
        path = f"$['topics']['t{number}']"
        given = await history.provenance(
            DEFAULT_TENANT, "s", "m", path, revision=None, before=None, limit=1
        )
        (first, *_) = given.entries
        found[path] = (first.amendment, first.chunks, given.value)
    return found


@pytest.mark.parametrize("encoding", [Encoding.IN_PLACE, Encoding.AMENDMENTS])
async def test_the_last_state_of_each_day_is_kept_byte_by_byte(
    database: Database, admin: Sql, encoding: Encoding
) -> None:
    await built(database, admin, encoding)
    editor = Editor(database, memories_over(database), Limits())
    newest = REVISIONS
    if encoding is not Encoding.IN_PLACE:
        await editor.fold(DEFAULT_TENANT, Target(session="s", memory="m"))
        newest += 1
        await admin(
            "UPDATE revision SET created_at = now() - interval '35 days' WHERE kind = 'fold'"
        )
    before, was = await states(database, newest), await written(database)
    from_ = await origins(database)
    assert len(before) == newest + 1
    await retain(database, history_days=30)
    await run(database, admin)

    after = await states(database, newest)
    assert sorted(after) == [0, *KEPT, *range(25, newest + 1)]
    assert after == {revision: before[revision] for revision in after}
    assert await written(database) == was
    assert await origins(database) == from_
    assert await differences(database) == []
    ((left,),) = await admin("SELECT count(*) FROM amendment WHERE revision <= 24")
    # A base of the first day would need more room: what is left makes its keys in another order.
    assert left == A_DAY + 5 + 5, "of other days what wrote each topic last"
    assert await admin("SELECT thinned_revision FROM memory") == [(24,)]
    assert await admin("SELECT count(*) FROM revision WHERE expired") == [(21,)]
    # A second pass finds nothing, and the memory goes on.
    await run(database, admin)
    assert await states(database, newest) == after
    await append_texts(database, "s", [*(f"chunk {one}" for one in range(REVISIONS)), "more"])
    await prism_method(database, Script(reply=topics)).drain(ITEM)
    assert (await read(database)).revision == newest + 1
    assert await differences(database) == []


async def test_days_with_folds_are_thinned(database: Database, admin: Sql) -> None:
    await built(database, admin, Encoding.ADAPTIVE)
    ((folds,),) = await admin("SELECT count(*) FROM revision WHERE kind = 'fold'")
    assert folds > DAYS
    newest = (await read(database)).revision
    before, was = await states(database, newest), await written(database)
    await retain(database, history_days=30)
    await run(database, admin)
    after = await states(database, newest)
    ((thinned,),) = await admin("SELECT thinned_revision FROM memory")
    assert sorted(after) == [0, *range(8, thinned, 8), *range(thinned, newest + 1)]
    assert after == {revision: before[revision] for revision in after}
    assert await written(database) == was
    assert await differences(database) == []


async def test_reads_of_what_expired_name_what_is_kept(database: Database, admin: Sql) -> None:
    await built(database, admin)
    await retain(database, history_days=30)
    await run(database, admin)
    target = Target(session="s", memory="m")
    memories, history = memories_over(database), History(database, use_cases())
    editor = Editor(database, memories, Limits())
    sides = (("m", 11), ("m", 24))
    for refused in (
        lambda: memories.read_revision(DEFAULT_TENANT, "s", "m", 11),
        lambda: memories.read_position(DEFAULT_TENANT, "s", "m", 11),
        lambda: editor.rollback(DEFAULT_TENANT, target, 11),
        lambda: history.compare(DEFAULT_TENANT, "s", sides, skip=0, limit=5),
        lambda: history.provenance(
            DEFAULT_TENANT, "s", "m", "$.topics", revision=11, before=None, limit=1
        ),
    ):
        with pytest.raises(FailedPrecondition) as caught:
            await refused()
        assert caught.value.reason is Reason.HISTORY_EXPIRED
        named = {"memory": "m", "revision": "11", "earlier_revision": "8", "later_revision": "16"}
        assert caught.value.metadata == named
    _, page = await history.revisions(DEFAULT_TENANT, "s", "m", -1, 100, max_bytes=1_000_000)
    assert [one.revision for one in page.items if not one.expired] == [0, *KEPT, *range(25, 41)]
    rolled = await editor.rollback(DEFAULT_TENANT, target, 16)
    assert rolled.revision == 41
    assert await differences(database) == []


async def test_what_a_rollback_restored_stays(database: Database, admin: Sql) -> None:
    await built(database, admin)
    editor = Editor(database, memories_over(database), Limits())
    await editor.rollback(DEFAULT_TENANT, Target(session="s", memory="m"), 11)
    before, from_ = await states(database, 41), await origins(database)
    await retain(database, history_days=30)
    await run(database, admin)
    after = await states(database, 41)
    assert sorted(after) == [0, 8, 11, 16, 24, *range(25, 42)]
    assert after == {revision: before[revision] for revision in after}
    assert await origins(database) == from_
    assert await differences(database) == []


async def test_entries_are_written_anew_as_they_were(database: Database, admin: Sql) -> None:
    await built(database, admin)
    was = await written(database)
    await retain(database, history_days=30)
    await run(database, admin)
    await admin("UPDATE memory SET entry_revision = 0")
    assert await EntryIndexer(database, use_cases()).rewrite(DEFAULT_TENANT, KEY, MEMORY)
    assert await written(database) == was
    # Without them what is left says from where they are.
    await admin("DELETE FROM memory_entry")
    await admin("UPDATE memory SET entry_revision = 0")
    assert await EntryIndexer(database, use_cases()).rewrite(DEFAULT_TENANT, KEY, MEMORY)
    assert await written(database) == was


@pytest.mark.parametrize("step", ["commit", "committed"])
async def test_a_crash_between_batches_loses_nothing(
    database: Database, admin: Sql, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setitem(
        usecase._BATCHES, "history_days", (usecase._BATCHES["history_days"][0], A_DAY)
    )
    await built(database, admin)
    before = await states(database)
    await retain(database, history_days=30)
    await run_killed(database, admin, step)
    reached = 8 if step == "commit" else 16
    assert await admin("SELECT thinned_revision FROM memory") == [(reached,)]
    assert await differences(database) == []
    await run(database, admin)
    after = await states(database)
    assert after == {revision: before[revision] for revision in [0, *KEPT, *range(25, 41)]}
    assert await differences(database) == []


async def test_days_of_one_revision_need_no_room(database: Database, admin: Sql) -> None:
    await built(database, admin)
    await admin(
        "UPDATE revision SET created_at = now() - make_interval(days => 100 - revision::integer)"
    )
    before = await states(database)
    await retain(database, history_days=30)
    await run(database, admin)
    assert await states(database) == before
    assert await admin("SELECT count(*) FROM prism_base") == [(1,)]
    assert await admin("SELECT thinned_revision FROM memory") == [(30,)]


async def test_edits_of_lists_are_thinned_to_the_same_bytes(database: Database, admin: Sql) -> None:
    await make(
        database, [], schema_source="class N:\n    items: list[str]\n", encoding=Encoding.IN_PLACE
    )
    await complete(database, admin)
    editor = Editor(database, memories_over(database), Limits())
    target = Target(session="s", memory="m")
    for number in range(24):
        if number % 3 == 2:
            edits = [Edit(op=Op.REMOVE, path="$.items[0]", value_json="")]
        elif number % 3:
            edits = [Edit(op=None, path="$.items", value_json=f'["{number}", "b", "c"]')]
        else:
            edits = [Edit(op=None, path="$.items[0]", value_json=f'"first {number}"')]
        await editor.revise(DEFAULT_TENANT, target, edits)
    await admin(
        "UPDATE revision SET created_at = date_trunc('day', now(), 'UTC')"
        " - make_interval(days => 40 - ((revision - 1) / 5)::integer) WHERE revision > 0"
    )
    newest = (await read(database)).revision
    before = await states(database, newest)
    await retain(database, history_days=30)
    await run(database, admin)
    after = await states(database, newest)
    assert len(after) < len(before)
    assert after == {revision: before[revision] for revision in after}
    assert await differences(database) == []


@pytest.mark.prove
async def test_a_worker_that_dies_anywhere_leaves_a_history_that_is_whole(
    database: Database, admin: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills a pass at its first boundary, the next one at its second, until one ends."""
    monkeypatch.setitem(
        usecase._BATCHES, "history_days", (usecase._BATCHES["history_days"][0], A_DAY)
    )
    await built(database, admin)
    before = await states(database)
    await retain(database, history_days=30)
    passed = last = killed = 0

    def kill(boundary: str) -> None:
        nonlocal passed
        passed += boundary.startswith("retention-remove:")
        if passed == last:
            raise Killed

    fault_hook.install(kill)
    try:
        while killed == last:
            passed, last = 0, last + 1
            try:
                await run(database, admin)
            except Killed:
                killed += 1
            fault_hook.install(None)
            found = await states(database)
            assert found == {at: before[at] for at in found}
            assert {0, *KEPT, *range(25, REVISIONS + 1)} <= found.keys()
            assert await differences(database) == []
            fault_hook.install(kill)
    finally:
        fault_hook.install(None)
    assert killed > 10, "it has that many boundaries"
    assert sorted(await states(database)) == [0, *KEPT, *range(25, REVISIONS + 1)]
    assert await admin("SELECT thinned_revision FROM memory") == [(24,)]
