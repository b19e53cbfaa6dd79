"""What is sent to the database, whichever way it goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import psycopg


class Statement(str):
    """The text of a statement, with its placeholders."""

    #: Their values.
    values: Any
    #: What it is sent on.
    connection: Any


@contextmanager
def statements() -> Iterator[list[Statement]]:
    """Yields every statement that is sent meanwhile, those around a transaction included."""
    sent: list[Statement] = []
    execute = psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, params: Any = None, **named: Any) -> Any:
        statement = Statement(query.decode() if isinstance(query, bytes) else query)
        statement.values, statement.connection = params, self.connection
        sent.append(statement)
        return await execute(self, query, params, **named)

    with mock.patch.object(psycopg.AsyncCursor, "execute", noted):
        yield sent
