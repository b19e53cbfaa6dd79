"""Retries transactions that deadlocked with others."""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from storage.engine.database import Database, Transaction
from storage.engine.errors import Busy

T = TypeVar("T")

#: How often one is tried.
TRIES = 3


async def tried_again(
    database: Database, tenant_id: UUID, work: Callable[[Transaction], Awaitable[T]], *, name: str
) -> T:
    """Runs `work` in a transaction of its own, up to TRIES times while it is Busy."""
    for number in range(1, TRIES + 1):
        try:
            async with database.transaction(tenant_id, name=name) as tx:
                return await work(tx)
        except Busy:
            if number == TRIES:
                raise
    raise AssertionError("the last try returns or raises")
