"""The ways to models."""

from contextlib import AsyncExitStack

from service.app.callers import near_caller, prefix_index
from service.app.foundation import CannotStart
from service.caller.client import NearOrFar, RemoteCaller
from service.caller.spawning import Spawned, near_model
from service.config import Config
from service.llm.circuits import Circuits
from service.llm.embedders import open_embedder
from service.llm.embedding import CannotEmbed, Embedder
from service.llm.gateway import Gateway, MakesCalls
from service.llm.patience import Patience
from service.llm.prices import Prices
from service.llm.routing import Router
from service.llm.transport import LitellmTransport
from service.usecases.journal import Journal
from service.usecases.recovery import StoredConditions
from storage.database import Database
from storage.sessions import DeploymentKeys

#: How long a process that stops waits for its own caller, which as a rule has nothing left
#: to do by then.
CALLER_SECONDS = 2.0


async def open_gateway(
    config: Config,
    database: Database,
    keys: DeploymentKeys,
    stack: AsyncExitStack,
    prices: Prices,
    *,
    far: RemoteCaller | None = None,
    when_asked: bool = False,
    patience: Patience | None = None,
    circuits: Circuits | None = None,
) -> Gateway:
    """The way to every model; `stack` ends it.

    Without a `far` caller all calls are made in this process: they end when it is killed.
    What it takes to ask is there from the beginning, or `when_asked` for the first time.
    """
    index = prefix_index(config, keys, stack)
    journal = Journal(database, lease_seconds=config.call_lease_seconds)
    transport = LitellmTransport(config)
    near = near_caller(config, transport, journal, index, prices)
    stack.push_async_callback(near.finish)
    if not when_asked and far is None and not near_model(config.model):
        await transport.warm()
    maker: MakesCalls = near
    if far is not None:
        if not when_asked and not near_model(config.model):
            await far.start()
        maker = NearOrFar(near, far)
    circuits = circuits or open_circuits(config, database)
    return Gateway(
        journal,
        Router(config.deployments, index, prices.of, probe_at=circuits.probe_at),
        maker,
        prices=prices.of,
        lease_seconds=config.call_lease_seconds,
        settings=transport,
        patience=patience,
        circuits=circuits,
    )


def open_circuits(config: Config, database: Database) -> Circuits:
    """What is known of the places that models are at, and do not reply."""
    return Circuits(StoredConditions(database), probe_seconds=config.model_probe_seconds)


def far_caller(
    config: Config,
    stack: AsyncExitStack,
    spawned: Spawned | None = None,
    *,
    metrics_listen: str | None = None,
) -> RemoteCaller:
    """The caller's process of this one, or the one it shares; `stack` leaves it.

    `metrics_listen`: where one of its own serves metrics, if it does.
    """
    # Who waited for calls has had the time to stop already.
    seconds = min(config.stop_seconds, CALLER_SECONDS)
    far = RemoteCaller(
        config.caller_socket, stop_seconds=seconds, spawned=spawned, metrics_listen=metrics_listen
    )
    stack.push_async_callback(far.close)
    return far


def embedder_of(config: Config, database: Database) -> Embedder | None:
    """What makes vectors; None where none are configured."""
    try:
        return open_embedder(config, Journal(database, lease_seconds=config.call_lease_seconds))
    except CannotEmbed as error:
        raise CannotStart(str(error)) from error
