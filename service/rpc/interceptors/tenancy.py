"""The tenant of each call. Until tenants can be created there is one, the default tenant.

The tenant comes from authentication, never from a request.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from service.domain.values.tenancy import DEFAULT_TENANT
from service.rpc.interceptors.base import Around, Context

_tenant: ContextVar[UUID] = ContextVar("palimpsest_tenant")


def current_tenant() -> UUID:
    """Returns the tenant of the current call."""
    return _tenant.get()


class Tenancy(Around):
    """Sets the tenant about each call."""

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Sets what `current_tenant` returns."""
        _tenant.set(DEFAULT_TENANT)
        yield
