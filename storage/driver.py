"""The driver's connection, mended where a cancellation breaks it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """psycopg's connection, but for statements of many rows that are cancelled as they begin.

    psycopg 3.3.9 runs them in a pipeline of its own. Cancelled right behind its entry, which
    takes an event loop that was busy for long, it fails an assertion in place of the
    cancellation, and the connection stays in its pipeline: whoever gets it next fails too.
    """

    @asynccontextmanager
    async def _pipeline_nolock(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        try:
            async with super()._pipeline_nolock() as pipeline:
                yield pipeline
        except AssertionError as error:
            cancelled = error.__context__
            if not isinstance(cancelled, asyncio.CancelledError):
                raise
            await self.close()
            raise cancelled from None
