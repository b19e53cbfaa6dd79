"""Questions with a filter cite only what it allows, and readers of the log read only that."""

from datetime import UTC, datetime

import pytest

from service.domain.answers.browse.spec import BrowseRequest
from service.domain.answers.trajectory import NoAnswer
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.memory_specs import ReaderName
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.answers.readers.log_range import citable, filter_of, wanted_log_of
from service.usecases.log.chunk_filter import ChunkFilter
from storage.answers.answers import StoredCitation
from storage.engine.database import Database
from storage.log import ends
from tests.integration.support.browse import write
from tests.integration.support.scripted import Script, answerer
from tests.integration.support.stored_answers import KEY, read_answer, store_question
from tests.support.gateways import gateway

#: Odd positions are of the thread "a".
CHUNKS = [
    Chunk(kind=ChunkKind.TEXT, text=f"text {n}", thread="a" if n % 2 else "b") for n in range(1, 9)
]
FILTER = ChunkFilter(threads=("a",), to_position=6)


def cited(position: int, first: int = 0, last: int = 0) -> StoredCitation:
    return StoredCitation(
        position=position, path="", revision=0, excerpt="", from_position=first, to_position=last
    )


def test_a_filter_is_stored_as_json_and_comes_back() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    whole = ChunkFilter(
        from_position=1,
        from_time=at,
        kinds=(ChunkKind.TEXT,),
        metadata={"k": "v"},
        excluded_threads=("", "b"),
        sources=("c",),
        occurred_before=at,
    )
    for one in (whole, FILTER, ChunkFilter()):
        assert ChunkFilter.from_json(one.to_json()) == one


async def test_the_log_is_read_and_cited_within_the_filter(database: Database) -> None:
    await write(database, CHUNKS)
    item = await store_question(
        database, None, "?", revision=0, applied_position=8, chunk_filter=FILTER.to_json()
    )
    asked = await read_answer(database, item)
    assert filter_of(asked) == FILTER
    held = wanted_log_of(database, DEFAULT_TENANT, asked)
    assert [p async for page in held.texts() for p, _ in page] == [1, 3, 5]
    assert [p async for page in held.texts(1, 4) for p, _ in page] == [3]
    within = held.within()
    assert within is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        everything = await ends.newest(tx, KEY, within, 10_000)
        assert everything == within.from_position - 1
        assert await ends.newest(tx, KEY, within, 1) == 3
        assert await ends.first(tx, KEY, within, 1) == 1
        citations = [cited(1), cited(2), cited(7), cited(3, 2, 4), cited(0, 5, 5), cited(0, 5, 6)]
        kept = await citable(tx, asked, citations)
    assert kept == [citations[0], citations[3], citations[4]]


@pytest.mark.parametrize("reader", [ReaderName.WHOLE, ReaderName.DCISO])
async def test_a_filter_that_allows_nothing_is_named_as_the_cause(
    database: Database, reader: ReaderName
) -> None:
    await write(database, CHUNKS)
    item = await store_question(
        database,
        None,
        "?",
        revision=0,
        applied_position=8,
        reader=reader,
        browsing=BrowseRequest() if reader is ReaderName.DCISO else None,
        chunk_filter=ChunkFilter(threads=("c",)).to_json(),
    )
    script = Script()
    await answerer(database, gateway(script, database)).make(item)
    stored = await read_answer(database, item)
    assert (stored.no_answer, script.asked) == (NoAnswer.EMPTY, [])
    assert stored.failure == "There is no answer: no text of the log fits the question's filter."
