"""What amendments cost: applied, held, stored, and read back at any revision.

`value` is the median time of reading one of 10,000 revisions over gRPC divided by that
of reading the newest; the two alternate. Beside it: amendments applied one by one and
replayed when a memory is loaded, the bytes that a process holds and the database stores
for each. What a step costs early and late in the log is the benchmark `step`.
"""

import asyncio
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import psycopg

import palimpsest
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from service.domain.prism.amending import replay
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.memory import PrismMemory
from service.domain.prism.spec import PrismSpec
from service.domain.values.paths import Path
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage.engine.database import Database
from storage.memories import revisions
from storage.memories.revisions import NewRevision
from tests.support.harness import Servers, api

SCHEMA = '''class Notes:
    """What was said, by topic."""
    topics: dict[str, str]
'''
AMENDMENTS = 10_000
#: Topics of the memory; each is amended again and again.
KEYS = 200
#: Amendments after which a fold writes a new base, as `fold_tokens` does.
FOLD = 400


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    amendments = [_amendment(number) for number in range(AMENDMENTS)]
    return {**_in_process(amendments), **_stored(amendments, seconds)}


def _amendment(number: int) -> Amendment:
    return Amendment(
        path=Path(("topics", f"topic {number % KEYS}")),
        op=Op.ADD if number < KEYS else Op.UPDATE,
        value=f"what was said about it in step {number}, in some words more than a few",
    )


def _in_process(amendments: Sequence[Amendment]) -> dict[str, Any]:
    schema = PrismSpec(schema_source=SCHEMA).schema()
    memory = PrismMemory.create(schema)
    start = time.perf_counter()
    for number, one in enumerate(amendments, start=1):
        memory = memory.apply(number, [one])
        if number % FOLD == 0:
            memory = memory.fold()
    applied = time.perf_counter() - start
    start = time.perf_counter()
    replayed = replay(schema, {}, amendments)
    replaying = time.perf_counter() - start
    assert replayed == memory.value
    gc.collect()
    tracemalloc.start()
    loaded = PrismMemory.load(
        schema,
        base_json="{}",
        amendments=[(number, [one]) for number, one in enumerate(amendments, start=1)],
    )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert loaded.value == memory.value
    return {
        "applied_per_second": round(len(amendments) / applied),
        "replayed_per_second": round(len(amendments) / replaying),
        "held_bytes_per_amendment": round(held / len(amendments)),
    }


def _stored(amendments: Sequence[Amendment], seconds: float) -> dict[str, Any]:
    with Servers.started() as servers:
        url = servers.new_database()
        with api(url) as (_, address):
            return asyncio.run(_measure(servers, url, address, amendments, seconds))


async def _measure(
    servers: Servers, url: str, address: str, amendments: Sequence[Amendment], seconds: float
) -> dict[str, Any]:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("apply")
        await session.create_memory("notes", schema_source=SCHEMA)
        before = _size(servers, url)
        await _commit(url, amendments)
        after = _size(servers, url)
        stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
        newest, old, ratios = await _read(stub, seconds)
    return {
        "value": round(statistics.median(old) / statistics.median(newest), 2),
        "goal": "<= 3",
        "worst_tenth": round(statistics.quantiles(ratios, n=10)[8], 2),
        "newest_ms": round(statistics.median(newest) * 1000, 2),
        "old_ms": round(statistics.median(old) * 1000, 2),
        "reads": len(old),
        "revisions": len(amendments),
        "stored_bytes_per_amendment": round((after - before) / len(amendments)),
    }


async def _commit(url: str, amendments: Sequence[Amendment]) -> None:
    """Commits each amendment as a revision, as a step does, in one long transaction."""
    database = Database.connect(url, pool_size=1, name="bench")
    key = session_key(DEFAULT_TENANT, "apply")
    memory = PrismMemory.create(PrismSpec(schema_source=SCHEMA).schema())
    for start in range(0, len(amendments), 500):
        async with database.transaction(DEFAULT_TENANT) as tx:
            for number, one in enumerate(amendments[start : start + 500], start=start + 1):
                held = await revisions.lock(tx, key, memory_id(key, "notes"))
                assert held is not None
                memory = memory.apply(number, [one])
                folds = number % FOLD == 0
                new = NewRevision(
                    kind="edit",
                    to_position=0,
                    digest=b"",
                    amendments=[one],
                    value=memory.value_json,
                    base=memory.value_json if folds else None,
                )
                await revisions.commit_revision(tx, held, new, has_work=None)
                memory = memory.fold() if folds else memory
    await database.close()


async def _read(stub: Any, seconds: float) -> tuple[list[float], list[float], list[float]]:
    chosen = random.Random(7)
    newest: list[float] = []
    old: list[float] = []
    request = memory_service_pb2.GetMemoryRequest(session="apply", memory="notes")
    for _ in range(20):
        await stub.GetMemory(request)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        newest.append(await _timed(stub, request))
        revision = chosen.randrange(1, AMENDMENTS)
        past = memory_service_pb2.GetMemoryRequest(
            session="apply", memory="notes", revision=revision
        )
        old.append(await _timed(stub, past))
    usual = statistics.median(newest)
    return newest, old, [taken / usual for taken in old]


async def _timed(stub: Any, request: memory_service_pb2.GetMemoryRequest) -> float:
    start = time.perf_counter()
    await stub.GetMemory(request)
    return time.perf_counter() - start


def _size(servers: Servers, url: str) -> int:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])
