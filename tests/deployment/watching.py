"""A deployment with Prometheus beside it, and everything in it that can go wrong."""

import asyncio
import json
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import psycopg
import yaml  # type: ignore[import-untyped, unused-ignore]
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

import palimpsest
from palimpsest import Edit, PalimpsestError
from tests.deployment.provider import FACT, SILENT, Provider
from tests.deployment.watched import ALERTS
from tests.support.fake_model import served
from tests.support.harness import EVENTUALLY_SECONDS, Process, Servers
from tests.unit.telemetry.test_telemetry import Collector
from verification.attacks.outages import OUTAGES, SCHEMA

NEEDED = "Prometheus is not installed: run `make setup-deploy`"
#: Longer than all tests take: what happened before a process was killed has rates as well.
WINDOW = "1h"
PRICES = {"input_usd_per_million": 2.0, "read": 0.25, "output": 4, "family": "keyed"}
SETTINGS = {
    "PALIMPSEST_MODELS": "openai/*",
    "PALIMPSEST_MODEL_PRICES": json.dumps({"openai/*": PRICES}),
    "PALIMPSEST_MODEL_STRUCTURED_OUTPUT": "true",
    "PALIMPSEST_MODEL_PROBE_SECONDS": "1",
    "PALIMPSEST_STEP_BACKOFF_SECONDS": "0.2",
    "PALIMPSEST_MESSAGE_LINGER_SECONDS": "0",
    "PALIMPSEST_SILENT_SECONDS": "2",
    "PALIMPSEST_SILENT_CONCURRENCY": "1",
    "PALIMPSEST_EMBEDDING_MODEL": "openai/words",
    "PALIMPSEST_EMBEDDING_DIMENSIONS": "64",
    "OTEL_EXPORTER_OTLP_INSECURE": "true",
}


async def eventually(
    what: str, look: Callable[[], Awaitable[bool]], seconds: float = EVENTUALLY_SECONDS
) -> None:
    """Waits until `look` finds it; fails with `what` when it does not come."""
    until = time.monotonic() + seconds
    while not await look():
        assert time.monotonic() < until, f"did not happen within {seconds} s: {what}"
        await asyncio.sleep(0.25)


def free_port() -> int:
    """Yields a port at which no process listens, and that Linux assigns to none."""
    while True:
        port = 16_384 + secrets.randbelow(16_384)
        with socket.socket() as held, suppress(OSError):
            held.bind(("127.0.0.1", port))
            return port


def shortened(rules: str) -> str:
    """Rules in which each minute is a second, and each hour a minute."""
    seconds = re.compile(r"(?<=for: )(\d+)m|(?<=\[)(\d+)([mh])(?=\])|(?<=offset )(\d+)m")

    def shorter(found: re.Match[str]) -> str:
        many = next(one for one in found.group(1, 2, 4) if one is not None)
        if found.group(3) == "h":
            return f"{many}m"
        # Rates want several scrapes, of which there is one a second.
        return f"{many}s" if found.group(1) else f"{max(int(many), 15)}s"

    text = seconds.sub(shorter, rules)
    text, many = re.subn(r'(_seconds\{statistic="\w+"\}\) >) 300\b', r"\1 5", text)
    assert many == 2, "both thresholds that are times"
    return text


@contextmanager
def _collector() -> Iterator[str]:
    """Takes traces, without which there are no exemplars; its address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        Collector(), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(0)


class Prometheus:
    """Debian's, which scrapes each second."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        program = shutil.which("prometheus")
        assert program, NEEDED
        self.url = f"http://127.0.0.1:{free_port()}"
        (folder / "alerts.yml").write_text(shortened(ALERTS.read_text()))
        jobs = [
            {
                "job_name": f"palimpsest-{name}",
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
            for name, port in ports.items()
        ]
        settings = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": ["alerts.yml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._log = (folder / "prometheus.log").open("w")
        self._popen = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--enable-feature=exemplar-storage",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        """Ends it."""
        self._popen.kill()
        self._popen.wait()
        self._log.close()

    def _get(self, path: str, **values: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(values)}", timeout=30
        ) as response:
            said = json.load(response)
        assert said["status"] == "success", said
        return said["data"]

    async def get(self, path: str, **values: str) -> Any:
        """Returns what its HTTP API answers."""
        return await asyncio.to_thread(self._get, path, **values)

    async def ask(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Returns the labels and values of a query, now."""
        found = (await self.get("query", query=expr))["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    async def is_ready(self) -> bool:
        """Returns whether it answers."""
        with suppress(urllib.error.URLError, ConnectionError):
            await self.get("query", query="vector(1)")
            return True
        return False

    async def has(self, expr: str) -> bool:
        """Returns whether a query finds anything above 0."""
        return any(value > 0 for _, value in await self.ask(expr))

    async def until(self, expr: str) -> None:
        """Waits until a query finds anything above 0."""
        await eventually(expr, lambda: self.has(expr))

    async def firing(self) -> set[str]:
        """Returns the alerts that fire now."""
        found = (await self.get("alerts"))["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    async def until_firing(self, *alerts: str) -> None:
        """Waits until all of them fire; each was pending before."""

        async def all_fire() -> bool:
            return set(alerts) <= await self.firing()

        await eventually(f"{alerts} fire", all_fire)
        for alert in alerts:
            pending = f'ALERTS{{alertname="{alert}",alertstate="pending"}}'
            assert await self.has(f"count_over_time({pending}[{WINDOW}])"), alert

    async def until_resolved(self, *alerts: str) -> None:
        """Waits until none of them fires."""

        async def none_fires() -> bool:
            return not set(alerts) & await self.firing()

        try:
            await eventually("they are resolved", none_fires)
        except AssertionError as error:
            raise AssertionError(f"{set(alerts) & await self.firing()} fire") from error


class Watched:
    """PostgreSQL, Valkey, an API server, a worker, its executor and Prometheus."""

    def __init__(self, servers: Servers, provider: Provider, folder: Path) -> None:
        self.servers = servers
        self.provider = provider
        self.database = servers.new_database()
        self.ports = {name: free_port() for name in ("api", "worker", "executor")}
        self.address = f"127.0.0.1:{free_port()}"
        self._socket = folder / "executor.sock"
        self._settings: dict[str, str] = {}
        self.processes: dict[str, Process] = {}
        self.prometheus = Prometheus(folder, self.ports)

    def configure(self, endpoint: str, traces: str) -> None:
        """Says where models are, and where traces go."""
        self.provider.url = f"{endpoint}/v1"
        self._settings = {
            **SETTINGS,
            **self.provider.settings,
            **self.servers.redis_settings(),
            "PALIMPSEST_DATABASE_URL": self.database,
            "PALIMPSEST_EMBEDDING_BASE_URL": self.provider.url,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": traces,
            "PALIMPSEST_CALLER_SOCKET": str(self._socket),
            "PALIMPSEST_LISTEN": self.address,
        }

    def start(self, name: str) -> None:
        """Starts a process, and waits until it is ready."""
        command, ready = {
            "api": ("serve", "listening on"),
            "worker": ("work", "working"),
            "executor": (f"executor --socket {self._socket}", "calling"),
        }[name]
        listen = {"PALIMPSEST_METRICS_LISTEN": f"127.0.0.1:{self.ports[name]}"}
        self.processes[name] = Process(command, {**self._settings, **listen}, ready)

    def kill(self, name: str) -> None:
        """Ends a process at once."""
        self.processes.pop(name).close()

    def connect(self) -> palimpsest.Client:
        """Returns a client of the API."""
        return palimpsest.connect(self.address)

    def execute(self, statement: str, *values: str) -> None:
        """Changes the database behind the service's back."""
        url = self.servers.as_superuser(self.database)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode(), values)

    def close(self) -> None:
        """Ends everything."""
        for process in self.processes.values():
            process.close()
        self.prometheus.close()


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    """Yields a deployment in which everything has happened that dashboards show."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-test-")))
        servers = stack.enter_context(Servers.started())
        provider = Provider()
        found = Watched(servers, provider, folder)
        stack.callback(found.close)
        traces = stack.enter_context(_collector())
        found.configure(stack.enter_context(served(provider)), traces)
        await asyncio.gather(*(asyncio.to_thread(found.start, name) for name in found.ports))
        await eventually("Prometheus answers", found.prometheus.is_ready)
        await found.prometheus.until('sum(up{job=~"palimpsest-.+"}) == 3')
        await _everything(found)
        yield found


async def _everything(found: Watched) -> None:
    """Makes what dashboards show happen: good days, bad days and worse ones."""
    provider, prometheus = found.provider, found.prometheus
    provider.reply = lambda n: f'[OBJECTS FOR ADD]\n{{"$.topics.t{n}": {{"add": ["{FACT}"]}}}}'
    async with found.connect() as client:
        await asyncio.gather(
            _good_days(found, client),
            _refusals(found, client),
            _failures(found, client),
            _stall(found, client),
            _budget(found, client),
            _edited_meanwhile(found, client),
            _silence(found, client),
            _words(found, client),
        )
        # Alone: now no call gets a reply.
        provider.outage = OUTAGES["wrong key"]
        sessions = [client.session(one) for one in ("good", "refusals", "fails", "edited")]
        await asyncio.gather(*(one.append("In an outage.") for one in sessions))
        await prometheus.until_firing("PalimpsestModelCircuitOpen")
        waiting = [one.memory("m") for one in sessions]
        provider.outage = None
        for memory in waiting:
            await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
        await prometheus.until("sum(palimpsest_recovery_woken_total)")
        await _death_of_a_worker(found, client)


async def _made(
    client: palimpsest.Client, name: str, model: str = ""
) -> tuple[palimpsest.Session, palimpsest.Memory]:
    session = await client.create_session(name)
    memory = await session.create_memory("m", schema_source=SCHEMA, model=model)
    return session, memory


async def _good_days(found: Watched, client: palimpsest.Client) -> None:
    session, memory = await _made(client, "good")
    for number in range(6):
        # What was there is gone for a while: predictions of it do not hold.
        found.provider.forgets = number == 3
        await session.append(f"On day {number} nothing happened.")
        await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    found.provider.forgets = False
    questions = [f"What happened on day {number}?" for number in range(4)]
    await asyncio.gather(*(memory.ask(one, timeout=EVENTUALLY_SECONDS) for one in questions))


async def _refusals(found: Watched, client: palimpsest.Client) -> None:
    """Provokes refusals of the service and of the database."""
    session, _ = await _made(client, "refusals")
    await session.append("One.")
    for wrong in (
        lambda: client.session("nowhere").info(),
        lambda: session.append("Two.", expected_head=99),
    ):
        with suppress(PalimpsestError):
            await wrong()
            raise AssertionError("it was taken")
    # The first refusal of a process of this age is reported.
    await found.prometheus.until('min(up{job="palimpsest-api"} offset 16s)')
    found.execute("ALTER TABLE chunk ADD CONSTRAINT made_up CHECK (text <> 'forbidden') NOT VALID")
    with suppress(PalimpsestError):
        await session.append("forbidden", timeout=5)
        raise AssertionError("it was taken")
    found.execute("ALTER TABLE chunk DROP CONSTRAINT made_up")


async def _failures(found: Watched, client: palimpsest.Client) -> None:
    """A model that fails at one text, and one that gives no vectors, for a while."""
    found.provider.fails.add("[fails]")
    found.provider.blind = True
    session, memory = await _made(client, "fails")
    await session.append("This [fails].")
    await found.prometheus.until("sum(palimpsest_index_failures_total)")
    await found.prometheus.until("sum(palimpsest_steps_waited_total)")
    found.provider.blind = False
    found.provider.fails.clear()
    await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    await found.prometheus.until("sum(palimpsest_index_vectors_total)")


async def _stall(found: Watched, client: palimpsest.Client) -> None:
    """A text that the model refuses."""
    found.provider.refuses.add("[no]")
    session, memory = await _made(client, "refused")
    await session.append("This gets a [no].")
    await found.prometheus.until("sum(palimpsest_steps_failed_total)")

    async def gave_up() -> bool:
        return "refused" in {one.session async for one in client.memories(status="stalled")}

    await eventually("it gave up", gave_up)
    found.provider.refuses.discard("[no]")
    await memory.retry()
    await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)


async def _budget(found: Watched, client: palimpsest.Client) -> None:
    session, memory = await _made(client, "budget")
    await session.set_budget("day", limit_tokens=1)
    await session.append("Too much.")
    await found.prometheus.until_firing("PalimpsestMemoriesHeld")
    await session.delete_budget("day")
    await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)


async def _edited_meanwhile(found: Watched, client: palimpsest.Client) -> None:
    provider = found.provider
    provider.holds.add("[waits]")
    session, memory = await _made(client, "edited")
    await session.append("This [waits].")

    async def is_asked() -> bool:
        return "[waits]" in provider.held

    await eventually("the model is asked", is_asked)
    await memory.edit([Edit.put("$.topics", {})])
    provider.release("[waits]")
    await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)


async def _silence(found: Watched, client: palimpsest.Client) -> None:
    """A model of its own replies to nothing for a while."""
    provider = found.provider
    # The first count of a process of this age is reported.
    await found.prometheus.until('min(up{job="palimpsest-worker"} offset 16s)')
    provider.holds.add("[silence]")
    made = [await _made(client, f"silent-{number}", SILENT) for number in range(3)]
    for session, _ in made:
        await session.append("This meets [silence].")
    await found.prometheus.until("sum(palimpsest_llm_let_go_total)")
    await found.prometheus.until_firing("PalimpsestModelSilent")
    provider.release("[silence]")
    for _, memory in made:
        await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    # A histogram has a rate from its second scrape on.
    await found.prometheus.until(
        'gen_ai_client_operation_duration_seconds_count{gen_ai_request_model="other"}'
    )
    session, memory = made[0]
    await session.append("It speaks.")
    await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)


async def _words(found: Watched, client: palimpsest.Client) -> None:
    """A text search that there is not."""
    session = await client.create_session("words")
    found.execute("UPDATE session SET language = 'nowhere' WHERE name = %s", "words")
    await session.append("One.")
    await found.prometheus.until("sum(palimpsest_index_words_failures_total)")
    found.execute("UPDATE session SET language = 'english' WHERE name = %s", "words")


async def _death_of_a_worker(found: Watched, client: palimpsest.Client) -> None:
    """A reply whose worker is gone when it comes: the next one finds it."""
    provider = found.provider
    provider.holds.add("[outlives]")
    session, memory = await _made(client, "outlived")
    await session.append("This [outlives] its worker.")

    async def is_asked() -> bool:
        return "[outlives]" in provider.held

    await eventually("the model is asked", is_asked)
    found.kill("worker")
    provider.release("[outlives]")
    found.start("worker")
    await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    await found.prometheus.until("sum(palimpsest_llm_replays_total)")
