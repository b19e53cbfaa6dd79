"""Pages of the log, while others write it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.usecases.log.sessions import read_chunks
from storage.engine.database import Database
from storage.log import chunks as log
from storage.log import pages as log_pages
from storage.log import sessions
from tests.integration.support.writing import append_chunks, append_texts

KEY = session_key(DEFAULT_TENANT, "s")


async def test_a_page_ends_at_the_head_that_it_reports(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    await append_texts(database, "s", ["a"])
    read = log_pages.read_pages

    async def later(*arguments: Any, **named: Any) -> Mapping[int, Sequence[Any]]:
        # Between the head and the chunks.
        await append_texts(database, "s", ["a", "b"])
        return await read(*arguments, **named)

    monkeypatch.setattr(log_pages, "read_pages", later)
    page = await read_chunks(
        database, DEFAULT_TENANT, "s", from_position=1, limit=10, max_bytes=2**20
    )
    assert [one.position for one in page.chunks] == [1]
    assert page.head == 1


async def test_readers_of_texts_do_not_read_metadata(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    chunks = [Chunk(kind=ChunkKind.TEXT, text="x", metadata={"k": "v" * 1000})] * 3
    await append_chunks(database, "s", chunks)
    async with database.transaction(DEFAULT_TENANT) as tx:
        texts = await log.read_ranges(tx, KEY, [(0, 3)], 1000)
        pages = await log_pages.read_pages(tx, KEY, [(0, 3), (1, 3), (2, 3)], 1000)
    assert [one.chunk for one in texts[0]] == [Chunk(kind=ChunkKind.TEXT, text="x")] * 3
    # More than fits: the first of each range is still returned.
    assert {after: [one.position for one in found] for after, found in pages.items()} == {
        0: [1],
        1: [2],
        2: [3],
    }
    assert pages[0][0].chunk == chunks[0]
