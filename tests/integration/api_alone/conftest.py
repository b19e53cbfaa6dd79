"""An API without a worker: what it serves is written by hand."""

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

import palimpsest
from palimpsest import Tree
from service.domain.tree.nodes import Node
from storage.engine.database import Database
from tests.integration.api_alone.answers_by_hand import ByHand
from tests.integration.api_alone.written_tree import write_tree
from tests.integration.support.forests import SESSION, TREE
from tests.support.harness import Servers, api


@pytest.fixture(scope="module")
def at(servers: Servers) -> Iterator[tuple[str, str]]:
    """Yields a database, and the address of an API on it."""
    url = servers.new_database()
    with api(url, PALIMPSEST_MODELS="a/b,c/*,e/*,offline/*") as (_, address):
        yield url, address


@pytest.fixture(scope="module")
async def client(at: tuple[str, str]) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(at[1]) as client:
        yield client


@pytest.fixture(scope="module")
async def database(at: tuple[str, str]) -> AsyncIterator[Database]:
    database = Database.connect(at[0], pool_size=3, name="test")
    yield database
    await database.close()


@pytest.fixture(scope="module")
async def nodes(client: palimpsest.Client, database: Database) -> Sequence[Node]:
    """Yields a session with a PRISM memory and a tree that no worker extends; the tree's nodes."""
    return await write_tree(client, database)


@pytest.fixture
def tree(client: palimpsest.Client, nodes: Sequence[Node]) -> Tree:
    return client.session(SESSION).tree(TREE)


@pytest.fixture(scope="module")
async def by_hand(at: tuple[str, str], client: palimpsest.Client, database: Database) -> ByHand:
    """Returns the service, with a session `s`."""
    await client.create_session("s")
    return ByHand(database, at[1])
