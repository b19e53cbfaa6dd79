"""Enforces the quotas of the tenant of each call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.domain.access.quotas import QuotaName
from service.rpc.interceptors.base import Around, Context
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.access.call_slots import CallSlots
from service.usecases.access.quotas import QuotaGuard

_ASKS = frozenset({"Ask", "AskMany", "ResumeAnswer"})
_STREAMS = frozenset(
    {
        *("AppendChunks", "ExportSession", "ExportTrajectories", "ImportSession"),
        *("WaitOperation", "WatchMemory"),
    }
)
#: Refused calls about quotas could not be raised by the calls that raise them.
_FREE = frozenset({"GetQuota", "UpdateQuota"})


class QuotaLimit(Around):
    """Refuses calls that exceed a rate, or are too many at once, before they do anything.

    What is stored is limited where it is added: a repeated call adds nothing.
    """

    def __init__(self, guard: QuotaGuard, slots: CallSlots) -> None:
        super().__init__()
        self._guard = guard
        self._slots = slots

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Counts the call and the chunks that it appends. Raises Exhausted."""
        name = method.rpartition("/")[2]
        if not method.startswith("/palimpsest.") or name in _FREE:
            yield
            return
        tenant_id = current_tenant()
        quota = await self._guard.of(tenant_id)
        if not quota.is_limited:
            yield
            return
        amounts = {QuotaName.REQUESTS_PER_SECOND: 1}
        if name == "Append":
            amounts |= amounts_of(request.chunks)
        await self._guard.admit(tenant_id, amounts)
        if name not in _ASKS | _STREAMS:
            yield
            return
        kind = QuotaName.CONCURRENT_ASKS if name in _ASKS else QuotaName.CONCURRENT_STREAMS
        async with self._slots.slot(tenant_id, kind, quota.limit(kind)):
            yield


def amounts_of(chunks: Any) -> dict[QuotaName, int]:
    """Returns what chunks of a request count for."""
    return {
        QuotaName.CHUNKS_PER_SECOND: len(chunks),
        QuotaName.BYTES_PER_SECOND: sum(chunk.ByteSize() for chunk in chunks),
    }
