"""The language that a session is searched in."""

from uuid import uuid4

import pytest

import palimpsest
from palimpsest import InvalidArgument
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.log import sessions
from storage.engine.database import Database
from tests.integration.search.test_index_words import indexer, rows
from tests.integration.support.writing import append_texts


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("english", "'fish':3 'häuser':1"),
        ("german", "'fish':3 'haus':1 'the':2"),
        ("simple", "'fishes':3 'häuser':1 'the':2"),
    ],
)
async def test_words_are_those_of_the_language(
    database: Database, language: str, words: str
) -> None:
    await sessions.create(database, DEFAULT_TENANT, "s", language=language)
    await append_texts(database, "s", ["Häuser the fishes"])
    key = session_key(DEFAULT_TENANT, "s")
    item = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=key, item_id=key)
    await indexer(database).index(item)
    assert await rows(database, "SELECT words::text FROM chunk_word") == [(words,)]


@pytest.mark.parametrize("language", ["klingon", "", "pg_catalog.english", "english'"])
async def test_a_language_that_the_database_does_not_have_makes_no_session(
    database: Database, language: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await sessions.create(database, DEFAULT_TENANT, "s", language=language)
    assert caught.value.reason is Reason.LANGUAGE_UNKNOWN
    assert await sessions.list_after(database, DEFAULT_TENANT, "", 10) == []


async def test_a_client_says_the_language_or_gets_the_services(client: palimpsest.Client) -> None:
    name = f"s-{uuid4()}"
    session = await client.create_session(name, language="german")
    assert (await session.info()).language == "german"
    for same in ("german", ""):
        again = await client.create_session(name, exist_ok=True, language=same)
        assert (await again.info()).language == "german"
    with pytest.raises(palimpsest.AlreadyExists, match="'german', not 'french'") as other_one:
        await client.create_session(name, exist_ok=True, language="french")
    assert other_one.value.reason == "SESSION_EXISTS"
    other = await client.create_session(f"{name}-2")
    assert (await other.info()).language == "english"
    with pytest.raises(InvalidArgument, match="klingon") as caught:
        await client.create_session(f"{name}-3", language="klingon")
    assert caught.value.reason == "LANGUAGE_UNKNOWN"
    with pytest.raises(InvalidArgument):
        await client.create_session(f"{name}-4", language="no language")
