"""Words that the database refuses are tried again ever later, and the reason is reported."""

from collections.abc import Callable

import psycopg
import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Config
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from storage.operations.doctor import read_index
from tests.integration.search.test_index_vectors import PATIENT, Counts, vectors
from tests.integration.search.test_index_words import ITEM, noted, place, rows, session
from tests.integration.support.writing import append_texts
from tests.support.harness import Servers

__all__ = ["session"]


@pytest.fixture
def speak(servers: Servers, url: str) -> Callable[[str], None]:
    """Sets another language of the session, unchecked, and makes its words due."""

    def change(language: str) -> None:
        with psycopg.connect(servers.as_superuser(url)) as connection:
            connection.execute(
                "UPDATE session SET language = %s, words_ready_at = now()", (language,)
            )

    return change


async def fail(indexer: Indexer) -> None:
    with pytest.raises(psycopg.ProgrammingError, match="does not exist"):
        await indexer.index(ITEM)


async def test_they_are_not_tried_again_at_once_and_vectors_go_on(
    session: None, database: Database, speak: Callable[[str], None]
) -> None:
    await append_texts(database, "s", ["one", "two"])
    speak("nowhere")
    embedder = Counts()
    indexer = Indexer(database, embedder, PATIENT)
    await fail(indexer)
    # What is after them has its turn, and then there is nothing to do for a while.
    assert await noted(database) == [ITEM]
    assert await indexer.index(ITEM) is None
    assert len(await vectors(database)) == 2
    assert await noted(database) == []
    assert await indexer.index(ITEM) is None
    at = await place(database)
    assert (at.indexed_position, at.embedded_position) == (0, 2)
    assert (at.words_attempts, at.may_write_words, at.attempts) == (1, False, 0)
    speak("english")
    assert await noted(database) == [ITEM]
    assert await indexer.index(ITEM) is None
    at = await place(database)
    assert (at.indexed_position, at.words_attempts) == (2, 0)
    assert await noted(database) == []


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1.0), (3, 8.0), (40, 300.0)])
async def test_the_next_try_comes_ever_later(
    session: None,
    database: Database,
    speak: Callable[[str], None],
    failures: int,
    seconds: float,
) -> None:
    await append_texts(database, "s", ["one"])
    speak("nowhere")
    await rows(database, "UPDATE session SET words_attempts = :n RETURNING 1", n=failures)
    await fail(Indexer(database, None, Config()))
    ((wait, counted),) = await rows(
        database,
        "SELECT extract(epoch FROM words_ready_at - now())::float8, words_attempts FROM session",
    )
    assert counted == failures + 1
    # By chance up to a half less, and the database has got on since.
    assert seconds / 2 - 60 < float(str(wait)) <= seconds


async def test_the_doctor_and_the_index_say_why_until_it_is_over(
    session: None, database: Database, speak: Callable[[str], None]
) -> None:
    await append_texts(database, "s", ["one"])
    speak("nowhere")
    indexer = Indexer(database, None, PATIENT)
    await fail(indexer)
    assert "nowhere" in await told(database)
    speak("english")
    await indexer.index(ITEM)
    assert await told(database) == ""


async def told(database: Database) -> str:
    async with database.transaction(DEFAULT_TENANT) as tx:
        _, _, words_failure, failure = await read_index(tx)
    assert failure == ""
    return words_failure
