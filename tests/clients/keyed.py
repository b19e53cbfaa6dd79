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
    """Where the server is, over HTTP and by gRPC, and a key of its default tenant."""

    url: str
    address: str
    token: str


@asynccontextmanager
async def serving_keyed(url: str, database: Database) -> AsyncIterator[Keyed]:
    """Yields a server in this process, with a worker beside it."""
    given = {"authentication": "required", "insecure": True, "http_listen": "127.0.0.1:0"}
    async with serving_both(url, **given) as (address, at):
        working = worker(url)
        await asyncio.to_thread(working.__enter__)
        try:
            token = await operator_key(database, "default")
            yield Keyed(url=at, address=address, token=token)
        finally:
            await asyncio.to_thread(working.__exit__, None, None, None)
