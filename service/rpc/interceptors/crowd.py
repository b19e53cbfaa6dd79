"""Holds the number of calls under way within a bound."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.domain.reasons import Reason
from service.rpc.interceptors.base import Around, Context
from service.usecases.waiting import WaitingRoom


class Crowd(Around):
    """Refuses calls of our own services beyond `places`; a full server stays healthy."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self._room = WaitingRoom(places, reason=Reason.TOO_MANY_CALLS, who="calls")

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """A place for as long as the call takes. Raises Exhausted when there is none."""
        if not method.startswith("/palimpsest."):
            yield
            return
        with self._room.place():
            yield
