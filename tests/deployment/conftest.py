"""What the tests of deployments share."""

from collections.abc import AsyncIterator

import pytest

from tests.deployment.watching import Watched, watched


@pytest.fixture(scope="session")
async def deployment() -> AsyncIterator[Watched]:
    """Yields one deployment with Prometheus for all of them; a test leaves it as it was."""
    async with watched() as found:
        yield found
