"""Measures a question in a long session against the same in a short one.

Four parts, each in a process of its own and a session that is written by SQL:

- `navigation`: a state memory that has compressed nothing, by the text that it is behind.
- `browsing`: DCISO over a log, by its chunks; retrieval names eight of them, spread evenly.
- `usage`: an answer that is read with what it cost, by the calls of its session.
- `session`: the usage of the session with all of these calls.

Each is measured by its seconds, by how far the process's memory grew meanwhile (its peak), and by
the longest time in which the event loop was blocked: a worker renews its leases there. `value`
is the largest ratio of a large session to a small one, of seconds or of memory. The model is a
script, so no second is the model's.
"""

import argparse
import asyncio
import gc
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import uvloop

from service.domain.answers.browse.spec import BrowseOption, BrowseRequest
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.prompting.flows import ModelRequest
from service.domain.values.memory_specs import ReaderName
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.llm.offline.prompt import Prompt
from service.usecases.answers.ask import occasion
from service.usecases.answers.readers.browsed_log import BrowseHit
from service.usecases.answers.stored_answers import cancel
from storage.engine.database import Database
from storage.spend import costs
from storage.spend.spend import SpendFilter
from tests.integration.support.compressed_rows import KEY, STATE, make_state
from tests.integration.support.ranks import Ranked
from tests.integration.support.scripted import Script, answerer
from tests.integration.support.stored_answers import store_question
from tests.support.gateways import gateway
from tests.support.harness import Servers

GOAL = 10.0
FEW_CALLS = 1000
#: Times that usage is read, which takes no time, for each figure.
READS = 20
#: Characters of a chunk that is navigated, and of one that is browsed.
STEP_CHARACTERS = 2000
NOTE_CHARACTERS = 100
HITS = 8
#: Calls of the answer that is read.
ANSWER_CALLS = 10
TICK_SECONDS = 0.002
SENTENCE = "The fox jumps over the dog, and nobody in town says so. "

_PRODUCER = """
INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
VALUES (%(key)s, 'bench', %(tenant)s, 0, %(count)s)
"""
_CHUNKS = """
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence, kind, role,
    text, observation, thought, action, digest)
SELECT %(key)s, n, %(tenant)s, 'bench', n, 'text', '',
    left('Note ' || n || ' of ' || md5(n::text) || '. ' || repeat(%(sentence)s, %(times)s),
        %(characters)s), '', '', '', ''
FROM generate_series(1, %(count)s) AS n
"""
_HEAD = "UPDATE session SET head = %(count)s WHERE session_key = %(key)s"
_CALLS = """
INSERT INTO call (session_key, call_id, tenant_id, memory_id, occasion, key, purpose, template,
    model, reply, input_tokens, predicted_cached_tokens, output_tokens, cost_micro_usd, latency_ms)
SELECT %(key)s, gen_random_uuid(), %(tenant)s, %(memory)s, 'compress:' || n, sha256(n::text::bytea),
    'compress', 't/1', 'test/scripted', repeat(md5(n::text), 8), 900, 0, 100, 50, 10
FROM generate_series(1, %(count)s) AS n
"""
_ANSWER_CALLS = """
UPDATE call SET occasion = %(occasion)s WHERE session_key = %(key)s AND call_id IN (
    SELECT call_id FROM call WHERE session_key = %(key)s LIMIT %(calls)s)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the length of the long sessions."""
    parser.add_argument("--tail", type=int, default=100, help="megabytes that are navigated (100)")
    parser.add_argument(
        "--chunks", type=int, default=1_000_000, help="chunks that are browsed (1,000,000)"
    )
    parser.add_argument(
        "--calls", type=int, default=1_000_000, help="calls of a session (1,000,000)"
    )
    parser.add_argument("--times", type=int, default=3, help="processes for each figure (3)")


def run(seconds: float, *, tail: int, chunks: int, calls: int, times: int) -> dict[str, Any]:
    """Measures; see the module. Takes as long as it takes to write the sessions."""
    steps = tail * 10**6 // STEP_CHARACTERS
    sizes = {
        "navigation": (10**6 // STEP_CHARACTERS, steps),
        "browsing": (10_000, chunks),
        "usage": (FEW_CALLS, calls),
        "session": (FEW_CALLS, calls),
    }
    found: dict[str, Any] = {}
    with Servers.started() as servers:
        of_steps = _made(servers, _logged, steps, STEP_CHARACTERS)
        of_notes = _made(servers, _logged, chunks, NOTE_CHARACTERS)
        few, many = (_made(servers, _called, size) for size in (FEW_CALLS, calls))
        places = {
            "navigation": (of_steps, of_steps),
            "browsing": (of_notes, of_notes),
            "usage": (few, many),
            "session": (few, many),
        }
        for part, of in places.items():
            rows = [
                _measured(place, part, size, times)
                for place, size in zip(of, sizes[part], strict=True)
            ]
            found[part] = {
                "sizes": sizes[part],
                "seconds": [row["seconds"] for row in rows],
                "grown_mb": [row["grown_mb"] for row in rows],
                "stood_still_ms": [row["stood_still_ms"] for row in rows],
                "ratio": _ratio(rows[1]["seconds"], rows[0]["seconds"]),
                "memory_ratio": _ratio(rows[1]["grown_mb"], max(rows[0]["grown_mb"], 1.0)),
            }
            print(f"{part}: {found[part]}", file=sys.stderr, flush=True)
    told = list(found.values())
    return {
        "value": max(max(one["ratio"], one["memory_ratio"]) for one in told),
        "goal": f"<= {GOAL:g}, and the loop never still for 100 ms",
        "stood_still_ms": max(max(one["stood_still_ms"]) for one in told),
        **found,
    }


#: A database with a session in it, and the answer whose usage is read.
_Place = tuple[str, UUID]


def _made(servers: Servers, write: Callable[..., Coroutine[Any, Any, UUID]], *size: int) -> _Place:
    url, began = servers.new_database(), time.monotonic()
    asked = asyncio.run(write(url, servers.as_superuser(url), *size))
    print(f"{size[0]:,} rows in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return url, asked


def _ratio(large: float, small: float) -> float:
    return round(large / small, 2)


def _measured(place: _Place, part: str, size: int, times: int) -> dict[str, float]:
    """Returns the medians of so many processes."""
    url, asked = place
    command = [sys.executable, "-m", "verification.benchmarks.long_session", url, part]
    rows = []
    for _ in range(times):
        ended = subprocess.run(
            [*command, str(size), str(asked)], stdout=subprocess.PIPE, text=True, check=True
        )
        rows.append(json.loads(ended.stdout))
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


async def _logged(url: str, superuser: str, size: int, characters: int) -> UUID:
    """Returns the session `s` with so many chunks, and a memory of it that has read none."""
    database = Database.connect(url, pool_size=2, name="long")
    try:
        await make_state(database)
    finally:
        await database.close()
    values = {
        "key": KEY,
        "tenant": DEFAULT_TENANT,
        "count": size,
        "sentence": SENTENCE,
        "times": characters // len(SENTENCE) + 1,
        "characters": characters,
    }
    with psycopg.connect(superuser, autocommit=True) as connection:
        # Foreign keys hold by construction; to check each row takes most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        for statement in (_PRODUCER, _CHUNKS, _HEAD):
            connection.execute(statement, values)
        connection.execute("VACUUM ANALYZE chunk")
        connection.execute("CHECKPOINT")
    return uuid4()


async def _called(url: str, superuser: str, size: int) -> UUID:
    """Returns the session `s` with so many calls of its memory, some of them of an answer."""
    database = Database.connect(url, pool_size=2, name="long")
    try:
        await make_state(database)
        item = await store_question(database, STATE, "What?", revision=0, applied_position=0)
    finally:
        await database.close()
    values = {
        "key": KEY,
        "tenant": DEFAULT_TENANT,
        "memory": STATE,
        "count": size,
        "occasion": occasion(item.item_id),
        "calls": ANSWER_CALLS,
    }
    with psycopg.connect(superuser, autocommit=True) as connection:
        # The triggers add all of them to the sums at once.
        connection.execute("SET synchronous_commit = off")
        for statement in (_CALLS, _ANSWER_CALLS):
            connection.execute(statement, values)
        connection.execute("VACUUM ANALYZE call")
        connection.execute("CHECKPOINT")
    return item.item_id


def _moves(ask: ModelRequest, number: int) -> str:
    """Goes to the newest text, and answers from there."""
    prompt = Prompt(ask)
    match ask.template.partition("/")[0]:
        case "tree.triage":
            newest = max(int(one) for one in re.findall(r"-?\d+", prompt.plain("MOVES")))
            return f"Reasoning: it is new.\nAction: {newest}"
        case "tree.remember":
            return f"Summary: {prompt.text('NOTES')[:100]}"
        case "tree.leaf":
            return "Reasoning: it says so.\nAction: -2\nAnswer: The fox jumps over the dog."
        case "browse.piece":
            return "Action: append\nText: The fox jumps over the dog."
        case "browse.close" | "browse.read":
            return "Text: The fox jumps over the dog.\nSources: 1"
    raise AssertionError(f"not asked for {ask.template}")


async def _navigate(database: Database, size: int, _: UUID) -> None:
    item = await store_question(
        database,
        STATE,
        "Who jumps?",
        revision=0,
        applied_position=size,
        navigation=NavigationRequest(),
    )
    await _answer(database, item, Ranked())


async def _browse(database: Database, size: int, _: UUID) -> None:
    hits = [BrowseHit(position=n * size // HITS + 1, from_character=None) for n in range(HITS)]
    item = await store_question(
        database,
        None,
        "Who jumps?",
        revision=0,
        applied_position=size,
        reader=ReaderName.DCISO,
        browsing=BrowseRequest(option=BrowseOption.RANK, rewritten_query="who jumps"),
    )
    await _answer(database, item, Ranked(hits))


async def _answer(database: Database, item: WorkItem, ranks: Ranked) -> None:
    made = gateway(Script(reply=_moves), database)
    await answerer(database, made, ranks=lambda *_: ranks).make(item)
    found = await cancel(database, DEFAULT_TENANT, "s", item.item_id)
    assert found.answer.status == "complete", found.answer.failure
    assert found.answer.text, found.answer.failure


async def _read_answer(database: Database, size: int, answer_id: UUID) -> None:
    found = await cancel(database, DEFAULT_TENANT, "s", answer_id)
    assert sum(line.calls for line in found.usage) == ANSWER_CALLS


async def _read_session(database: Database, size: int, _: UUID) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        lines = await costs.lines(tx, SpendFilter(session_key=KEY))
    assert sum(line.spend.calls for line in lines) == size


_PARTS: dict[str, Callable[[Database, int, UUID], Coroutine[Any, Any, None]]] = {
    "navigation": _navigate,
    "browsing": _browse,
    "usage": _read_answer,
    "session": _read_session,
}


class _Ticks:
    """How long the event loop was blocked at the longest.

    Of that only what this process computed: on a machine that has other work, too, each waits.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        before, computed = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now, all_computed = time.perf_counter(), time.process_time()
            still = min(now - before - TICK_SECONDS, all_computed - computed)
            self.longest = max(self.longest, still)
            before, computed = now, all_computed

    async def stop(self) -> float:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        return self.longest


def _forget_peak() -> None:
    """From here on the peak of the memory is that of what is measured."""
    Path("/proc/self/clear_refs").write_text("5")


def _resident_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _measure(url: str, part: str, size: int, asked: str) -> dict[str, float]:
    # As in a worker that is ready: what is loaded is not looked through for garbage again.
    gc.collect()
    gc.freeze()
    database = Database.connect(url, pool_size=4, name="long")
    try:
        # What a first question loads is the same whatever the session.
        is_read = part in ("usage", "session")
        await _PARTS[part](database, size if is_read else HITS, UUID(asked))
        _forget_peak()
        before, ticks, taken = _resident_mb("VmRSS"), _Ticks(), []
        for _ in range(READS if is_read else 1):
            began = time.perf_counter()
            await _PARTS[part](database, size, UUID(asked))
            taken.append(time.perf_counter() - began)
        still = await ticks.stop()
        return {
            "seconds": round(statistics.median(taken), 4),
            "grown_mb": round(_resident_mb("VmHWM") - before, 1),
            "stood_still_ms": round(still * 1000),
        }
    finally:
        await database.close()


if __name__ == "__main__":
    _url, _part, _size, _asked = sys.argv[1:]
    print(json.dumps(uvloop.run(_measure(_url, _part, int(_size), _asked))))
