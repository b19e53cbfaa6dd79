"""Opens what makes model calls, in any process."""

import asyncio
from contextlib import AsyncExitStack

from service.llm.gateway.allowed import AllowedModels, AllowedTransport
from service.llm.gateway.call_executor import CallExecutor
from service.llm.prefix_cache.cache import PrefixIndex
from service.llm.providers.prices import Prices
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.telemetry.names import Metric
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.operations.gauges import observe_whether
from service.usecases.operations.recorded_exchanges import RecordedExchanges
from storage.calls.prefix_index import NullPrefixIndex, RedisPrefixIndex
from storage.engine.database import Database
from storage.engine.tasks import cancel

#: A call may end so much later than its timeout says.
_SLACK_SECONDS = 60.0


def call_executor(
    config: Config,
    database: Database,
    stack: AsyncExitStack,
    transport: LitellmTransport,
    ledger: CallLedger,
    index: PrefixIndex,
    prices: Prices,
) -> CallExecutor:
    """Returns the executor of calls in this process.

    Until `stack` is closed, exchanges that it recorded are removed when they are erased.
    """
    if config.record is not None:
        seconds = config.model_timeout_seconds + _SLACK_SECONDS
        recorded = RecordedExchanges(database, config.record, call_seconds=seconds)
        stack.push_async_callback(cancel, [asyncio.create_task(recorded.run())])
    return CallExecutor(
        AllowedTransport(transport, AllowedModels(config)),
        ledger,
        index,
        prices=prices.of,
        tries=config.model_tries,
        lease_seconds=config.call_lease_seconds,
    )


def prefix_index(config: Config, stack: AsyncExitStack) -> PrefixIndex:
    """Opens the index of the prefix cache, if there is one; `stack` closes it."""
    if config.redis_url is None:
        return NullPrefixIndex()
    redis = RedisPrefixIndex(
        config.redis_url.get_secret_value(),
        cluster=config.redis_cluster,
        timeout_seconds=config.redis_timeout_seconds,
    )
    stack.push_async_callback(redis.close)
    said = "Whether Redis answered when it was last asked"
    observe_whether(Metric.PREFIX_CACHE_REACHABLE, said, lambda: redis.is_reachable)
    return redis
