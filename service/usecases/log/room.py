"""Checks, in the transaction that adds one, that its tenant may have one more.

After the check whether it exists already: a repeated call adds nothing, and is not refused.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

from storage.engine.database import Transaction

#: Raises Exhausted where the transaction has added more than its tenant may have.
Room = Callable[[Transaction], Awaitable[None]]
#: Returns the check for a tenant; called before the transaction. Raises Exhausted, StorageError.
FindRoom = Callable[[UUID], Awaitable[Room]]


async def unlimited(_: Transaction) -> None:
    """Accepts everything."""


async def find_unlimited(_: UUID) -> Room:
    """Returns the check of tenants without quotas."""
    return unlimited
