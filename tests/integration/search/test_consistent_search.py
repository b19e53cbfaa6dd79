"""Searches that wait for the index: at an API server, with an indexer that the test runs."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

import palimpsest
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from tests.support.harness import Servers, api


@pytest.fixture(scope="module")
def url(servers: Servers) -> str:
    return servers.new_database()


@pytest.fixture(scope="module")
async def client(url: str) -> AsyncIterator[palimpsest.Client]:
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            yield client


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"s-{uuid4().hex}")


async def index(url: str, session: palimpsest.Session) -> None:
    """Does what a worker does."""
    key = session_key(DEFAULT_TENANT, session.id)
    item = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=key, item_id=key)

    database = Database.connect(url, pool_size=2, name="indexer")
    try:
        await Indexer(database, None, Config()).index(item)
    finally:
        await database.close()


async def test_a_search_waits_for_the_whole_log(url: str, session: palimpsest.Session) -> None:
    await session.append(["The lamp is lit.", "The ferry leaves at nine."])
    waiting = asyncio.create_task(session.search("lamp", fully_applied=True, timeout=120))
    await index(url, session)
    found = await waiting
    assert (found.index.indexed_position, found.read_point.applied_position) == (2, 2)
    assert [one.chunk.position for one in found.results] == [1]
    again = await session.search("ferry", after=found.read_point.read_token, timeout=120)
    assert [one.chunk.position for one in again.results] == [2]


async def test_a_search_waits_for_no_more_than_its_token(
    url: str, session: palimpsest.Session
) -> None:
    first = await session.append("The lamp is lit.")
    await index(url, session)
    await session.append("The lamp is out.")
    found = await session.search("lamp", after=first.read_token, timeout=120)
    assert found.read_point.applied_position == 1
    # What is newer is still found.
    assert len(found.results) == 2


async def test_a_search_says_how_far_the_index_came(session: palimpsest.Session) -> None:
    await session.append("The lamp is lit.")
    with pytest.raises(palimpsest.DeadlineExceeded) as late:
        await session.search("lamp", fully_applied=True, timeout=1)
    assert late.value.reason == "NOT_APPLIED_IN_TIME"
    assert late.value.metadata == {"position": "1", "applied_position": "0"}


async def test_a_token_of_another_session_is_refused(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    other = await client.create_session(f"s-{uuid4().hex}")
    ack = await other.append("The lamp is lit.")
    for token in (ack.read_token, "none"):
        with pytest.raises(palimpsest.InvalidArgument) as refused:
            await session.search("lamp", after=token)
        assert refused.value.reason == "TOKEN_INVALID"


async def test_a_search_that_waits_ends_with_its_session(session: palimpsest.Session) -> None:
    await session.append("The lamp is lit.")
    waiting = asyncio.create_task(session.search("lamp", fully_applied=True, timeout=120))
    await asyncio.sleep(0)
    await session.delete()
    with pytest.raises(palimpsest.NotFound):
        await waiting


async def test_a_filter_of_threads_sources_and_times_is_searched(
    session: palimpsest.Session,
) -> None:
    await session.append("The lamp is lit.")
    none = await session.search("lamp", threads=["a"], fully_applied=False)
    assert none.results == ()
    found = await session.search("lamp", threads=[""], excluded_threads=["a"], sources=[""])
    assert len(found.results) == 1
    with pytest.raises(ValueError, match="threads must be a collection"):
        await session.search("lamp", threads="a")
