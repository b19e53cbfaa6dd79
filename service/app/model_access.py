"""Gives access to models to code outside a worker, such as an evaluation."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from service.app.foundation import database_and_keys, measured
from service.app.gateways import open_gateway
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import Facts, ModelFacts
from service.llm.providers.prices import Prices
from service.settings.config import Config
from storage.engine.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAccess:
    """Gives access to models to code outside a worker."""

    database: Database
    gateway: Gateway
    facts_of: Callable[[str], ModelFacts]
    #: Derives the marks about texts from outside.
    marker_key: bytes


@asynccontextmanager
async def open_model_access(config: Config) -> AsyncIterator[ModelAccess]:
    """Opens access to models; calls are kept in the same ledger. Raises CannotStart."""
    async with AsyncExitStack() as stack:
        stack.enter_context(measured(config, "eval"))
        database, keys = await stack.enter_async_context(database_and_keys(config, "eval"))
        gateway = await open_gateway(config, database, keys, stack, Prices(config))
        yield ModelAccess(
            database=database,
            gateway=gateway,
            facts_of=Facts(config).of,
            marker_key=keys.marker,
        )
