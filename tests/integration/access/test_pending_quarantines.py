"""Tests that workers finish quarantines and releases, memory by memory."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from service.domain.values.errors import Conflict, FailedPrecondition
from service.domain.values.json_values import canonical
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.usecases.access import sources as of_sources
from service.usecases.access.source_changes import SourceChanger
from service.usecases.log.wake_ups import WakeUps
from storage.access import source_trust
from storage.engine.database import Database
from storage.memories import memories, source_changes
from storage.prism import quarantine as prism_quarantine
from storage.prism import states
from tests.integration.access import test_quarantined_kinds
from tests.integration.access.test_quarantine import (
    POISON,
    notes,
    poisoned,
    quarantine,
    release,
    said,
    sources,
)
from tests.integration.operations.test_transfers import exported
from tests.integration.support.scripted import ITEM, KEY, SPEC, Script, add_memory, prism_method
from tests.integration.support.writing import append_chunks, drop_wake_ups

NAMES = ("a", "b", "m")


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_sources, "AT_ONCE_REVISIONS", 0)


def changer(database: Database) -> SourceChanger:
    return SourceChanger(database, WakeUps(drop_wake_ups), max_memory_bytes=1024 * 1024)


async def drain(database: Database) -> Sequence[str]:
    """Has all memories read on; returns the prompts."""
    script = Script(reply=notes)
    for name in NAMES:
        await prism_method(database, script).drain(replace(ITEM, item_id=memory_id(KEY, name)))
    return [one.text for one in script.asked]


async def seen(database: Database) -> dict[str, tuple[int, str]]:
    """Returns revisions and values of all memories."""
    found = {}
    async with database.transaction(DEFAULT_TENANT) as tx:
        for name in NAMES:
            stored = await memories.get(tx, KEY, memory_id(KEY, name))
            assert stored is not None
            rows = await states.get_nearest(tx, KEY, stored.memory_id, stored.revision)
            found[name] = stored.revision, canonical(rows.memory(SPEC.schema()).value)
    return found


async def pending(database: Database) -> Sequence[str]:
    return (await sources(database).rules(DEFAULT_TENANT, "s")).pending_memories


async def three(database: Database) -> dict[str, tuple[int, str]]:
    """Three memories that have read a poisoned source."""
    await poisoned(database)
    for name in NAMES[:2]:
        await add_memory(database, memory_id(KEY, name), name, SPEC, head=4)
    await drain(database)
    before = await seen(database)
    assert all(POISON in text for _, text in before.values())
    return before


async def apply_until(database: Database, wanted: int, patched: pytest.MonkeyPatch) -> None:
    """Applies the change to so many memories; then the worker dies, as it were."""
    applied = list[UUID]()
    real = prism_quarantine.read_again

    async def dies(tx: object, held: object, positions: Sequence[int]) -> None:
        if len(applied) == wanted:
            raise ConnectionResetError
        await real(tx, held, positions)  # type: ignore[arg-type]
        applied.append(held.memory_id)  # type: ignore[attr-defined]

    with patched.context() as one:
        one.setattr("service.usecases.prism.quarantine.quarantine.read_again", dies)
        await changer(database).look()
    assert len(applied) == wanted


async def test_a_crash_between_two_memories_is_made_up_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await three(database)
    done = await quarantine(database)
    assert all(one.is_pending and one.undone is None for one in done.memories)
    assert await pending(database) == list(NAMES)
    assert await seen(database) == before
    await apply_until(database, 1, monkeypatch)
    between = await seen(database)
    assert sorted(POISON in text for _, text in between.values()) == [False, True, True]
    assert len(await pending(database)) == 2
    await changer(database).look()
    after = await seen(database)
    assert await pending(database) == []
    for name, (revision, text) in after.items():
        assert revision == before[name][0] + 1, "one revision for each memory"
        assert POISON not in text
    await changer(database).look()
    assert await seen(database) == after


async def test_a_second_quarantine_before_the_first_is_complete_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await three(database)
    await quarantine(database)
    await apply_until(database, 1, monkeypatch)
    await quarantine(database)
    await changer(database).look()
    after = await seen(database)
    assert [one[0] for one in after.values()] == [one[0] + 1 for one in before.values()]


async def test_nothing_is_read_before_the_quarantine_is_applied(database: Database) -> None:
    await three(database)
    await quarantine(database)
    await append_chunks(database, "s", [said("Eve: is new", "user")], first=5)
    await append_chunks(database, "s", [said(f"Mal: {POISON}", "web")], first=6)
    assert await drain(database) == []
    await changer(database).look()
    prompts = await drain(database)
    assert len(prompts) == len(NAMES)
    assert all("Eve" in one and POISON not in one for one in prompts)


@pytest.mark.parametrize("applied", [0, 1, 3])
async def test_a_release_under_way_restores_all(
    database: Database, monkeypatch: pytest.MonkeyPatch, applied: int
) -> None:
    before = await three(database)
    await quarantine(database)
    await apply_until(database, applied, monkeypatch)
    await append_chunks(database, "s", [said("Eve: is held", "web")], first=5)
    done = await release(database)
    assert all(one.is_pending for one in done.memories)
    assert await drain(database) == [], "nothing is read before it is restored"
    await changer(database).look()
    assert await pending(database) == []
    after = await seen(database)
    assert [one[1] for one in after.values()] == [one[1] for one in before.values()]
    moved = [after[name][0] - before[name][0] for name in NAMES]
    assert sorted(moved) == [0] * (3 - applied) + [2] * applied
    assert len(await drain(database)) == len(NAMES), "what was held is read once"
    assert all("is held" in text for _, text in (await seen(database)).values())


async def test_no_quarantine_begins_while_its_source_is_released(database: Database) -> None:
    await three(database)
    await quarantine(database)
    await changer(database).look()
    await release(database)
    with pytest.raises(FailedPrecondition) as refused:
        await quarantine(database)
    assert refused.value.reason is Reason.SOURCE_QUARANTINED
    await quarantine(database, "mail")
    await changer(database).look()
    await quarantine(database)
    await changer(database).look()
    assert all(POISON not in text for _, text in (await seen(database)).values())


async def test_small_memories_are_done_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await poisoned(database)
    await add_memory(database, memory_id(KEY, "small"), "small", SPEC, head=4)
    monkeypatch.setattr(of_sources, "AT_ONCE_REVISIONS", 3)
    large, small = (await quarantine(database)).memories
    assert (large.memory, large.is_pending) == ("m", True)
    assert (small.memory, small.is_pending) == ("small", False)
    assert await pending(database) == ["m"]


async def test_one_memory_that_fails_does_not_keep_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three(database)
    await quarantine(database)
    real, failed = source_changes.of, list[UUID]()

    def fails_for_one(held: object) -> object:
        if not failed or held.memory_id in failed:  # type: ignore[attr-defined]
            failed.append(held.memory_id)  # type: ignore[attr-defined]
            raise RuntimeError("a defect")
        return real(held)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(source_changes, "of", fails_for_one)
        await changer(database).look()
    assert len(await pending(database)) == 1
    await changer(database).look()
    assert await pending(database) == []


async def test_no_export_begins_meanwhile(database: Database) -> None:
    await three(database)
    await quarantine(database)
    with pytest.raises(Conflict) as refused:
        await exported(database, "s")
    assert refused.value.reason is Reason.EXPORT_CHANGED
    await changer(database).look()
    assert await exported(database, "s")


async def test_a_call_that_fails_leaves_no_change(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await three(database)
    monkeypatch.setattr(source_trust, "MAX_RULES", 0)
    with pytest.raises(Exception, match="the limit"):
        await quarantine(database)
    assert await pending(database) == []
    await changer(database).look()
    assert await seen(database) == before


@test_quarantined_kinds.kinds
async def test_trees_and_states_are_taken_back_later(database: Database, kind: str) -> None:
    kept = await test_quarantined_kinds.poisoned(database, kind)
    before = await kept.seen()
    await quarantine(database)
    assert await kept.seen() == before
    assert (await kept.drain()).asked == []
    await changer(database).look()
    await kept.drain()
    assert test_quarantined_kinds.POISON not in await kept.words()
    await release(database)
    await changer(database).look()
    await kept.drain()
    assert test_quarantined_kinds.POISON in await kept.words()
