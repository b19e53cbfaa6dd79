"""The service that the guides begin with."""

from collections.abc import Iterator

import pytest

from tests.support.harness import Servers, api, worker


@pytest.fixture
def address(servers: Servers) -> Iterator[str]:
    """Yields a server with nothing in it, as a guide finds it."""
    url = servers.new_database()
    with api(url) as (_, address), worker(url):
        yield address
