"""Limits how many calls of a tenant run at once over all API servers.

Each server reports to Redis how many it has, and renews that while they run: the calls of a server
that was killed are forgotten LEASE_SECONDS later. While Redis is away a server counts its own calls
only: then a tenant has at most its limit on each server.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from service.domain.access.quotas import QuotaName, exceeded
from storage.access.shared_slots import SharedSlots

#: For how long the other servers count the calls of one that reports no more.
LEASE_SECONDS = 15.0
#: How often a server reports the calls that run. Two reports may be lost.
RENEW_SECONDS = 5.0

_Key = tuple[UUID, QuotaName]


@dataclass(slots=True)
class _Calls:
    """The calls of one tenant and quota on this server."""

    running: int = 0
    #: What needs the entry: calls that run or wait to, and a report.
    users: int = 0
    #: Whether other servers count them.
    is_shared: bool = False
    #: The task that reports their count after calls ended.
    report: asyncio.Task[None] | None = None
    #: Reports go one by one, so that the newest count arrives last.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CallSlots:
    """The calls of all tenants that run at once, in one API server."""

    def __init__(self, shared: SharedSlots) -> None:
        self._shared = shared
        self._calls: dict[_Key, _Calls] = {}

    @asynccontextmanager
    async def slot(self, tenant_id: UUID, name: QuotaName, limit: int) -> AsyncIterator[None]:
        """Takes a slot of a tenant for one call; 0: any number. Raises Exhausted if all are taken.

        What runs already stays where the limit is lowered.
        """
        key = (tenant_id, name)
        calls = self._calls.setdefault(key, _Calls())
        calls.users += 1
        try:
            await self._admit(key, calls, limit)
            try:
                yield
            finally:
                self._end(key, calls)
        finally:
            self._leave(key, calls)

    async def run(self) -> None:
        """Renews the counts as long as the server runs."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Reports all calls once more."""
        for key, calls in list(self._calls.items()):
            async with calls.lock:
                # Without calls it may be gone, and another entry has its key.
                if calls.is_shared and calls.running:
                    await self._shared.set(*key, calls.running, limit=0)

    async def _admit(self, key: _Key, calls: _Calls, limit: int) -> None:
        if not limit:
            calls.running += 1
            return
        async with calls.lock:
            if calls.running >= limit:
                raise exceeded(key[1], limit)
            calls.running += 1
            calls.is_shared, is_admitted = True, False
            try:
                is_admitted = await self._shared.set(*key, calls.running, limit=limit) is not False
            finally:
                if not is_admitted:
                    self._end(key, calls)
            if not is_admitted:
                raise exceeded(key[1], limit)

    def _end(self, key: _Key, calls: _Calls) -> None:
        calls.running -= 1
        if calls.is_shared and calls.report is None:
            calls.users += 1
            calls.report = asyncio.create_task(self._report(key, calls))

    async def _report(self, key: _Key, calls: _Calls) -> None:
        try:
            async with calls.lock:
                # Calls that end from now on are in the next one.
                calls.report = None
                await self._shared.set(*key, calls.running, limit=0)
        finally:
            self._leave(key, calls)

    def _leave(self, key: _Key, calls: _Calls) -> None:
        calls.users -= 1
        if not calls.users:
            del self._calls[key]
