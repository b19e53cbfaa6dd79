"""Opens access to models."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from service.app.call_executors import call_executor, prefix_index
from service.app.foundation import CannotStart, database_and_keys, measured
from service.llm.embeddings.embedding import CannotEmbed, Embedder, open_embedder
from service.llm.executor.client import ExecutorRouter, RemoteExecutor
from service.llm.executor.spawning import Spawned, near_model
from service.llm.gateway.bulkhead import Bulkhead
from service.llm.gateway.circuits import Circuits
from service.llm.gateway.gateway import Gateway, MakesCalls
from service.llm.gateway.routing import Router
from service.llm.providers.facts import Facts, ModelFacts
from service.llm.providers.prices import Prices
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.memories.recovery import StoredConditions
from storage.engine.database import Database

#: How long a process that stops waits for its own executor, which as a rule has nothing left
#: to do by then.
EXECUTOR_SECONDS = 2.0


async def open_gateway(
    config: Config,
    database: Database,
    stack: AsyncExitStack,
    prices: Prices,
    *,
    remote: RemoteExecutor | None = None,
    when_asked: bool = False,
    bulkhead: Bulkhead | None = None,
    circuits: Circuits | None = None,
) -> Gateway:
    """Opens the gateway to every model; `stack` closes it.

    Without a `remote` executor all calls are made in this process: they end when it is killed.
    What calls need is loaded at once, or `when_asked` for the first time.
    """
    index = prefix_index(config, stack)
    ledger = CallLedger(database, lease_seconds=config.call_lease_seconds)
    transport = LitellmTransport(config)
    local = call_executor(config, database, stack, transport, ledger, index, prices)
    stack.push_async_callback(local.finish)
    if not when_asked and remote is None and not near_model(config.model):
        await transport.warm()
    maker: MakesCalls = local
    if remote is not None:
        if not when_asked and not near_model(config.model):
            await remote.start()
        maker = ExecutorRouter(local, remote)
    circuits = circuits or open_circuits(config, database)
    return Gateway(
        ledger,
        Router(config.deployments, index, prices.of, probe_at=circuits.probe_at),
        maker,
        prices=prices.of,
        lease_seconds=config.call_lease_seconds,
        settings=transport.requests,
        bulkhead=bulkhead,
        circuits=circuits,
    )


def open_circuits(config: Config, database: Database) -> Circuits:
    """Returns what is known of deployments that do not reply."""
    return Circuits(StoredConditions(database), probe_seconds=config.model_probe_seconds)


def remote_executor(
    config: Config,
    stack: AsyncExitStack,
    spawned: Spawned | None = None,
    *,
    metrics_listen: str | None = None,
) -> RemoteExecutor:
    """Returns this process's executor, or the one that it shares; `stack` closes it.

    `metrics_listen`: where one of its own serves metrics, if it does.
    """
    # Tasks that waited for calls have had the time to stop already.
    seconds = min(config.stop_seconds, EXECUTOR_SECONDS)
    remote = RemoteExecutor(
        config.caller_socket, stop_seconds=seconds, spawned=spawned, metrics_listen=metrics_listen
    )
    stack.push_async_callback(remote.close)
    return remote


def embedder_of(config: Config, database: Database) -> Embedder | None:
    """Opens what makes vectors; returns None if none are configured."""
    try:
        return open_embedder(config, CallLedger(database, lease_seconds=config.call_lease_seconds))
    except CannotEmbed as error:
        raise CannotStart(str(error)) from error


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
        gateway = await open_gateway(config, database, stack, Prices(config))
        yield ModelAccess(
            database=database,
            gateway=gateway,
            facts_of=Facts(config).of,
            marker_key=keys.marker,
        )
