"""Limits how many calls are under way in an API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.domain.values.reasons import Reason
from service.rpc.interceptors.base import Around, Context
from service.rpc.interceptors.tenancy import current_tenant
from service.settings.config import Limits
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter


class ConcurrencyLimit(Around):
    """Refuses calls of our own services beyond the limits; a full server stays healthy.

    One address and one tenant have a share of the slots, so that they cannot take all.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limiter = _limiter(limits.max_calls, "calls")
        self._addresses = _limiter(limits.max_address_calls, "calls of your address")
        self._tenants = _limiter(limits.max_tenant_calls, "calls of your tenant")

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Takes a slot for as long as the call takes. Raises Exhausted when there is none."""
        if not method.startswith("/palimpsest."):
            yield
            return
        # A peer is "ipv4:192.0.2.1:40000"; of a Unix socket it is the same for all.
        address = context.peer().rpartition(":")[0]
        with (
            self._addresses.slot(address),
            self._tenants.slot(str(current_tenant())),
            self._limiter.slot(),
        ):
            yield


def _limiter(slots: int, what: str) -> ConcurrencyLimiter:
    return ConcurrencyLimiter(slots, reason=Reason.TOO_MANY_CALLS, what=what)
