"""What makes calls, in whatever process."""

from contextlib import AsyncExitStack

from service.config import Config
from service.llm.allowed import AllowedModels, AllowedTransport
from service.llm.caller import Caller
from service.llm.prefix_cache import PrefixIndex
from service.llm.prices import Prices
from service.llm.transport import LitellmTransport
from service.usecases.gauges import observe_prefix_cache
from service.usecases.journal import Journal
from storage.prefix_index import NullPrefixIndex, RedisPrefixIndex
from storage.sessions import DeploymentKeys


def near_caller(
    config: Config,
    transport: LitellmTransport,
    journal: Journal,
    index: PrefixIndex,
    prices: Prices,
) -> Caller:
    """Makes calls in this process."""
    return Caller(
        AllowedTransport(transport, AllowedModels(config)),
        journal,
        index,
        prices=prices.of,
        tries=config.model_tries,
        lease_seconds=config.call_lease_seconds,
    )


def prefix_index(config: Config, keys: DeploymentKeys, stack: AsyncExitStack) -> PrefixIndex:
    """The prefix cache's index, if there is one; `stack` closes it."""
    if config.redis_url is None:
        return NullPrefixIndex()
    redis = RedisPrefixIndex(
        config.redis_url.get_secret_value(),
        cluster=config.redis_cluster,
        secret=keys.token if config.redis_replies else None,
        timeout_seconds=config.redis_timeout_seconds,
    )
    stack.push_async_callback(redis.close)
    observe_prefix_cache(lambda: redis.is_reachable)
    return redis
