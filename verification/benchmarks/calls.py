"""Measures what a model call costs besides the model: CALLS calls of a model that takes 200 ms.

Through the real gateway, with lease, ledger and record in a real PostgreSQL and the
prefix index in a real Valkey, CONCURRENCY at once. `value` is the wall time divided by the
ideal one, calls x 200 ms / concurrency, through the executor as a worker starts it:
there litellm asks a server for the reply. `near` is the same in one process, where the
model is a pause. CPU is given in milliseconds a call, by process.
"""

import asyncio
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from service.domain.calls.ledger import CallScope
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.llm.executor.client import RemoteExecutor
from service.llm.gateway.gateway import Gateway, MakesCalls
from service.llm.gateway.routing import Router
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.transport import Completion
from service.settings.config import Config
from service.usecases.calls.call_ledger import CallLedger
from storage.calls.prefix_index import RedisPrefixIndex
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from tests.support import gateways
from tests.support.completions import completion
from tests.support.harness import Servers
from verification.benchmarks.slow_model import slow_server

CALLS = 1143
CONCURRENCY = 32
MODEL_SECONDS = 0.2
#: Not counted: imports, connections, plans.
FIRST_CALLS = 128
LEASE_SECONDS = 10.0
#: About 250 tokens that all prompts share, and 1,000 of their own.
TASK = "Sum up the text in some sentences. " * 30
TEXT = "The quick brown fox jumps over the lazy dog; " * 90
REPLY = "A fox jumps over a dog. " * 20
MODEL = "openai/slow"
_SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
_TICKS = os.sysconf("SC_CLK_TCK")


class SlowModel:
    """Answers after a pause."""

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns the same reply each time."""
        await asyncio.sleep(MODEL_SECONDS)
        return completion(REPLY, model, input_tokens=1250, output_tokens=120, cost_micro_usd=0)


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module. Takes as long as the calls take."""
    with Servers.started() as servers:
        near = asyncio.run(_near(servers))
        with slow_server(MODEL_SECONDS, REPLY) as url:
            far = asyncio.run(_far(servers, url))
    return {"value": far["ratio"], "goal": "<= 1.15", "far": far, "near": near, "calls": CALLS}


async def _near(servers: Servers) -> dict[str, Any]:
    database = Database.connect(servers.new_database(), pool_size=5, name="bench")
    index = RedisPrefixIndex(servers.valkey.url)
    calls = gateways.gateway(SlowModel(), database, index=index, lease_seconds=LEASE_SECONDS)
    try:
        return await _measure(servers, database, calls, {})
    finally:
        await index.close()
        await database.close()


async def _far(servers: Servers, model_url: str) -> dict[str, Any]:
    url = servers.new_database()
    database = Database.connect(url, pool_size=5, name="bench")
    index = RedisPrefixIndex(servers.valkey.url)
    os.environ |= {
        "PALIMPSEST_DATABASE_URL": url,
        "PALIMPSEST_REDIS_URL": servers.valkey.url,
        "PALIMPSEST_MODEL": MODEL,
        "PALIMPSEST_MODEL_BASE_URL": model_url,
    }
    executor = RemoteExecutor(None, stop_seconds=10)
    await executor.start()
    assert executor._process is not None, "it was started"
    try:
        return await _measure(
            servers,
            database,
            _through(executor, database, index),
            {"executor": executor._process.pid},
        )
    finally:
        await executor.close()
        await index.close()
        await database.close()


def _through(executor: MakesCalls, database: Database, index: RedisPrefixIndex) -> Gateway:
    prices = Prices(Config()).of
    return Gateway(
        CallLedger(database, lease_seconds=LEASE_SECONDS),
        Router((), index, prices),
        executor,
        prices=prices,
        lease_seconds=LEASE_SECONDS,
    )


async def _measure(
    servers: Servers, database: Database, calls: Gateway, processes: dict[str, int]
) -> dict[str, Any]:
    scope = await _prepare(database)
    await _all(calls, scope, range(FIRST_CALLS))
    postmaster = servers.postgres._process
    assert postmaster is not None, "it runs"
    roots = {**processes, "postgres": postmaster.pid}
    before = {name: cpu_seconds(pid) for name, pid in roots.items()}
    own, began = _own_seconds(), time.perf_counter()
    latencies = await _all(calls, scope, range(FIRST_CALLS, FIRST_CALLS + CALLS))
    wall = time.perf_counter() - began
    cpu = {"worker": _own_seconds() - own}
    cpu |= {name: cpu_seconds(pid) - before[name] for name, pid in roots.items()}
    return {
        "ratio": round(wall / (CALLS * MODEL_SECONDS / CONCURRENCY), 3),
        "seconds": round(wall, 2),
        "calls_per_second": round(CALLS / wall),
        "median_ms": round(statistics.median(latencies) * 1000, 1),
        "cpu_ms_a_call": {name: round(each / CALLS * 1000, 2) for name, each in cpu.items()},
    }


async def _all(calls: Gateway, scope: CallScope, numbers: range) -> list[float]:
    """Seconds that each call took."""
    left = iter(numbers)
    took: list[float] = []

    async def some() -> None:
        for number in left:
            began = time.perf_counter()
            reply = await calls.call(_ask(number), model=MODEL, scope=_occasion(scope, number))
            took.append(time.perf_counter() - began)
            assert reply.text == REPLY

    await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
    return took


def _occasion(scope: CallScope, number: int) -> CallScope:
    return CallScope(
        tenant_id=scope.tenant_id,
        session_key=scope.session_key,
        memory_id=scope.memory_id,
        occasion=f"node:0.{number}",
    )


def _ask(number: int) -> ModelRequest:
    text = f"Part {number}. {TEXT}"
    return ModelRequest(
        purpose=Purpose.SUMMARIZE,
        template="bench/1",
        segments=(
            Segment(kind=SegmentKind.TASK, text=TASK),
            Segment(kind=SegmentKind.CHUNK, text=text, reusable=False),
        ),
        max_output_tokens=300,
    )


async def _prepare(database: Database) -> CallScope:
    key = session_key(DEFAULT_TENANT, "bench")
    identity = memory_id(key, "notes")
    spec = PrismSpec(schema_source=_SCHEMA, chunk_tokens=1, model=MODEL)
    empty = PrismMemory.create(parse_source(_SCHEMA))
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, key, "bench")
        await memories.create(
            tx,
            session_key=key,
            memory_id=identity,
            name="notes",
            spec=spec,
            head=0,
            value=empty.value_json,
            digest=b"",
        )
    return CallScope(
        tenant_id=DEFAULT_TENANT, session_key=key, memory_id=identity, occasion="bench"
    )


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_seconds(root: int) -> float:
    """Returns the CPU seconds of a process and its descendants, including those that ended."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            # It has just ended: its parent has its time by now.
            continue
        pid = int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    family, total = [root], 0
    while family:
        pid = family.pop()
        total += ticks.get(pid, 0)
        family += parents.get(pid, ())
    return total / _TICKS
