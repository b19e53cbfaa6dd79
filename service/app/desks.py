"""Model calls that are no worker's."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from service.app.foundation import database_and_keys, measured
from service.app.gateways import open_gateway
from service.config import Config
from service.llm.facts import Facts, ModelFacts
from service.llm.gateway import Gateway
from service.llm.prices import Prices
from storage.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """What it takes to ask models outside of any memory."""

    database: Database
    gateway: Gateway
    facts_of: Callable[[str], ModelFacts]
    #: Derives the marks about texts from outside.
    marker_key: bytes


@asynccontextmanager
async def asking(config: Config) -> AsyncIterator[Desk]:
    """Model calls that are no worker's, kept in the same ledger. Raises CannotStart."""
    async with AsyncExitStack() as stack:
        stack.enter_context(measured(config, "eval"))
        database, keys = await stack.enter_async_context(database_and_keys(config, "eval"))
        gateway = await open_gateway(config, database, keys, stack, Prices(config))
        yield Desk(
            database=database,
            gateway=gateway,
            facts_of=Facts(config).of,
            marker_key=keys.marker,
        )
