"""Holds the number of calls under way within a bound."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.domain.errors import Exhausted
from service.domain.reasons import Reason
from service.rpc.interceptors.base import Around, Context

#: When a caller that met a full server may try again.
BUSY_RETRY_SECONDS = 1.0


class Crowd(Around):
    """Refuses calls of our own services beyond `places`; a full server stays healthy."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self._places = places
        self._taken = 0

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """A place for as long as the call takes. Raises Exhausted when there is none."""
        if not method.startswith("/palimpsest."):
            yield
            return
        if self._taken >= self._places:
            raise Exhausted(
                Reason.TOO_MANY_CALLS,
                f"this server has {self._taken} calls under way already",
                {"limit": self._places},
                retry_seconds=BUSY_RETRY_SECONDS,
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
