"""Tests that texts which are kept out are listed, and let in again."""

from collections.abc import Sequence

import pytest

from service.domain.log.keeping_out import KeptOutText
from service.domain.values.errors import NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.access.kept_out import KeptOutTexts
from storage.access import audit
from storage.access.audit import AuditFilter
from storage.engine.database import Database
from storage.log import erasures
from tests.integration.operations.test_redaction import (
    SECRET,
    create,
    redact,
    texts_of,
)
from tests.integration.support.scripted import SPEC
from tests.integration.support.writing import append_texts

OTHER = "another matter"


async def listed(database: Database) -> Sequence[KeptOutText]:
    return await KeptOutTexts(database).page(DEFAULT_TENANT, "s", "", 100)


async def allow(database: Database, id: str) -> KeptOutText:
    return await KeptOutTexts(database).allow(DEFAULT_TENANT, "s", id)


async def two(database: Database) -> dict[int, KeptOutText]:
    """Keeps out a phrase and a whole chunk; returns both by their numbers of words."""
    await create(database, SPEC)
    await append_texts(database, "s", [f"the {SECRET} code", OTHER])
    await redact(database, keep_out=True, text=f"{SECRET} code")
    await redact(database, keep_out=True, ranges=[(2, 2)])
    await append_texts(database, "s", [f"a {SECRET} code", f"no {SECRET} code", OTHER], first=3)
    assert await texts_of(database) == [""] * 5
    return {one.words: one for one in await listed(database)}


async def test_a_text_is_listed_with_its_redaction_and_not_by_itself(database: Database) -> None:
    found = await two(database)
    assert len(found) == 2
    whole = found.pop(0)
    (phrase,) = found.values()
    assert (phrase.refused_chunks, whole.refused_chunks) == (2, 1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        made = await erasures.list_after(tx, None, 10)
    assert [phrase.erasure_id, whole.erasure_id] == [str(one.erasure_id) for one in made]
    for one in (phrase, whole):
        assert (one.principal, one.reason) == ("key:1", "asked for")
        assert len(bytes.fromhex(one.id)) == 16
        assert SECRET not in repr(one)
    pages = KeptOutTexts(database)
    first = await pages.page(DEFAULT_TENANT, "s", "", 1)
    second = await pages.page(DEFAULT_TENANT, "s", first[0].id, 1)
    assert {first[0].id, second[0].id} == {phrase.id, whole.id}
    assert await pages.page(DEFAULT_TENANT, "s", second[0].id, 1) == []


async def test_a_text_is_let_in_from_then_on(database: Database) -> None:
    found = await two(database)
    whole = found.pop(0)
    (phrase,) = found.values()
    assert await allow(database, phrase.id) == phrase
    assert [one.id for one in await listed(database)] == [whole.id]
    await append_texts(database, "s", [f"now {SECRET} code", OTHER], first=6)
    assert await texts_of(database) == [""] * 5 + [f"now {SECRET} code", ""]
    await allow(database, whole.id)
    async with database.transaction(DEFAULT_TENANT) as tx:
        ((keeps_out,),) = await tx.fetch("SELECT keeps_out FROM session")
        events = await audit.list_events(
            tx, AuditFilter(action="text.allow"), after=0, newest_first=False, limit=9
        )
    assert not keeps_out, "appends are fast again"
    assert [one.entry.target for one in events] == [phrase.id, whole.id]
    assert events[0].entry.details == {"words": phrase.words, "erasure": phrase.erasure_id}
    await append_texts(database, "s", [OTHER], first=8)
    assert (await texts_of(database))[-1] == OTHER


async def test_a_text_is_kept_out_anew_by_the_next_redaction(database: Database) -> None:
    phrase = max((await two(database)).values(), key=lambda one: one.words)
    await allow(database, phrase.id)
    await redact(database, keep_out=True, text=f"{SECRET} code")
    again = max(await listed(database), key=lambda one: one.words)
    assert again.id == phrase.id, "the digest is the text's"
    assert again.erasure_id != phrase.erasure_id
    assert again.refused_chunks == 0


@pytest.mark.parametrize("id", ["", "0" * 32, "%"])
async def test_a_text_that_is_not_kept_out_is_not_found(database: Database, id: str) -> None:
    await two(database)
    with pytest.raises(NotFound) as refused:
        await allow(database, id)
    assert refused.value.reason is Reason.ERASURE_NOT_FOUND
    assert len(await listed(database)) == 2


async def test_a_session_that_is_none_is_refused(database: Database) -> None:
    texts = KeptOutTexts(database)
    for call in (texts.page(DEFAULT_TENANT, "x", "", 9), texts.allow(DEFAULT_TENANT, "x", "0")):
        with pytest.raises(NotFound) as refused:
            await call
        assert refused.value.reason is Reason.SESSION_NOT_FOUND
