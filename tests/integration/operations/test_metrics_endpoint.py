"""The port of the metrics: scrapers and probes get replies, whatever others connect."""

import asyncio
import gc
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import h11
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families
from structlog.testing import capture_logs

from service.telemetry import endpoint as module
from service.telemetry.endpoint import MAX_CONNECTIONS, CannotListen, Endpoint
from service.telemetry.prometheus import Exposition

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


class Counted:
    """Metrics that say how often they were rendered."""

    def __init__(self) -> None:
        self.renderings = 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def render(self, is_open: bool) -> tuple[bytes, str]:
        self.renderings += 1
        self.goes_on.wait()
        return b"x " * 50_000, "text/plain"


@asynccontextmanager
async def served(metrics: module.Renders | None, cause: str = "") -> AsyncIterator[int]:
    one = Endpoint(metrics, lambda: cause)
    with capture_logs() as lines:
        async with one.at("127.0.0.1:0"):
            listen = next(line["listen"] for line in lines if "listen" in line)
            yield int(listen.rpartition(":")[2])


Answer = tuple[int, dict[bytes, bytes], bytes]


async def ask(port: int, request: bytes) -> Answer:
    """Returns the answer to what is sent as it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = h11.Connection(h11.CLIENT)
    method = b"HEAD" if request.startswith(b"HEAD") else b"GET"
    client.send(h11.Request(method=method, target=b"/", headers=[(b"Host", b"x")]))
    client.send(h11.EndOfMessage())
    writer.write(request)
    client.receive_data(await reader.read())
    client.receive_data(b"")
    writer.close()
    response = client.next_event()
    assert isinstance(response, h11.Response)
    said = b""
    while isinstance(event := client.next_event(), h11.Data):
        said += event.data
    assert isinstance(event, h11.EndOfMessage), "the response is whole"
    return response.status_code, dict(response.headers), said


def request(path: str, method: str = "GET", accept: str = "*/*", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n{more}\r\n".encode()


async def test_paths_and_methods() -> None:
    async with served(Counted()) as port:
        status, headers, said = await ask(port, request("/metrics?x=1"))
        assert (status, len(said), headers[b"connection"]) == (200, 100_000, b"close")
        status, headers, said = await ask(port, request("/metrics", "HEAD"))
        assert (status, headers[b"content-length"], said) == (200, b"100000", b"")
        assert (await ask(port, request("/livez")))[::2] == (200, b"alive\n")
        assert (await ask(port, request("/readyz")))[::2] == (200, b"ready\n")
        assert (await ask(port, request("/")))[0] == 404
        assert (await ask(port, request("/metrics/x")))[0] == 404
        status, headers, _ = await ask(
            port, request("/metrics", "POST", more="Content-Length: 5\r\n") + b"hello"
        )
        assert (status, headers[b"allow"]) == (405, b"GET, HEAD")


async def test_a_process_that_is_not_ready_says_why_and_lives() -> None:
    async with served(Counted(), "the database cannot be reached: connection refused") as port:
        assert (await ask(port, request("/readyz")))[::2] == (
            503,
            b"the database cannot be reached: connection refused\n",
        )
        assert (await ask(port, request("/livez")))[0] == 200


async def test_without_the_sdk_only_metrics_are_missing() -> None:
    async with served(None) as port:
        status, _, said = await ask(port, request("/metrics"))
        assert (status, said) == (404, b"OTEL_SDK_DISABLED: nothing is measured\n")
        assert (await ask(port, request("/livez")))[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 4000 + b"\r\n", 431),
    ],
)
async def test_what_is_no_request_is_refused(sent: bytes, status: int) -> None:
    metrics = Counted()
    async with served(metrics) as port:
        assert (await ask(port, sent))[0] == status
        assert metrics.renderings == 0
        assert (await ask(port, request("/livez")))[0] == 200


async def test_many_silent_connections_keep_no_other_out() -> None:
    async with served(Counted()) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in silent[::2]:
            writer.write(b"GET /metrics HT")
        answers = await asyncio.gather(*(ask(port, request("/metrics")) for _ in range(20)))
        assert {status for status, *_ in answers} == {200}
        # The oldest were ended for those that came after them.
        ended = await asyncio.gather(*map(_ended, silent[: 200 - MAX_CONNECTIONS]))
        assert all(ended)
        for _, writer in silent:
            writer.transport.abort()


async def _ended(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    try:
        return await connection[0].read() == b""
    except ConnectionError:
        return True


async def test_a_connection_ends_that_says_or_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CONNECTION_SECONDS", 0.2)

    class Large:
        def render(self, is_open: bool) -> tuple[bytes, str]:
            return bytes(50_000_000), "text/plain"

    async with served(Large()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request("/metrics"))
        # It comes later, so that its time is up later.
        assert await _ended(await asyncio.open_connection("127.0.0.1", port))
        received = 0
        with suppress(ConnectionError):
            while said := await reader.read(1_000_000):
                received += len(said)
        assert received < 50_000_000, "who does not read is not waited for"
        writer.close()


async def test_what_cannot_be_answered_is_a_failure_that_ends() -> None:
    class Broken:
        def render(self, is_open: bool) -> tuple[bytes, str]:
            raise ValueError("a gauge with a defect")

    one = Endpoint(Broken(), lambda: "a cause \ud800 of its own")
    with capture_logs() as lines:
        async with one.at("127.0.0.1:0"), asyncio.timeout(60):
            port = int(lines[0]["listen"].rpartition(":")[2])
            for _ in range(2):
                status, _, said = await ask(port, request("/metrics"))
                assert (status, said) == (500, b"failed: the log of this process says why\n")
            assert (await ask(port, request("/livez")))[0] == 200
            assert (await ask(port, request("/readyz")))[::2] == (503, b"a cause ? of its own\n")
    assert [line["event"] for line in lines if line["log_level"] == "error"] == (
        ["a request failed"] * 2
    )


async def test_who_waits_for_metrics_is_not_left_when_they_are_closed() -> None:
    # All tests share one loop, and some leave tasks that never end.
    before = asyncio.all_tasks()
    metrics = Counted()
    metrics.goes_on.clear()
    lost: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    async with served(metrics) as port, asyncio.timeout(60):
        scrapes = [asyncio.create_task(ask(port, request("/metrics"))) for _ in range(3)]
        while not metrics.renderings:
            await asyncio.sleep(0.01)
    ended = await asyncio.gather(*scrapes, return_exceptions=True)
    metrics.goes_on.set()
    assert all(isinstance(one, Exception) for one in ended)
    while others := asyncio.all_tasks() - before:
        await asyncio.wait(others)
    gc.collect()
    assert lost == []


async def test_scrapes_at_once_cost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", 3600)
    metrics = Counted()
    metrics.goes_on.clear()
    async with served(metrics) as port:
        scrapes = [asyncio.create_task(ask(port, request("/metrics"))) for _ in range(30)]
        while not metrics.renderings:
            await asyncio.sleep(0.01)
        assert (await ask(port, request("/livez")))[0] == 200, "the loop goes on meanwhile"
        metrics.goes_on.set()
        assert {status for status, *_ in await asyncio.gather(*scrapes)} == {200}
        await ask(port, request("/metrics", accept="made/up"))
        assert metrics.renderings == 1
        await ask(port, request("/metrics", accept=OPEN))
        assert metrics.renderings == 2


async def test_a_port_that_is_taken_is_an_error_or_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    async with served(Counted()) as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(CannotListen, match=f"{address}: .*in use"):
            async with Endpoint(None, lambda: "").at(address):
                pytest.fail("there is one")
        held = Endpoint(None, lambda: "it is the second")
        waiting = held.at(address, waits=True)
        await waiting.__aenter__()
        assert (await ask(port, request("/readyz")))[0] == 200
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await ask(port, request("/readyz")))[2] == b"it is the second\n"
            except ConnectionError:
                await asyncio.sleep(0.01)
            else:
                break
    await waiting.__aexit__(None, None, None)


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "a" * 70])
async def test_an_address_that_is_not_here_is_an_error(host: str) -> None:
    with pytest.raises(CannotListen, match=re.escape(f"{host}:9464: ")):
        async with Endpoint(None, lambda: "").at(f"{host}:9464"):
            pytest.fail("it is an address for documentation, or none at all")


async def test_a_host_that_is_no_name_is_tried_again_like_a_port_that_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    tries = list[str]()

    class Trying(Endpoint):
        async def _listen(self, address: str) -> None:
            tries.append(address)
            await super()._listen(address)

    with capture_logs() as lines:
        async with Trying(None, lambda: "").at("a..b:9464", waits=True), asyncio.timeout(60):
            while len(tries) < 4:
                await asyncio.sleep(0.01)
    (line,) = lines
    assert line["cause"].startswith("a..b:9464: ")


@contextmanager
def measured() -> Iterator[tuple[Exposition, MeterProvider, TracerProvider]]:
    exposition = Exposition()
    provider = MeterProvider(metric_readers=[exposition.reader], shutdown_on_exit=False)
    yield exposition, provider, TracerProvider(shutdown_on_exit=False)
    provider.shutdown()


def test_what_is_measured_is_rendered_with_exemplars() -> None:
    with measured() as (exposition, provider, tracing):
        meter = provider.get_meter("a")
        seconds = meter.create_histogram(
            "x.duration", unit="s", explicit_bucket_boundaries_advisory=(0.1, 1)
        )
        calls = meter.create_counter("x.calls", description="Calls\nand more")
        meter.create_up_down_counter("x.open", unit="{call}").add(3)
        other = provider.get_meter("b").create_counter("x.calls", description="Calls\nand more")
        seconds.record(0.05, {"rpc.method": 'a"b\\'})
        with tracing.get_tracer("t").start_as_current_span("span") as span:
            seconds.record(0.5, {"rpc.method": 'a"b\\'})
            calls.add(2, {"k": "1"})
        other.add(1, {"k": "2"})
        found = span.get_span_context()
        said, kind = exposition.render(True)
        assert kind.startswith("application/openmetrics-text")
        by_name = {one.name: one for one in open_families(said.decode())}  # type: ignore[no-untyped-call]
        assert by_name["x_duration_seconds"].type == "histogram"
        samples = {
            (one.name, one.labels.get("le")): one for one in by_name["x_duration_seconds"].samples
        }
        assert samples["x_duration_seconds_bucket", "0.1"].value == 1
        assert samples["x_duration_seconds_bucket", "+Inf"].value == 2
        assert samples["x_duration_seconds_count", None].value == 2
        assert samples["x_duration_seconds_sum", None].value == pytest.approx(0.55)
        assert {one.labels["rpc_method"] for one in samples.values()} == {'a"b\\'}
        exemplars = {le: one.exemplar for (_, le), one in samples.items() if one.exemplar}
        spans = {
            "trace_id": format_trace_id(found.trace_id),
            "span_id": format_span_id(found.span_id),
        }
        assert {le: one.labels for le, one in exemplars.items()} == {"1.0": spans}
        counts = {one.labels["k"]: one for one in by_name["x_calls"].samples}
        assert {key: one.value for key, one in counts.items()} == {"1": 2, "2": 1}
        counted = counts["1"].exemplar
        assert counted is not None
        assert counted.labels == spans
        assert by_name["x_open"].samples[0].value == 3
        assert by_name["target"].type == "info"
        assert "process_resident_memory_bytes" in by_name

        plain, kind = exposition.render(False)
        assert kind.startswith("text/plain; version=0.0.4")
        names = {one.name for one in families(plain.decode())}
        assert names >= {"x_calls", "x_duration_seconds"}
        assert b"trace_id" not in plain
