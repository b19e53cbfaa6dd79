"""Turns a tenant's names of sessions and memories into keys."""

from functools import lru_cache
from uuid import UUID, uuid5

#: Keys that a process keeps: the same names come again and again.
KEPT_KEYS = 10_000

#: The tenant of servers that require no authentication; the first migration adds it.
DEFAULT_TENANT = UUID("9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0001")
#: The tenant whose administrators manage tenants; a migration adds it.
SYSTEM_TENANT = UUID("9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0002")


@lru_cache(maxsize=KEPT_KEYS)
def session_key(tenant_id: UUID, session: str) -> UUID:
    """Returns the session's key: uuid5 of tenant and name, so names need no look-up."""
    return uuid5(tenant_id, session)


@lru_cache(maxsize=KEPT_KEYS)
def memory_id(key: UUID, memory: str) -> UUID:
    """Returns the memory's id within the session of `key`."""
    return uuid5(key, memory)
