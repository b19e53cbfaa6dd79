"""The services that scripts run against, behind proxies that break connections."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import palimpsest
from palimpsest import Scope
from storage.engine.database import Database
from tests.support.access import operator_key
from tests.support.certificates import Authority
from tests.support.cutting import Proxy, cutting
from tests.support.fake_model import FakeModel, fake_model
from tests.support.fake_streams import Streaming
from tests.support.harness import Process, Servers, worker

#: What the scripted model says to a step, and to a question.
STEP = '[OBJECTS FOR ADD]\n{"$.topics.ship": {"add": "It lies in the harbour."}}'
ANSWER = "[ANSWER]\nA ship that lies in the harbour.\n[PATHS]\n$.topics.ship\n"
#: Characters of a part of a streamed reply; the first parts have only its heading.
PART_CHARACTERS = 5
#: Parts that are sent before a reply is held.
PARTS = 4
#: A held reply continues then; it ends what hangs.
HOLD_SECONDS = 60.0


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
    #: Set while the scripted model replies.
    replies: threading.Event = field(default_factory=threading.Event)
    _process: Process | None = None

    @property
    def is_secure(self) -> bool:
        """Whether it is reached by TLS."""
        return "ca_file" in self.names

    @property
    def for_drivers(self) -> dict[str, str]:
        """What drivers are started with."""
        end = "s" if self.is_secure else ""
        return {
            "PALIMPSEST_URL": f"grpc{end}://{self.grpc.address}",
            "PALIMPSEST_HTTP_URL": f"http{end}://{self.http.address}",
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
        if not self.is_secure:
            async with palimpsest.connect(self.direct) as client:
                yield client
            return
        token, ca_file = self.names["token"], self.names["ca_file"]
        target = f"grpcs://{self.direct}"
        async with palimpsest.connect(target, token=token, ca_file=ca_file) as client:
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


def _script(model: FakeModel, replies: threading.Event) -> None:
    """Makes the model say what scripts expect, while `replies` is set."""
    replies.set()

    def reply(number: int) -> str:
        if not model.requests[number - 1].get("stream"):
            replies.wait(HOLD_SECONDS)
        return ANSWER if "[ANSWER]" in model.prompts[number - 1] else STEP

    def before(number: int) -> None:
        if number > PARTS:
            replies.wait(HOLD_SECONDS)

    model.reply = reply
    model.streaming = Streaming(part_characters=PART_CHARACTERS, before=before)


async def _access(service: Service, url: str) -> None:
    """Creates a tenant and its keys."""
    database = Database.connect(url, pool_size=2, name="test")
    operator = await operator_key(database)
    await database.close()
    target, ca_file = f"grpcs://{service.direct}", service.names["ca_file"]
    async with palimpsest.connect(target, token=operator, ca_file=ca_file) as client:
        access = client.access
        for tenant in ("acme", "limited"):
            await access.create_tenant(tenant)
        every: tuple[Scope, ...] = ("read", "append", "ask", "edit")
        made = await access.create_key(every, tenant="acme")
        reading = await access.create_key(every[:1], tenant="acme")
        revoked = await access.create_key(every, tenant="acme")
        await access.revoke_key(revoked.info.id, tenant="acme")
        soon = datetime.now(UTC) + timedelta(seconds=1)
        expired = await access.create_key(every, tenant="acme", expires_at=soon)
        limited = await access.create_key(every, tenant="limited")
        await access.update_quota({"requests_per_second": 1}, tenant="limited")
    tokens = {
        "token": made,
        "reading_token": reading,
        "revoked_token": revoked,
        "expired_token": expired,
        "limited_token": limited,
    }
    service.names.update({name: one.key for name, one in tokens.items()})
    service.names["operator_token"] = operator
    # No key expires when it is made.
    while datetime.now(UTC) <= soon:
        await asyncio.sleep(0.05)


def _by_tls(folder: Path) -> dict[str, str]:
    """Writes certificates; returns the settings of a server that has keys and TLS."""
    authority = Authority()
    certificate, key = authority.issue("localhost").write(folder, "api")
    (folder / "root.pem").write_bytes(authority.root.pem)
    return {
        "PALIMPSEST_AUTHENTICATION": "required",
        "PALIMPSEST_KEY_CACHE_SECONDS": "0.001",
        "PALIMPSEST_TLS_CERTIFICATE_FILE": str(certificate),
        "PALIMPSEST_TLS_KEY_FILE": str(key),
    }


@asynccontextmanager
async def serving(servers: Servers, kind: str) -> AsyncIterator[Service]:
    """Yields a service on a database of its own: clients/conformance/README.md has the kinds."""
    url = servers.new_database()
    grpc, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    environment = {
        "PALIMPSEST_DATABASE_URL": url,
        "PALIMPSEST_LISTEN": grpc,
        "PALIMPSEST_HTTP_LISTEN": http,
        "PALIMPSEST_DEFAULT_MEMORY": "none",
    }
    names, replies = dict[str, str](), threading.Event()
    async with AsyncExitStack() as stack:
        if kind == "keys":
            folder = Path(stack.enter_context(TemporaryDirectory()))
            environment |= _by_tls(folder)
            names["ca_file"] = str(folder / "root.pem")
        if kind == "model":
            model = stack.enter_context(fake_model())
            _script(model, replies)
            environment |= model.settings
        ways = [await stack.enter_async_context(cutting(one)) for one in (grpc, http)]
        service = Service(
            grpc=ways[0],
            http=ways[1],
            direct=grpc,
            environment=environment,
            names=names,
            replies=replies,
        )
        stack.push_async_callback(service.kill)
        working = worker(url, **{**environment, **servers.redis_settings()})
        await asyncio.to_thread(working.__enter__)
        stack.push_async_callback(asyncio.to_thread, _exit(working.__exit__))
        await service.start()
        if kind == "keys":
            await _access(service, url)
        yield service
        replies.set()
    servers.drop_databases(url)


def _exit(leave: Callable[[None, None, None], object]) -> Callable[[], object]:
    return lambda: leave(None, None, None)
