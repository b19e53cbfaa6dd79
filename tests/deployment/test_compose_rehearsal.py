"""What deploy/compose says, started without containers: its commands, its variables, its files.

Only places are others: ports and folders of this machine in place of those of containers.
"""

import asyncio
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

import grpc
import httpx
import psycopg
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

import palimpsest
from service.local import binaries
from service.local.postgres import PostgresServer
from tests import ROOT
from tests.deployment.chart import tool
from tests.deployment.compose_file import ALL_FILES, Deployment, program
from tests.deployment.watching import free_port
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Process, eventually
from tests.support.sending import send
from tests.unit.telemetry.test_telemetry import Collector

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
QUESTION = "When is the museum closed?"
#: What each command prints when it has started.
READY = {"serve": "listening on", "work": "working", "executor": "calling"}


@dataclass
class Machine:
    """This machine in place of the containers."""

    deployment: Deployment
    folder: Path
    #: What is in the file, and its substitute here.
    places: dict[str, str] = field(default_factory=dict)

    def here(self, text: str, **more: str) -> str:
        """Returns a text of the files, with the places of this machine."""
        for there, here in {**self.places, **more}.items():
            text = text.replace(there, here)
        return text

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@dataclass(frozen=True)
class Container:
    """One container of a service of ours, as a process."""

    process: Process
    environment: Mapping[str, str]
    machine: Machine
    service: str

    @classmethod
    def start(cls, machine: Machine, service: str, number: int) -> "Container":
        one = machine.deployment.services[service]
        run_dir = machine.folder / f"run-{service}-{number}"
        metrics = str(free_port())
        environment = {
            name: machine.here(
                value,
                **{
                    "/run/palimpsest": str(run_dir),
                    "0.0.0.0:50051": f"127.0.0.1:{free_port()}",
                    "0.0.0.0:50080": f"127.0.0.1:{free_port()}",
                    "0.0.0.0:9464": f"127.0.0.1:{metrics}",
                    "0.0.0.0:9465": f"127.0.0.1:{metrics}",
                },
            )
            for name, value in one.environment.items()
        }
        command = " ".join(machine.here(word) for word in one.command)
        process = Process(command, environment, READY[one.command[0]])
        return cls(process, environment, machine, service)

    def is_healthy(self) -> bool:
        """Returns what the service's healthcheck says."""
        _, _, *words = self.machine.deployment.services[self.service].raw["healthcheck"]["test"]
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **self.environment},
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        return done.returncode == 0


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        topic = '[OBJECTS FOR ADD]\n{"$.topics.museum": {"add": ["closed on Mondays"]}}'
        model.reply = lambda n: "On Mondays." if QUESTION in model.prompts[n - 1] else topic
        yield model


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, int]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collected = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        collected, server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collected, port
    server.stop(0)


@pytest.fixture
def machine(
    folder: Path, tmp_path: Path, model: FakeModel, collector: tuple[Collector, int]
) -> Iterator[Machine]:
    """Yields the database with its roles, Valkey, and all secrets."""
    unwanted = shutil.ignore_patterns("secrets", ".env")
    shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=unwanted)
    files = folder / "deploy" / "compose"
    variables = {
        "PALIMPSEST_MODEL": "openai/fake",
        "PALIMPSEST_EMBEDDING_MODEL": "",
        "PALIMPSEST_MODEL_BASE_URL": model.url,
    }
    loader = Path(tool("composecheck"))
    machine = Machine(Deployment.load(loader, files, ALL_FILES[:2], variables), folder)
    subprocess.run([program("sh"), str(files / "prepare.sh")], check=True)
    (files / "secrets" / "model_api_key").write_text("sk-not-to-be-logged\n")
    (folder / "executor").mkdir(mode=0o700)
    machine.places = {
        "/run/secrets": str(files / "secrets"),
        "/run/executor": str(folder / "executor"),
        "http://collector:4317": f"http://127.0.0.1:{collector[1]}",
    }
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(folder / "postgres"))
        run_sql(machine, postgres)
        valkey_port = free_port()
        stack.enter_context(valkey(machine, valkey_port))
        port = postgres.url.rpartition("@")[2].partition("/")[0]
        for name in ("database_url", "migration_database_url", "redis_url"):
            secret = files / "secrets" / name
            text = secret.read_text().replace("@database:5432", f"@{port}")
            secret.chmod(0o644)
            secret.write_text(text.replace("@valkey:6379", f"@127.0.0.1:{valkey_port}"))
        yield machine


def run_sql(machine: Machine, postgres: PostgresServer) -> None:
    """As the image does with an empty volume; and its settings are ones."""
    script = machine.here(machine.deployment.text("roles.sql"))
    psql = binaries.find_postgres() / "psql"
    done = subprocess.run(
        [str(psql), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", postgres.superuser_url],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = machine.deployment.services["database"].command
    settings = [word.split("=", 1) for word in words if "=" in word]
    assert len(settings) == words.count("-c") > 5
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        for name, value in settings:
            # It refuses names and values that are none.
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        connection.execute("ALTER SYSTEM RESET ALL")


@contextmanager
def valkey(machine: Machine, port: int) -> Iterator[None]:
    """Valkey with the file of the deployment."""
    text = machine.here(machine.deployment.text("valkey.conf"))
    file = machine.write(
        "valkey.conf", text.replace("port 6379", f"port {port}").replace("* -::*", "127.0.0.1")
    )
    server = subprocess.Popen(
        [str(binaries.find_valkey()), str(file)], stdout=subprocess.DEVNULL, cwd=machine.folder
    )
    try:
        yield
    finally:
        server.kill()
        server.wait()


@contextmanager
def proxy(machine: Machine, servers: list[Container]) -> Iterator[tuple[str, str, str]]:
    """Runs HAProxy with the file of the deployment.

    Yields the address of gRPC, the URL over HTTP, and where it says that it is ready.
    """
    calls, http, state = free_port(), free_port(), free_port()
    text = machine.deployment.text("haproxy.cfg")
    for port, variable in ((50051, "PALIMPSEST_LISTEN"), (50080, "PALIMPSEST_HTTP_LISTEN")):
        template = re.search(rf"server-template \S+ \d+ api:{port} (.*) resolvers .*", text)
        assert template is not None
        lines = []
        for number, one in enumerate(servers):
            metrics = one.environment["PALIMPSEST_METRICS_LISTEN"].rpartition(":")[2]
            options = template[1].replace("port 9464", f"port {metrics}")
            lines.append(f"server api-{number} {one.environment[variable]} {options}")
        text = text.replace(template[0], "\n    ".join(lines))
    text = machine.here(text.replace("bind :50051", f"bind 127.0.0.1:{calls}"))
    text = text.replace("bind :50080", f"bind 127.0.0.1:{http}")
    file = machine.write("haproxy.cfg", text.replace("127.0.0.1:8405", f"127.0.0.1:{state}"))
    log = (machine.folder / "haproxy.log").open("w")
    running = subprocess.Popen([program("haproxy"), "-db", "-f", str(file)], stdout=log, stderr=log)
    try:
        yield (
            *(f"127.0.0.1:{calls}", f"https://localhost:{http}"),
            f"http://127.0.0.1:{state}/ready",
        )
    finally:
        running.kill()
        running.wait()
        log.close()


def status(url: str) -> int:
    """Returns the status of a page; 0 when there is no response."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except URLError as error:
        return int(getattr(error, "code", 0))


async def append_and_ask(target: str, texts: list[str], **options: Any) -> tuple[int, str]:
    """Returns how far the memory is behind these texts, and what it answers."""
    async with palimpsest.connect(target, **options) as client:
        session = await client.create_session("s", exist_ok=True)
        memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, exist_ok=True)
        token = await send(session, *texts)
        answer = await memory.ask(QUESTION, after=token, timeout=200)
        state = await memory.get(after=token, timeout=200)
    return state.applied_position, answer.text


async def as_clients(machine: Machine, address: str, key: str, texts: list[str]) -> tuple[int, str]:
    """Does it by TLS with a key, without which nothing is done."""
    port, ca_file = address.rpartition(":")[2], machine.here("/run/secrets/ca.pem")
    target = f"grpcs://localhost:{port}"
    async with palimpsest.connect(target, ca_file=ca_file) as client:
        with pytest.raises(palimpsest.Unauthenticated):
            await client.create_session("s", exist_ok=True)
    return await append_and_ask(target, texts, token=key, ca_file=ca_file)


def recall_over_http(machine: Machine, url: str, key: str) -> tuple[int, str]:
    """Returns the status of a call without a key, and what one with it recalls."""
    context = ssl.create_default_context(cafile=machine.here("/run/secrets/ca.pem"))
    request = {"session": "s", "query": QUESTION, "max_tokens": 800}
    method = f"{url}/palimpsest.v1.SessionService/Recall"
    with httpx.Client(verify=context, timeout=60, trust_env=False) as client:
        refused = client.post(method, json=request)
        found = client.post(method, json=request, headers={"authorization": f"Bearer {key}"})
    return refused.status_code, str(found.raise_for_status().json()["text"])


def migrate(machine: Machine) -> str:
    """Returns what the one-shot service prints."""
    return command(machine, "migrate", *machine.deployment.services["migrate"].command)


def command(machine: Machine, service: str, *words: str) -> str:
    """Returns what a command in a container prints."""
    one = machine.deployment.services[service]
    environment = {name: machine.here(value) for name, value in one.environment.items()}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *words],
        env={**os.environ, **environment, "PALIMPSEST_RUN_DIR": str(machine.folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_file_says_starts_and_goes_on_when_parts_of_it_are_killed(
    machine: Machine, model: FakeModel, collector: tuple[Collector, int]
) -> None:
    said = migrate(machine)
    assert "migrated from nothing" in said
    assert "search by words and by vectors" in said
    with ExitStack() as stack:

        def start(service: str, number: int) -> Container:
            container = Container.start(machine, service, number)
            stack.callback(container.process.close)
            return container

        executor = start("executor", 1)
        workers = [start("worker", number) for number in (1, 2)]
        servers = [start("api", number) for number in (1, 2)]
        for one in (executor, *workers, *servers):
            eventually(f"{one.service} is healthy", one.is_healthy)
        address, over_http, ready = stack.enter_context(proxy(machine, servers))
        eventually("the proxy has a server", lambda: status(ready) == 200)

        scopes = [word for one in ("read", "append", "ask", "edit") for word in ("--scope", one)]
        key = command(machine, "api", "access", "bootstrap", "--tenant", "default", *scopes)

        texts = [f"The museum is closed on Mondays ({number})." for number in range(3)]
        position, answer = asyncio.run(as_clients(machine, address, key, texts))
        assert (position, answer) == (3, "On Mondays.")
        refused, recalled = recall_over_http(machine, over_http, key.strip())
        assert refused == 401
        assert "closed on Mondays" in recalled
        calls = len(model.requests)
        assert calls >= 2

        # One of each: the others have their work.
        servers[0].process.kill()
        workers[0].process.kill()
        position, answer = asyncio.run(as_clients(machine, address, key, texts))
        assert (position, answer) == (6, "On Mondays.")
        assert len(model.requests) > calls
        assert recall_over_http(machine, over_http, key.strip())[0] == 401

        # The executor outlives all of them, and none has one of its own.
        assert executor.is_healthy()
        for one in (workers[1], servers[1]):
            assert list(Path(one.environment["PALIMPSEST_RUN_DIR"]).glob("executor-*")) == []
        # No server is left, and the proxy says so. One that is stopped sends its spans first.
        assert servers[1].process.stop() == 0, servers[1].process.log()
        eventually("the proxy has no server", lambda: status(ready) == 503)

        for one in (workers[1], executor):
            assert one.process.stop() == 0, one.process.log()
    assert any("AppendChunks" in name for name in collector[0].names), collector[0].names
