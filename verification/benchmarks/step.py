"""Measures what a PRISM step costs outside the model call, early and late in a long log.

`value` is the median time of a step about revision 10,000 divided by that about
revision 10: a step must not cost more because the log is longer. The model answers at
once and always updates one of 40 keys, so the memory keeps its size; folds are on as
usual, and a step after a fold carries the fold's time.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.providers.facts import ModelFacts
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.transport import Completion
from service.settings.config import Config
from service.usecases.memories.step_engine import StepEngine
from storage.calls.prefix_index import RedisPrefixIndex
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from tests.integration.support.writing import append_texts
from tests.support.completions import completion
from tests.support.gateways import gateway
from tests.support.harness import Servers
from tests.support.step_engines import step_engine

SCHEMA = '''class Notes:
    """What was said, by topic."""
    topics: dict[str, str]
'''
MODEL = "bench/instant"
FACTS = ModelFacts(window_tokens=128_000, count=estimate_tokens)
LATE = 10_000
#: Steps measured about each revision.
WINDOW = 200
KEYS = 40


class InstantModel:
    """Answers at once, and notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns a reply that updates one key."""
        self.asked.append(time.perf_counter())
        number = len(self.asked)
        key = f"topic {number % KEYS}"
        reply = (
            f"[OBJECTS FOR UPDATE]\n{{\"$.'topics'.'{key}'\": {{\"update\":"
            f' "what was said about it in step {number}, in some words more"}}}}\n'
            "[OBJECTS FOR ADD]\n{}"
        )
        return completion(
            reply, model, input_tokens=1000, output_tokens=40, cached_tokens=None, cost_micro_usd=0
        )


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module. Takes as long as 10,000 steps take."""
    with Servers.started() as servers:
        return asyncio.run(_measure(servers))


async def _measure(servers: Servers) -> dict[str, Any]:
    model = InstantModel()
    async with _prism_method(servers, model) as (database, prism_method):
        long = await _prepare(database, "long", LATE + WINDOW // 2)
        early: list[float] = []
        short = WINDOW // 10
        items = [await _prepare(database, f"short-{n}", 16) for n in range(short)]
        for item in items[: short // 2]:
            early += await _steps(prism_method, item, model)
        whole = await _steps(prism_method, long, model)
        for item in items[short // 2 :]:
            early += await _steps(prism_method, item, model)
        late = whole[LATE - WINDOW // 2 :]
    ratio = statistics.median(late) / statistics.median(early)
    return {
        "value": round(ratio, 2),
        "goal": "<= 1.3",
        "early_ms": round(statistics.median(early) * 1000, 2),
        "late_ms": round(statistics.median(late) * 1000, 2),
        "median_goal_ms": "< 15",
        "p95_ms": round(statistics.quantiles(whole, n=20)[18] * 1000, 2),
        "steps": len(whole),
        "steps_per_second": round(len(whole) / sum(whole)),
    }


async def _steps(prism_method: StepEngine[Any], item: WorkItem, model: InstantModel) -> list[float]:
    """Seconds from one model call to the next, while the memory is drained."""
    model.asked.clear()
    await prism_method.drain(item)
    return [b - a for a, b in zip(model.asked, model.asked[1:], strict=False)][5:]


@asynccontextmanager
async def _prism_method(
    servers: Servers, model: InstantModel
) -> AsyncIterator[tuple[Database, StepEngine[Any]]]:
    database = Database.connect(servers.new_database(), pool_size=4, name="bench")
    index = RedisPrefixIndex(servers.valkey.url)
    calls = gateway(model, database, index=index, lease_seconds=10.0)
    config = Config(drain_seconds=3600)
    try:
        prices = Prices(config).of(MODEL)
        yield database, step_engine(PrismSpec.kind, database, calls, config, FACTS, prices)
    finally:
        await index.close()
        await database.close()


async def _prepare(database: Database, name: str, chunks: int) -> WorkItem:
    key = session_key(DEFAULT_TENANT, name)
    identity = memory_id(key, "notes")
    spec = PrismSpec(schema_source=SCHEMA, chunk_tokens=1, model=MODEL)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, key, name)
    await append_texts(database, name, [f"chunk {n}" for n in range(chunks)])
    empty = PrismMemory.create(parse_source(SCHEMA))
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=key,
            memory_id=identity,
            name="notes",
            spec=spec,
            head=chunks,
            value=empty.value_json,
            digest=b"",
        )
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=key, item_id=identity
    )
