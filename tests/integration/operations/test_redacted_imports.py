"""Tests that a redaction reaches sessions that were imported from its own, where it is wanted."""

from dataclasses import replace

import pytest

from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations import chunk_redaction, redacting
from service.usecases.operations.redacting import RedactionRequest, RedactionResult, Redactor
from storage.engine.database import Database
from storage.engine.errors import Unreachable
from storage.log.selecting import Selection
from tests.integration.operations.test_copies import (
    copied,
    delete,
    exported,
    imported,
    key,
    recorded,
    session,
)
from tests.integration.operations.test_import_erasures import FACTS, TOKEN_KEY, texts
from tests.integration.support.writing import append_texts, drop_wake_ups

TEXT = RedactionRequest(
    session="s", selection=Selection(text="a fact"), keep_out=True, include_imports=True
)


async def forget(database: Database, wanted: RedactionRequest = TEXT) -> RedactionResult:
    redactor = Redactor(database, WakeUps(drop_wake_ups), TOKEN_KEY, max_chunks=100, max_rules=10)
    return await redactor.redact(DEFAULT_TENANT, wanted)


async def family(database: Database) -> None:
    """A session, a copy that has gone on, and a copy of that; and one of another session."""
    await session(database, "s")
    await session(database, "other")
    await copied(database, "other", "stranger")
    await copied(database, "s", "a")
    await append_texts(database, "a", ["a fact of a"], first=3)
    await copied(database, "a", "b")


async def test_a_text_goes_from_all_copies_up_to_the_head_of_the_export(
    database: Database,
) -> None:
    await family(database)
    done = await forget(database)
    assert [(one.session, one.positions) for one in done.imports] == [("b", [1]), ("a", [1])]
    assert all(one.operation for one in done.imports)
    assert done.positions == [1]
    assert await texts(database, "s") == ["", "another"]
    for name in ("a", "b"):
        assert await texts(database, name) == ["", "another", "a fact of a"]
    assert await texts(database, "stranger") == ["a fact of other", "another"]
    await append_texts(database, "b", ["a fact again"], first=4)
    assert (await texts(database, "b"))[-1] == "", "it is kept out of copies, too"
    assert set(await recorded(database)) == {key("s"), key("a"), key("b")}


async def test_copies_are_left_unless_they_are_wanted(database: Database) -> None:
    await family(database)
    assert (await forget(database, replace(TEXT, include_imports=False))).imports == ()
    assert await texts(database, "a") == [*FACTS, "a fact of a"]
    # The same call reaches them later, with nothing left to do in the session itself.
    again = await forget(database)
    assert again.positions == []
    assert await texts(database, "a") == ["", "another", "a fact of a"]


async def test_positions_mean_the_same_up_to_the_export_alone(database: Database) -> None:
    await family(database)
    await append_texts(database, "s", ["of s alone"], first=3)
    wanted = replace(TEXT, selection=Selection(ranges=[(2, 3)]), keep_out=False)
    done = await forget(database, wanted)
    assert done.positions == [2, 3]
    assert [one.positions for one in done.imports] == [[2], [2]]
    assert await texts(database, "a") == [FACTS[0], "", "a fact of a"]


async def test_a_dry_run_changes_nothing(database: Database) -> None:
    await family(database)
    done = await forget(database, replace(TEXT, validate_only=True))
    assert [(one.session, one.positions) for one in done.imports] == [("b", [1]), ("a", [1])]
    assert await texts(database, "a") == [*FACTS, "a fact of a"]
    assert await recorded(database) == {}


async def test_a_call_that_failed_is_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await family(database)
    real = chunk_redaction.redact_chunks
    calls: list[object] = []

    async def fails_at_the_second(*given: object) -> object:
        calls.append(given)
        if len(calls) == 2:
            raise ConnectionResetError
        return await real(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(redacting, "redact_chunks", fails_at_the_second)
        with pytest.raises(Unreachable):
            await forget(database)
    assert len(calls) == 2
    assert await texts(database, "b") == ["", "another", "a fact of a"]
    assert await texts(database, "s") == FACTS, "the session is the last"
    done = await forget(database)
    assert [(one.session, one.positions) for one in done.imports] == [("b", []), ("a", [1])]
    assert await texts(database, "s") == ["", "another"]


async def test_an_unfinished_import_is_redacted_at_its_end(database: Database) -> None:
    await session(database, "s")
    file = await exported(database, "s")
    await imported(database, file, "late", lines=2)
    assert (await forget(database)).imports == ()
    await imported(database, file, "late")
    assert await texts(database, "late") == ["", "another"]


async def test_a_session_of_the_name_of_a_copy_is_left(database: Database) -> None:
    await family(database)
    await delete(database, "b")
    await session(database, "b")
    assert [one.session for one in (await forget(database)).imports] == ["a"]
    assert await texts(database, "b") == ["a fact of b", "another"]


async def test_too_many_copies_are_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await family(database)
    monkeypatch.setattr(redacting, "MAX_IMPORTS", 1)
    with pytest.raises(InvalidInput) as refused:
        await forget(database)
    assert refused.value.reason is Reason.TOO_MANY_CHUNKS
    assert await texts(database, "a") == [*FACTS, "a fact of a"]
