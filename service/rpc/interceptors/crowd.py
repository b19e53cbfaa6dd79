"""Holds the number of calls under way within a bound."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from service.config import Limits
from service.domain.reasons import Reason
from service.rpc.interceptors.base import Around, Context
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.waiting import WaitingRoom


class Crowd(Around):
    """Refuses calls of our own services beyond the limits; a full server stays healthy.

    One address and one tenant have a share of the places, so that they cannot take all.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._room = _room(limits.max_calls, "calls")
        self._addresses = _Shares(limits.max_address_calls, "calls of your address")
        self._tenants = _Shares(limits.max_tenant_calls, "calls of your tenant")

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """A place for as long as the call takes. Raises Exhausted when there is none."""
        if not method.startswith("/palimpsest."):
            yield
            return
        # A peer is "ipv4:192.0.2.1:40000"; of a Unix socket it is the same for all.
        address = context.peer().rpartition(":")[0]
        with (
            self._addresses.place(address),
            self._tenants.place(str(current_tenant())),
            self._room.place(),
        ):
            yield


class _Shares:
    """The same number of places for each key."""

    def __init__(self, places: int, who: str) -> None:
        self._places = places
        self._who = who
        self._rooms: dict[str, WaitingRoom] = {}

    @contextmanager
    def place(self, key: str) -> Iterator[None]:
        """Gives a place of the key's share. Raises Exhausted when there is none."""
        room = self._rooms.setdefault(key, _room(self._places, self._who))
        try:
            with room.place():
                yield
        finally:
            if room.is_empty:
                self._rooms.pop(key, None)


def _room(places: int, who: str) -> WaitingRoom:
    return WaitingRoom(places, reason=Reason.TOO_MANY_CALLS, who=who)
