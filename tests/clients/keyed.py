"""A server over HTTP that requires keys."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from storage.engine.database import Database
from tests.acceptance.access.serving import serving_both
from tests.support.access import operator_key
from tests.support.harness import worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyed:
    """Where the server is, and a key of its default tenant."""

    url: str
    token: str


@asynccontextmanager
async def serving_keyed(url: str, database: Database) -> AsyncIterator[Keyed]:
    """Yields a server in this process, with a worker beside it."""
    given = {"authentication": "required", "insecure": True, "http_listen": "127.0.0.1:0"}
    async with serving_both(url, **given) as (_, at):
        working = worker(url)
        await asyncio.to_thread(working.__enter__)
        try:
            yield Keyed(url=at, token=await operator_key(database, "default"))
        finally:
            await asyncio.to_thread(working.__exit__, None, None, None)
