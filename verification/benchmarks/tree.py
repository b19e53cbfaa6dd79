"""Measures how long a summary tree takes to be built, against what its model calls take at best.

1,000,000 tokens of text, a model that takes 200 ms, 32 calls at once. The time until the
tree has all of it, divided by the ideal one, calls x 200 ms / 32, twice:

- `value`: the model is a pause at the transport, in the worker's process, over a log that is
  there. What building, ledger and database cost.
- `http`: streamed through a real API server, built by a real worker and its executor; the model
  is a server that litellm asks. litellm takes several milliseconds of one CPU a call, of
  which the ideal has six: more CPUs and workers help, no pipeline does. `model_alone` is what
  the server takes for as many calls.

Texts are those of ../shared/data where that is there (a novel, fairy tales, meetings), else
made up.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg

import palimpsest
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.spec import TreeSpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.providers.facts import ModelFacts
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Config
from storage.calls.prefix_index import RedisPrefixIndex
from storage.engine.database import Database
from tests.support.completions import completion
from tests.support.gateways import gateway
from tests.support.harness import Process, Servers, api, worker
from tests.support.step_engines import step_engine
from verification.benchmarks.calls import cpu_seconds
from verification.benchmarks.slow_model import slow_server

TOKENS = 1_000_000
CONCURRENCY = 32
MODEL_SECONDS = 0.2
MODEL = "openai/slow"
FACTS = ModelFacts(window_tokens=32_768, count=estimate_tokens)
CHUNK_CHARACTERS = 2000
#: About 200 tokens: the summaries of eight children are compressed.
SUMMARY = "The fox jumps over the dog, and nobody in town says so. " * 14
#: How often the worker's memory and the tree are looked at.
LOOK_SECONDS = 0.05
#: No build takes so long, unless something is wrong.
MAX_SECONDS = 300.0
#: What grows with a tree: everything but the log.
_ROWS = (
    "FROM revision WHERE session_key = %s",
    "FROM tree_node WHERE session_key = %s",
    """FROM (SELECT n.created_at FROM tree_node n JOIN call c ON c.session_key = n.session_key
        AND c.occasion = 'node:' || n.level || '.' || n.number
        WHERE n.session_key = %s) AS called""",
)


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module. Takes as long as the builds take."""
    chunks = _chunks(TOKENS)
    with (
        Servers.started() as servers,
        slow_server(MODEL_SECONDS, SUMMARY) as model,
        # One loop for all: gRPC does not leave the one that it began with.
        asyncio.Runner() as runner,
    ):
        streamed = _streamed(servers, model, chunks, runner)
        pause = runner.run(_paused(servers, chunks))
        alone = runner.run(_alone(model, streamed["calls"]))
    return {
        "value": pause["ratio"],
        "goal": "<= 1.15",
        **pause,
        "http": streamed,
        "model_alone": round(alone / _ideal(streamed["calls"]), 3),
    }


def _ideal(calls: int) -> float:
    return calls * MODEL_SECONDS / CONCURRENCY


def _streamed(
    servers: Servers, model_url: str, chunks: Sequence[str], runner: asyncio.Runner
) -> dict[str, Any]:
    url = servers.new_database()
    environment = {
        "PALIMPSEST_REDIS_URL": servers.valkey.url,
        "PALIMPSEST_MODEL": MODEL,
        "PALIMPSEST_MODEL_BASE_URL": model_url,
        "PALIMPSEST_MODEL_API_KEY": "none",
        "PALIMPSEST_BUILD_CONCURRENCY": str(CONCURRENCY),
        "PALIMPSEST_LOG_LEVEL": "warning",
    }
    with (
        api(url) as (server, address),
        worker(url, **environment) as process,
        psycopg.connect(servers.as_superuser(url), autocommit=True) as connection,
    ):
        postmaster = servers.postgres._process
        assert postmaster is not None, "it runs"
        # The worker has its connections, and the executor has imported litellm.
        runner.run(_stream(address, "warm", chunks[:64]))
        _wait(connection, "warm")
        roots = {"api": server.pid, "worker": process.pid, "postgres": postmaster.pid}
        roots["executor"] = _child_of(process)
        cpu = {name: cpu_seconds(pid) for name, pid in roots.items()}
        with _watched(process) as sizes:
            began = time.time()
            appended = runner.run(_stream(address, "bench", chunks))
            _wait(connection, "bench")
            seconds = time.time() - began
        cpu = {name: cpu_seconds(pid) - cpu[name] for name, pid in roots.items()}
        cpu["worker"] -= cpu["executor"]
        found, ends = _measured(connection, began, seconds)
        return {
            **found,
            "append_seconds": round(appended, 2),
            "worker_mb": _tenths(sizes, began, ends),
            "cpu_ms_a_call": {
                name: round(each / found["calls"] * 1000, 2) for name, each in cpu.items()
            },
        }


def _child_of(process: Process) -> int:
    """Returns the executor that a worker has."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(path.read_text().split()[0])


async def _stream(address: str, name: str, chunks: Sequence[str]) -> float:
    """Sends a text to a session with a tree; seconds."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session(name)
        await session.create_tree("tree")
        began = time.perf_counter()
        async with session.producer("bench") as producer:
            for chunk in chunks:
                await producer.append(chunk)
            await producer.flush()
        return time.perf_counter() - began


_PROGRESS = """
SELECT s.head > 0 AND s.head = m.applied_position AND NOT m.has_work, m.status
FROM memory m JOIN session s USING (session_key) WHERE s.name = %s
"""


def _wait(connection: psycopg.Connection[Any], name: str) -> None:
    until = time.monotonic() + MAX_SECONDS
    while time.monotonic() < until:
        row = connection.execute(_PROGRESS, (name,)).fetchone()
        assert row is not None
        assert row[1] == "active", "the model never fails"
        if row[0]:
            return
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"{name} was not built within {MAX_SECONDS} s")


def _measured(
    connection: psycopg.Connection[Any], began: float, seconds: float
) -> tuple[dict[str, Any], tuple[float, float, float]]:
    """Figures of the session "bench"; the ends of the first, the last but one and the last
    tenth of its segments."""
    key = session_key(DEFAULT_TENANT, "bench")

    def times(query: str) -> list[float]:
        rows = connection.execute(f"SELECT extract(epoch FROM created_at)::float8 {query}", (key,))
        return sorted(row[0] for row in rows.fetchall())

    leaves = times("FROM tree_node WHERE level = 0 AND session_key = %s")
    calls = times("FROM call WHERE session_key = %s")
    # Calls run ahead of the nodes that they were made for: they count where these do.
    rows = [at for query in _ROWS for at in times(query)]
    made = times("FROM call WHERE occasion LIKE 'node:0.%%' AND session_key = %s")
    tenth = len(made) // 10
    first, last = made[tenth - 1], made[-tenth - 1]
    # Nodes are stored many at a time.
    soon, late = leaves[tenth - 1], leaves[-tenth - 1]
    figures = {
        "ratio": round(seconds / _ideal(len(calls)), 3),
        "seconds": round(seconds, 2),
        "ideal_seconds": round(_ideal(len(calls)), 2),
        "segments": len(leaves),
        "calls": len(calls),
        "calls_a_segment": round(len(calls) / len(leaves), 3),
        "rows_a_segment": round(len(rows) / len(leaves), 3),
        "rows_a_segment_first_and_last_tenth": [
            round(sum(at <= soon for at in rows) / sum(at <= soon for at in leaves), 2),
            round(sum(at > late for at in rows) / sum(at > late for at in leaves), 2),
        ],
        "ms_a_segment_first_and_last_tenth": [
            round((first - made[0]) / (tenth - 1) * 1000, 2),
            round((made[-1] - last) / tenth * 1000, 2),
        ],
        "first_reply_after_seconds": round(made[0] - began, 3),
    }
    return figures, (first, last, made[-1])


@contextmanager
def _watched(process: Process) -> Iterator[list[tuple[float, int]]]:
    """Yields the resident memory of a process in bytes, with its time, while it works."""
    sizes: list[tuple[float, int]] = []
    ended = threading.Event()

    def look() -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not ended.wait(LOOK_SECONDS):
            words = Path(f"/proc/{process.pid}/statm").read_text().split()
            sizes.append((time.time(), int(words[1]) * page))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        ended.set()
        thread.join()


def _tenths(sizes: Sequence[tuple[float, int]], began: float, ends: Sequence[float]) -> Any:
    """Megabytes at most, in the first and in the last tenth of the segments."""
    first = max(size for at, size in sizes if began <= at <= ends[0])
    last = max(size for at, size in sizes if ends[1] <= at <= ends[2])
    return [round(size / 1e6, 1) for size in (first, last)]


class PausingModel:
    """Answers after a pause."""

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns the same summary each time."""
        await asyncio.sleep(MODEL_SECONDS)
        return completion(SUMMARY, model, input_tokens=1250, output_tokens=200, cost_micro_usd=0)


async def _paused(servers: Servers, chunks: Sequence[str]) -> dict[str, Any]:
    """Returns the same, in one process with a model that is a pause, over a log that is there."""
    url = servers.new_database()
    with api(url) as (_, address):
        await _stream(address, "bench", chunks)
    database = Database.connect(url, pool_size=10, name="bench")
    index = RedisPrefixIndex(servers.valkey.url)
    calls = gateway(PausingModel(), database, index=index, lease_seconds=10.0)
    config = Config(build_concurrency=CONCURRENCY, drain_seconds=MAX_SECONDS, model=MODEL)
    engine = step_engine(TreeSpec.kind, database, calls, config, FACTS)
    key = session_key(DEFAULT_TENANT, "bench")
    item = WorkItem(
        kind=WorkKind.MEMORY,
        tenant_id=DEFAULT_TENANT,
        session_key=key,
        item_id=memory_id(key, "tree"),
    )
    try:
        began, cpu = time.time(), time.process_time()
        await engine.drain(item)
        seconds, cpu = time.time() - began, time.process_time() - cpu
    finally:
        await index.close()
        await database.close()
    with psycopg.connect(servers.as_superuser(url)) as connection:
        found, _ = _measured(connection, began, seconds)
    return {
        "ratio": found["ratio"],
        "seconds": found["seconds"],
        "cpu_ms_a_call": round(cpu / found["calls"] * 1000, 2),
    }


async def _alone(model_url: str, calls: int) -> float:
    """Seconds that the server takes for so many calls, without anything of ours."""
    host, _, port = model_url.removeprefix("http://").removesuffix("/v1").rpartition(":")
    body = b"x" * 6000
    request = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    left = iter(range(calls))

    async def some() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in left:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
    return time.perf_counter() - began


def _chunks(tokens: int) -> list[str]:
    """Returns a text of so many tokens, in chunks that end anywhere."""
    text = "\n\n".join(_real_texts()) or _made_up()
    while estimate_tokens(text) < tokens:
        text += text
    text = text.encode()[: tokens * 4].decode(errors="ignore")
    return [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]


def _real_texts() -> Iterator[str]:
    shared = next(
        (
            folder / "shared" / "data"
            for folder in Path(__file__).resolve().parents
            if (folder / "shared" / "data").is_dir()
        ),
        None,
    )
    for name in ("books_austen", "fairytaleqa", "qmsum"):
        path = shared / name / "dev.jsonl" if shared else None
        if path is None or not path.is_file():
            continue
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield "\n\n".join(chunk["text"] for chunk in row.get("chunks", ()))
                yield "\n".join(f"{t['speaker']}: {t['text']}" for t in row.get("turns", ()))


def _made_up() -> str:
    words = [
        "the",
        "of",
        "and",
        "town",
        "horse",
        "rain",
        "bread",
        "window",
        "letter",
        "sea",
        "harbour",
        "morning",
    ]
    chosen = Random(1)
    sentences = (
        " ".join(chosen.choices(words, k=chosen.randint(4, 24))).capitalize() + "."
        for _ in range(40_000)
    )
    return "\n\n".join(" ".join(next(sentences, "") for _ in range(6)) for _ in range(6_000))
