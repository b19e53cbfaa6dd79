"""Redactions, quarantines, exports and watches of memories whose history is thinned."""

from contextlib import aclosing

import pytest

from service.domain.prism.spec import Encoding
from service.domain.values.errors import Conflict, FailedPrecondition
from service.domain.values.json_values import canonical
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.watch import Watches
from service.usecases.operations.exporting import Exporter
from storage.engine.database import Database
from tests.integration.access.test_quarantine import (
    POISON,
    drain,
    edit,
    quarantine,
    release,
    said,
    topics,
    value,
)
from tests.integration.operations.test_history_retention import (
    KEPT,
    REVISIONS,
    built,
    complete,
    states,
)
from tests.integration.operations.test_history_retention import topics as by_number
from tests.integration.operations.test_redaction import redact
from tests.integration.operations.test_retention import Sql, differences, retain, run
from tests.integration.operations.test_retention import admin as admin
from tests.integration.operations.test_transfers import content, exported, imported
from tests.integration.support.scripted import ITEM, Script, make, prism_method, read
from tests.integration.support.writing import append_chunks


async def thinned(database: Database, admin: Sql) -> None:
    await retain(database, history_days=30)
    await run(database, admin)


async def test_a_redaction_goes_back_to_a_state_that_is_kept(
    database: Database, admin: Sql
) -> None:
    await built(database, admin)
    before = await states(database)
    await thinned(database, admin)
    await redact(database, ranges=[(12, 12)])
    stored = await read(database)
    assert stored.applied_position == 8, "revision 11 has expired"
    assert await admin("SELECT thinned_revision FROM memory") == [(8,)]
    after = await states(database, stored.revision)
    assert {at: after[at] for at in (0, 8)} == {at: before[at] for at in (0, 8)}
    assert set(after) == {0, *range(8, stored.revision + 1)}
    assert await differences(database) == []
    await prism_method(database, Script(reply=by_number)).drain(ITEM)
    assert (await read(database)).applied_position == REVISIONS
    assert await differences(database) == []


async def poisoned(database: Database, admin: Sql) -> None:
    """Makes two past days: on the first a quarantined source is to replace what Ann said."""
    await make(database, [], encoding=Encoding.IN_PLACE)
    await complete(database, admin)
    texts = [said("Ann: likes tea", "user"), said("Ben: owns a boat", "user")]
    texts += [said(f"Ann: {POISON}", "web"), said("Ben: owns a car", "user")]
    texts += [said("Cyd: is ill", "user"), said("Cyd: is well", "user")]
    await append_chunks(database, "s", [*texts, *(said(f"N{n}: x", "user") for n in range(10))])
    await drain(database)
    await admin(
        "UPDATE revision SET created_at = date_trunc('day', now(), 'UTC') - make_interval("
        "days => CASE WHEN revision <= 4 THEN 40 ELSE 39 END) WHERE revision > 0"
    )
    await admin("UPDATE revision SET created_at = now() - interval '9 days' WHERE revision > 6")
    await thinned(database, admin)
    assert await admin("SELECT thinned_revision FROM memory") == [(6,)]
    left = await admin("SELECT revision FROM amendment WHERE revision <= 6 ORDER BY 1")
    assert [row[0] for row in left] == [3, 4, 6], "what was replaced the same day is gone"


async def test_a_quarantine_undoes_whole_thinned_days(database: Database, admin: Sql) -> None:
    await poisoned(database, admin)
    before = await topics(database)
    assert POISON in canonical(await value(database))
    await quarantine(database)
    assert POISON not in canonical(await value(database))
    # What replaced what Ann said is undone, and what that was is read again.
    await drain(database)
    clean = {**before, "Ann": "likes tea"}
    assert await topics(database) == clean
    assert await differences(database) == []
    await release(database)
    await drain(database)
    assert (await topics(database)).keys() == before.keys()
    assert POISON in canonical(await value(database))
    assert await differences(database) == []


async def test_what_a_quarantine_undid_is_not_thinned(database: Database, admin: Sql) -> None:
    await poisoned(database, admin)
    await admin("UPDATE memory SET thinned_revision = 0")
    await admin("UPDATE revision SET expired = false")
    await quarantine(database)
    for number in range(12):
        await edit(database, "$.topics.Zoe", f"text {number}")
    await admin("UPDATE revision SET created_at = now() - interval '50 days' WHERE revision <= 6")
    await admin("UPDATE revision SET created_at = now() - interval '49 days' WHERE revision > 6")
    await run(database, admin)
    assert await admin("SELECT thinned_revision FROM memory") == [(0,)]


async def test_a_thinned_history_moves_with_its_session(database: Database, admin: Sql) -> None:
    await built(database, admin)
    await thinned(database, admin)
    file = await exported(database, "s")
    await imported(database, file, "copy")
    assert content(await exported(database, "copy")) == content(file)
    assert await admin("SELECT DISTINCT thinned_revision FROM memory") == [(24,)]
    assert await admin("SELECT count(*) FROM revision WHERE expired") == [(42,)]


async def test_an_export_reads_no_memory_that_is_thinned_meanwhile(
    database: Database, admin: Sql
) -> None:
    await built(database, admin)
    parts = Exporter(database).export(DEFAULT_TENANT, "s")
    await anext(parts)
    await thinned(database, admin)
    assert await admin("SELECT thinned_revision FROM memory") == [(0,)], "it waits for the export"
    await admin("UPDATE session_export SET created_at = now() - interval '2 days'")
    await run(database, admin)
    assert await admin("SELECT thinned_revision FROM memory") == [(24,)]
    with pytest.raises(Conflict) as caught:
        [part async for part in parts]
    assert caught.value.reason is Reason.EXPORT_CHANGED


async def test_a_watch_does_not_pass_over_what_expired(database: Database, admin: Sql) -> None:
    await built(database, admin)
    await thinned(database, admin)
    watches = Watches(database, ProgressWatcher(database), Limits())
    seen = watches.watch(DEFAULT_TENANT, "s", "m", KEPT[0], deadline=None)
    async with aclosing(seen) as found:
        await anext(found)
        with pytest.raises(FailedPrecondition) as caught:
            await anext(found)
    assert caught.value.reason is Reason.HISTORY_EXPIRED
    assert caught.value.metadata == {"memory": "m", "revision": "8", "later_revision": "24"}
    seen = watches.watch(DEFAULT_TENANT, "s", "m", KEPT[-1], deadline=None)
    async with aclosing(seen) as found:
        await anext(found)
        assert (await anext(found)).revision.revision == 25  # type: ignore[union-attr]
