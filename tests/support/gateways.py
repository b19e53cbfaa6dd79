"""A gateway that makes its calls in the process of the test."""

import asyncio
from collections.abc import Awaitable, Callable

from service.llm.gateway.call_executor import CallExecutor
from service.llm.gateway.circuits import Circuits
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.prefix_cache.cache import PrefixIndex
from service.llm.providers.prices import Prices
from service.llm.providers.transport import Transport
from service.settings.config import Config
from service.usecases.calls.call_ledger import CallLedger
from storage.calls.prefix_index import NullPrefixIndex
from storage.engine.database import Database

#: Longer than a machine is suspended, which would lose leases and repeat calls.
LEASE_SECONDS = 30.0
#: For tests in which the holder of a lease dies, and the next caller waits for it.
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
    ledger = CallLedger(database, lease_seconds=lease_seconds)
    index = index or NullPrefixIndex()
    prices = Prices(config or Config()).of
    executor = CallExecutor(
        transport,
        ledger,
        index,
        prices=prices,
        tries=tries,
        lease_seconds=lease_seconds,
        sleep=sleep,
    )
    return Gateway(
        ledger,
        Router((), index, prices),
        executor,
        prices=prices,
        lease_seconds=lease_seconds,
        circuits=circuits,
        sleep=sleep,
    )
