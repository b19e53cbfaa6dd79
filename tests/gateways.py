"""A gateway that makes its calls in the process of the test."""

import asyncio
from collections.abc import Awaitable, Callable

from service.config import Config
from service.llm.caller import Caller
from service.llm.circuits import Circuits
from service.llm.gateway import Gateway
from service.llm.prefix_cache import PrefixIndex
from service.llm.prices import Prices
from service.llm.routing import Router
from service.llm.transport import Transport
from service.usecases.journal import Journal
from storage.database import Database
from storage.prefix_index import NullPrefixIndex

#: Longer than a machine stands still: who loses a lease by that makes a call a second time.
LEASE_SECONDS = 30.0
#: For tests in which what holds a lease dies, and whoever comes next waits for it.
SHORT_LEASE_SECONDS = 0.3


def gateway(
    transport: Transport,
    database: Database,
    *,
    tries: int = 1,
    index: PrefixIndex | None = None,
    lease_seconds: float = LEASE_SECONDS,
    config: Config | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    circuits: Circuits | None = None,
) -> Gateway:
    """Calls through `transport`, kept in `database`."""
    journal = Journal(database, lease_seconds=lease_seconds)
    index = index or NullPrefixIndex()
    prices = Prices(config or Config()).of
    caller = Caller(
        transport,
        journal,
        index,
        prices=prices,
        tries=tries,
        lease_seconds=lease_seconds,
        sleep=sleep,
    )
    return Gateway(
        journal,
        Router((), index, prices),
        caller,
        prices=prices,
        lease_seconds=lease_seconds,
        circuits=circuits,
        sleep=sleep,
    )
