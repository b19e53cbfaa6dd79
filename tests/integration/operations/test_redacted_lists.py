"""Redacting chunks of a long session: the lists of its words are written again without them."""

from collections.abc import Sequence

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations import redacting
from service.usecases.operations.redacting import RedactionRequest, Redactor
from storage.engine.database import Database
from storage.log.selecting import Selection
from storage.search import posting_lists
from tests.integration.search.test_posting_lists import blocks, index, write_blocks
from tests.integration.search.test_search_words import find
from tests.integration.support.search_rows import make_session
from tests.integration.support.statements import statements
from tests.integration.support.writing import drop_wake_ups

BLOCK = 8
SECRET_AT = (2, 3, 8, 24, 39)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes lists for few chunks, and lets a call rewrite them all."""
    monkeypatch.setattr(posting_lists, "BLOCK_CHUNKS", BLOCK)
    monkeypatch.setattr(posting_lists, "LOOK_CHUNKS", 2)
    monkeypatch.setattr(posting_lists, "OWN_HOLDERS", 1)
    monkeypatch.setattr(redacting, "OWN_BATCHES", 20)


async def removed_counts(database: Database) -> dict[str, int]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        ((removed,),) = await tx.fetch("SELECT removed FROM redaction")
    return dict(removed)


async def listed(database: Database) -> Sequence[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch("SELECT p::text FROM posting_list p ORDER BY p")
    return [row[0] for row in rows]


async def test_each_block_with_redacted_chunks_is_written_again_once(database: Database) -> None:
    texts = [
        f"common {'zanzibar' if at in SECRET_AT else f'twin t{at % 3}'}" for at in range(1, 41)
    ]
    await make_session(database, texts)
    await index(database)
    await write_blocks(database)
    found = await blocks(database)
    assert [last for _, last in found] == [8, 16, 24, 32, 40]
    before = await listed(database)
    redactor = Redactor(database, WakeUps(drop_wake_ups), b"key", max_chunks=100)
    with statements() as sent:
        await redactor.redact(
            DEFAULT_TENANT, RedactionRequest(session="s", selection=Selection(text="zanzibar"))
        )
    # Two have none of them.
    assert (await removed_counts(database))["posting_block.words"] == 3
    assert sum("DELETE FROM posting_block" in one for one in sent) == 3
    assert await blocks(database) == found
    assert await listed(database) != before
    assert await find(database, "zanzibar", depth=100) == []
    assert {one.position for one in await find(database, "common", depth=100)} == (
        set(range(1, 41)) - set(SECRET_AT)
    )
    # No position of theirs is in a list, nor does any statement compare all with all.
    lookups = [one for one in sent if "FROM posting_block" in one and "SELECT first_pos" in one]
    assert len(lookups) == 3
    assert not any("unnest" in one for one in lookups)
