"""What search needs of the database besides tables is made where possible, and reported."""

import threading
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine

import migrations
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.connections import sqlalchemy_url
from storage.engine.database import Database
from storage.search import setup
from storage.search.setup import WORDS_INDEX, Support, read_support
from tests.support.harness import Servers, with_database

DIMENSIONS = 8


@pytest.fixture
def bare(servers: Servers) -> str:
    """Returns a migrated database without any extension; its URL."""
    name = f"bare_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER palimpsest").format(sql.Identifier(name))
        )
    url = with_database(servers.postgres.url, name)
    migrations.upgrade(sqlalchemy_url(url))
    return url


def offers(url: str, extension: str) -> bool:
    """Returns whether the server has the extension."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_available_extensions WHERE name = %s", (extension,)
        ).fetchone()
    return found is not None


def indexes(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT indexname FROM pg_indexes WHERE tablename IN ('chunk_word', 'chunk_vector')"
        ).fetchall()
    return {name for (name,) in rows if setup.is_ours(name)}


def test_what_the_migrating_role_may_not_make_is_reported_and_search_does_without(
    servers: Servers, bare: str
) -> None:
    support = setup.install(bare, DIMENSIONS)
    assert support.session_words == offers(bare, "btree_gin")
    assert support.vectors_unavailable
    assert support.indexed_dimensions == ()
    if offers(bare, "vector"):
        (problem,) = support.problems
        assert problem.startswith("the extension vector is installed on the server")
    else:
        assert support.problems == ()


async def test_what_is_there_is_said_by_the_database_too(servers: Servers, bare: str) -> None:
    setup.install_extensions(servers.as_superuser(bare))
    made = setup.install(bare, DIMENSIONS)
    assert made == setup.install(bare, DIMENSIONS), "it can run again"
    if offers(bare, "vector"):
        assert made == Support(
            vectors_unavailable="", session_words=True, indexed_dimensions=(DIMENSIONS,)
        )
        # One for another model is beside it.
        made = setup.install(bare, 2)
        assert made.indexed_dimensions == (2, DIMENSIONS)
    database = Database.connect(bare, pool_size=1, name="test")
    try:
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert await read_support(tx) == made
    finally:
        await database.close()


def test_longer_vectors_than_an_index_takes_get_none(servers: Servers, bare: str) -> None:
    setup.install_extensions(servers.as_superuser(bare))
    made = setup.install(bare, setup.MAX_INDEXED_DIMENSIONS + 1)
    assert (made.indexed_dimensions, made.problems) == ((), ())


def test_processes_that_set_up_at_once_wait_for_each_other(servers: Servers, bare: str) -> None:
    outcomes: list[object] = []

    def set_up() -> None:
        try:
            setup.install_extensions(servers.as_superuser(bare))
            outcomes.append(setup.install(bare, DIMENSIONS))
        except Exception as error:
            # Shown by the assertion below; in a thread it would be lost.
            outcomes.append(error)

    threads = [threading.Thread(target=set_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [setup.install(bare, DIMENSIONS)] * 3


def test_an_index_that_was_broken_off_is_made_anew(servers: Servers, bare: str) -> None:
    setup.install(bare)
    if not offers(bare, "btree_gin"):
        pytest.skip("the server has no btree_gin")
    with psycopg.connect(servers.as_superuser(bare), autocommit=True) as connection:
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass(%s)",
            (WORDS_INDEX,),
        )
    assert setup.install(bare).session_words


def test_no_migration_knows_of_these_indexes(servers: Servers, bare: str) -> None:
    setup.install_extensions(servers.as_superuser(bare))
    setup.install(bare, DIMENSIONS)
    assert bool(indexes(bare)) == offers(bare, "btree_gin")
    engine = create_engine(sqlalchemy_url(bare))
    with engine.connect() as connection:
        assert migrations.differences(connection) == []
    engine.dispose()
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute("CREATE INDEX chunk_word_of_nobody ON chunk_word (length)")
    engine = create_engine(sqlalchemy_url(bare))
    with engine.connect() as connection:
        assert len(migrations.differences(connection)) == 1, "it knows of all others"
    engine.dispose()
