"""What is sent to the database, whichever way it goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import psycopg


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every statement that is sent meanwhile, those around a transaction included."""
    sent: list[str] = []
    execute = psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
        sent.append(query.decode() if isinstance(query, bytes) else str(query))
        return await execute(self, query, *arguments, **named)

    with mock.patch.object(psycopg.AsyncCursor, "execute", noted):
        yield sent
