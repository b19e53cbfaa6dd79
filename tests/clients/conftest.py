"""Fixtures: one service for each client."""

from collections.abc import AsyncIterator

import pytest

from tests.clients.service import Service, serving
from tests.support.harness import Servers


@pytest.fixture(scope="session")
async def open_service(servers: Servers) -> AsyncIterator[Service]:
    """Yields a service that scripts with sessions of their own share."""
    async with serving(servers) as service:
        yield service
