"""The service that scripts run against, behind proxies that break connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import palimpsest
from tests.support.cutting import Proxy, cutting
from tests.support.harness import Process, Servers, worker


@dataclass
class Service:
    """An API server that is killed and started again, and the ways to it."""

    grpc: Proxy
    http: Proxy
    #: The address past the proxy.
    direct: str
    #: Of the server.
    environment: Mapping[str, str]
    #: What scripts may use of it.
    names: dict[str, str] = field(default_factory=dict)
    _process: Process | None = None

    @property
    def for_drivers(self) -> dict[str, str]:
        """What drivers are started with."""
        return {
            "PALIMPSEST_URL": f"grpc://{self.grpc.address}",
            "PALIMPSEST_HTTP_URL": f"http://{self.http.address}",
        }

    async def start(self) -> None:
        """Starts the server, at the same ports as before."""
        self._process = await asyncio.to_thread(
            Process, "serve", {**self.environment}, "listening on"
        )

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            await asyncio.to_thread(self._process.close)

    async def break_down(self, fault: str, direction: str) -> None:
        """Does what a script says."""
        match fault:
            case "kill_server":
                await self.kill()
            case "start_server":
                await self.start()
            case _:
                for proxy in (self.grpc, self.http):
                    _break(proxy, fault, direction)

    @asynccontextmanager
    async def past_the_proxy(self) -> AsyncIterator[palimpsest.Client]:
        """Yields a client that no fault reaches."""
        async with palimpsest.connect(self.direct, token=self.names.get("token")) as client:
            yield client


def _break(proxy: Proxy, fault: str, direction: str) -> None:
    match fault:
        case "cut":
            proxy.cut()
        case "stall":
            proxy.hold(direction)
        case "refuse":
            proxy.refuse()
        case "heal":
            proxy.release()
        case _:
            raise ValueError(f"no fault: {fault}")


def free_port() -> int:
    """Returns a port that no program listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def serving(servers: Servers) -> AsyncIterator[Service]:
    """Yields a service on a database of its own, without keys and TLS."""
    url = servers.new_database()
    grpc, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    environment = {
        "PALIMPSEST_DATABASE_URL": url,
        "PALIMPSEST_LISTEN": grpc,
        "PALIMPSEST_HTTP_LISTEN": http,
        "PALIMPSEST_DEFAULT_MEMORY": "none",
    }
    async with AsyncExitStack() as stack:
        service = Service(
            grpc=await stack.enter_async_context(cutting(grpc)),
            http=await stack.enter_async_context(cutting(http)),
            direct=grpc,
            environment=environment,
        )
        working = worker(url, **servers.redis_settings())
        await asyncio.to_thread(working.__enter__)
        try:
            await service.start()
            yield service
        finally:
            await service.kill()
            with suppress(RuntimeError):
                await asyncio.to_thread(working.__exit__, None, None, None)
    servers.drop_databases(url)
