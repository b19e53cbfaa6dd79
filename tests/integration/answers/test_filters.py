"""Questions with a filter cite only what it allows, and readers of the log read only that."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

import palimpsest

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
HARBOUR = "The harbour museum is closed on Mondays."
RAILWAY = "The railway museum is closed on Tuesdays."


@pytest.fixture
async def session(client: palimpsest.Client) -> AsyncIterator[palimpsest.Session]:
    """A session with two threads."""
    made = await client.create_session(f"filter-{datetime.now(tz=UTC).timestamp()}")
    await _append(made, HARBOUR, "harbour")
    await _append(made, RAILWAY, "railway")
    yield made


async def _append(session: palimpsest.Session, text: str, thread: str) -> None:
    async with session.producer(thread) as producer:
        await producer.append(text)
