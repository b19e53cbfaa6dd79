"""Keeping state memories, on a real database with a model that follows a script."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from statistics import median
from time import perf_counter

import psycopg
import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.state.spec import Period, StateSpec
from service.domain.state.triggers import SizedStep, due
from service.domain.state.vectors import VectorSource
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from storage.engine.database import Database
from storage.log import chunks as log
from storage.memories import flushing
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    STATE,
    TREE,
    Script,
    add_memory,
    make,
    prism_method,
    read,
    state_method,
    tree_method,
)
from tests.integration.support.stepping import (
    Plain,
    append_steps,
    assert_follows_log,
    lines_of,
    row_of,
    step,
    vectors_of,
)
from tests.integration.support.writing import append_chunks, append_texts
from tests.support.contents import CompressStepsContent, content_of
from tests.support.harness import Servers


async def drained(database: Database, script: Script) -> None:
    assert await state_method(database, script).drain(ITEM) is None


async def flush(database: Database, position: int) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await flushing.flush(tx, KEY, MEMORY, position)


async def steps_of(database: Database) -> Sequence[SizedStep]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [SizedStep.of(chunk) for chunk in await log.read(tx, KEY, 0, 100_000)]


async def assert_follows(database: Database, script: Script, spec: StateSpec) -> Plain:
    """That the worker's memory is the one that the plain model makes of the same log."""
    plain = Plain(spec, iter(script.asked))
    for one in await steps_of(database):
        plain.read(one.position, one.text)
    await assert_follows_log(database, ITEM, plain)
    assert not (await row_of(database)).has_work
    return plain


@pytest.mark.parametrize(
    ("period", "steps", "calls"),
    [(3, 0, 0), (3, 1, 0), (3, 2, 0), (3, 3, 1), (3, 4, 1), (3, 17, 5), (1, 5, 5), (10, 30, 3)],
)
async def test_n_steps_and_m_become_the_new_m(
    database: Database, period: int, steps: int, calls: int
) -> None:
    await make(database, [], STATE, period=period)
    if steps:
        await append_steps(database, steps)
    script = Script()
    await drained(database, script)
    assert len(script.asked) == calls
    plain = await assert_follows(database, script, replace(STATE, period=period))
    assert len(plain.recent) == steps % period
    await drained(database, script)
    assert len(script.asked) == calls, "nothing is left"


@pytest.mark.parametrize("batches", [[1] * 10, [2, 5, 1, 2], [7, 3], [3, 3, 3, 1]])
async def test_it_is_the_same_however_the_steps_come(
    database: Database, batches: list[int]
) -> None:
    await make(database, [], STATE)
    script = Script()
    sent = 0
    for batch in batches:
        await append_steps(database, batch, first=sent + 1)
        sent += batch
        await drained(database, script)
    await assert_follows(database, script, STATE)


async def test_several_producers_are_read_in_the_order_of_the_log(database: Database) -> None:
    await make(database, [], STATE)
    script = Script()
    for number in range(1, 9):
        for producer in ("ann", "bob"):
            await append_chunks(database, "s", [step(number)], first=number, producer=producer)
        await drained(database, script)
    await assert_follows(database, script, STATE)


async def test_messages_and_texts_are_steps_too(database: Database) -> None:
    await make(database, [], STATE)
    chunks = [
        Chunk(kind=ChunkKind.MESSAGE, role="user", text="Where is the town?"),
        step(2),
        Chunk(kind=ChunkKind.TEXT, text="It lies behind the hill."),
    ]
    await append_chunks(database, "s", chunks)
    script = Script()
    await drained(database, script)
    await assert_follows(database, script, STATE)
    (ask,) = script.asked
    assert "user: Where is the town?" in ask.text
    assert "It lies behind the hill." in ask.text


async def test_a_memory_that_is_made_later_reads_the_log_from_its_beginning(
    database: Database,
) -> None:
    await make(database, [f"Sign {n} says so." for n in range(1, 200)], STATE)
    script = Script()
    await drained(database, script)
    await assert_follows(database, script, STATE)


async def test_a_step_larger_than_the_window_is_read_whole(database: Database) -> None:
    large = " ".join(f"word{n}" for n in range(40_000))[: 256 * 1024]
    await make(database, ["Before it.", large, "Behind it."], STATE)
    script = Script()
    await state_method(database, script, window=8192).drain(ITEM)
    asks = [content_of(ask) for ask in script.asked]
    assert len(asks) > 8
    pieces = [piece for one in asks if isinstance(one, CompressStepsContent) for piece in one.steps]
    assert "".join(text for position, text in pieces if position == 2) == large
    assert [position for position, _ in pieces] == sorted(position for position, _ in pieces)
    assert await lines_of(database) == [(1, "step", 0, 3)]
    (vector,) = await vectors_of(database)
    assert vector.replies == len(asks)


async def test_positions_of_vectors(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 9)
    await drained(database, Script())
    found = [(one.after_position, one.from_position, one.to_position, one.made, one.level)
             for one in await vectors_of(database)]  # fmt: skip
    assert found == [(0, n, n + 3, VectorSource.MODEL, 1) for n in (0, 3, 6)]


async def test_pinned_strings_are_in_every_vector(database: Database) -> None:
    spec = replace(STATE, pinned=("Key 7714",))
    await make(database, [], spec)
    await append_steps(database, 6)
    await drained(database, Script())
    for vector in await vectors_of(database):
        assert "Key 7714" in vector.text
        assert vector.appended == ("Key 7714",)


@pytest.mark.parametrize(
    "changes",
    [
        {"period": 50, "period_tokens": 40},
        {"period": 8, "period_kind": Period.ADAPTIVE, "state_tokens": 32},
        {"period": 3, "period_tokens": 100, "period_kind": Period.ADAPTIVE},
    ],
)
async def test_steps_are_due_as_the_triggers_say(
    database: Database, changes: dict[str, object]
) -> None:
    spec = replace(STATE, **changes)  # type: ignore[arg-type]
    await make(database, [], spec)
    script = Script()
    for first, batch in ((1, 1), (2, 30), (32, 2), (34, 47)):
        await append_steps(database, batch, first=first)
        await drained(database, script)
    left, known, expected = list(await steps_of(database)), spec.task, [0]
    for vector in await vectors_of(database):
        number = due(spec, known, left)
        assert number is not None
        expected.append(left[number - 1].position)
        known, left = vector.text, left[number:]
    assert due(spec, known, left) is None
    assert len(expected) > 3
    kinds = [(n, "step", a, b) for n, (a, b) in enumerate(pairwise(expected), start=1)]
    assert await lines_of(database) == kinds


async def test_a_flush_compresses_what_is_recent(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 4)
    script = Script()
    await drained(database, script)
    assert not (await row_of(database)).has_work
    await flush(database, 4)
    assert (await row_of(database)).has_work
    await drained(database, script)
    assert await lines_of(database) == [(1, "step", 0, 3), (2, "step", 3, 4)]
    await append_steps(database, 4, first=5)
    await drained(database, script)
    assert (await lines_of(database))[2:] == [(3, "step", 4, 7)], "the next period begins anew"


async def test_a_flush_takes_in_no_step_after_it(database: Database) -> None:
    await make(database, [], STATE, period=100)
    await append_steps(database, 90)
    await flush(database, 70)
    script = Script()
    await drained(database, script)
    assert await lines_of(database) == [(1, "step", 0, 70)]


async def test_a_flush_while_the_model_thinks_is_seen(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 4)

    async def press() -> None:
        script.meanwhile = None
        await flush(database, 4)

    script = Script(meanwhile=press)
    assert await state_method(database, script).drain(ITEM) == 0.0
    await drained(database, script)
    assert await lines_of(database) == [(1, "step", 0, 3), (2, "step", 3, 4)]


async def test_a_memory_at_rest_is_woken_when_enough_has_come(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 1)
    script = Script()
    await drained(database, script)
    row = await row_of(database)
    assert (row.has_work, row.resting, row.wake_position) == (False, False, 3)
    await append_steps(database, 1, first=2)
    assert not (await row_of(database)).has_work
    await append_steps(database, 1, first=3)
    assert (await row_of(database)).has_work
    await drained(database, script)
    row = await row_of(database)
    assert (row.has_work, row.wake_position) == (False, 6)


IDLE = replace(STATE, period=10, idle_ms=3_600_000)


@pytest.fixture
def age(servers: Servers, url: str) -> Callable[[int], None]:
    """Makes the first chunks, and what waits for the session to be idle, two hours older."""

    def make_older(upto: int) -> None:
        with psycopg.connect(servers.as_superuser(url)) as connection:
            connection.execute(
                "UPDATE chunk SET created_at = created_at - interval '2 hours'"
                " WHERE position <= %s",
                (upto,),
            )
            connection.execute(
                "UPDATE memory SET ready_at = ready_at - interval '2 hours' WHERE resting"
            )

    return make_older


async def test_an_idle_session_is_compressed(
    database: Database, age: Callable[[int], None]
) -> None:
    await make(database, [], IDLE)
    script = Script()
    await drained(database, script)
    assert not (await row_of(database)).has_work
    await append_steps(database, 2)
    assert (await row_of(database)).has_work, "the first step begins the wait"
    await drained(database, script)
    row = await row_of(database)
    last = (await steps_of(database))[-1].logged.created_at
    assert (row.has_work, row.resting) == (True, True)
    assert row.ready_at == last + timedelta(hours=1)
    await drained(database, script)
    assert script.asked == []
    age(2)
    await drained(database, script)
    assert await lines_of(database) == [(1, "step", 0, 2)]
    row = await row_of(database)
    assert (row.has_work, row.resting) == (False, False)


async def test_a_step_since_lets_a_memory_wait_longer_for_an_idle_session(
    database: Database, age: Callable[[int], None]
) -> None:
    await make(database, [], IDLE)
    await append_steps(database, 1)
    script = Script()
    await drained(database, script)
    await append_steps(database, 1, first=2)
    age(0)
    await drained(database, script)
    row = await row_of(database)
    last = (await steps_of(database))[-1].logged.created_at
    assert (script.asked, row.resting, row.ready_at) == ([], True, last + timedelta(hours=1))


async def test_a_memory_that_waits_for_an_idle_session_is_woken_by_enough_steps(
    database: Database,
) -> None:
    await make(database, [], IDLE)
    await append_steps(database, 2)
    script = Script()
    await drained(database, script)
    assert (await row_of(database)).resting
    await append_steps(database, 8, first=3)
    row = await row_of(database)
    assert (row.has_work, row.resting) == (True, False)
    assert row.ready_at <= row.now
    await drained(database, script)
    assert await lines_of(database) == [(1, "step", 0, 10)]
    assert not (await row_of(database)).has_work, "nothing is recent"


async def test_a_memory_that_waits_for_an_idle_session_is_woken_by_any_step_where_tokens_count(
    database: Database,
) -> None:
    await make(database, [], IDLE, period_tokens=1000)
    await append_steps(database, 2)
    script = Script()
    await drained(database, script)
    assert (await row_of(database)).resting
    await append_steps(database, 1, first=3)
    row = await row_of(database)
    assert (row.has_work, row.resting, row.ready_at <= row.now) == (True, False, True)


async def test_a_memory_that_waits_for_an_idle_session_is_woken_by_a_flush(
    database: Database,
) -> None:
    await make(database, [], IDLE)
    await append_steps(database, 2)
    script = Script()
    await drained(database, script)
    await flush(database, 2)
    row = await row_of(database)
    assert (row.resting, row.ready_at <= row.now) == (False, True)
    await drained(database, script)
    assert await lines_of(database) == [(1, "step", 0, 2)]


async def test_a_gap_in_the_log_separates_steps_although_no_worker_saw_it(
    database: Database, age: Callable[[int], None]
) -> None:
    await make(database, [], IDLE)
    await append_steps(database, 65)
    age(65)
    await append_steps(database, 2, first=66)
    await drained(database, Script())
    assert (await lines_of(database))[-1] == (7, "step", 60, 65)
    assert (await row_of(database)).resting


async def test_steps_of_one_idle_time_are_one_group_whatever_a_look_finds(
    database: Database, age: Callable[[int], None]
) -> None:
    await make(database, [], IDLE, period=200)
    await append_steps(database, 150)
    age(150)
    await drained(database, Script())
    assert await lines_of(database) == [(1, "step", 0, 150)]


async def test_steps_that_come_while_the_model_thinks(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 3)

    async def append() -> None:
        script.meanwhile = None
        await append_steps(database, 5, first=4)

    script = Script(meanwhile=append)
    await drained(database, script)
    await assert_follows(database, script, STATE)


async def test_a_state_memory_beside_others(database: Database) -> None:
    await make(database, [], STATE)
    prism, tree = memory_id(KEY, "facts"), memory_id(KEY, "book")
    await add_memory(database, prism, "facts", SPEC, head=0)
    await add_memory(database, tree, "book", TREE, head=0)
    await append_texts(database, "s", [f"Sign {n} says so. " * 4 for n in range(1, 21)])
    script = Script()
    assert await state_method(database, Script()).drain(replace(ITEM, item_id=prism)) is None
    assert await tree_method(database, Script()).drain(ITEM) is None, "each takes its own kind"
    await prism_method(database, Script()).drain(replace(ITEM, item_id=prism))
    await tree_method(database, Script()).drain(replace(ITEM, item_id=tree))
    await drained(database, script)
    await assert_follows(database, script, STATE)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch("SELECT name, applied_position FROM memory")
        assert {row.name: row.applied_position for row in rows} == {
            "m": 18,
            "facts": 20,
            "book": 20,
        }


async def test_draining_gives_others_their_turn(database: Database) -> None:
    await make(database, [], STATE)
    await append_steps(database, 9)
    stop = asyncio.Event()
    stop.set()
    assert await state_method(database, Script()).drain(ITEM, stop=stop) == 0.0
    assert (await read(database)).applied_position == 0


@pytest.mark.prove
@pytest.mark.timeout(1800)
async def test_a_session_of_ten_thousand_steps(database: Database) -> None:
    spec = replace(STATE, period=10)
    await make(database, [], spec)
    await append_steps(database, 10_000)
    script, began = Script(), [perf_counter()]

    async def tick() -> None:
        began.append(perf_counter())

    script.meanwhile = tick
    while await state_method(database, script).drain(ITEM) is not None:
        pass  # its turn was up
    assert len(script.asked) == 1000
    await assert_follows(database, script, spec)
    each = [b - a for a, b in pairwise(began)]
    parts = [median(each[start : start + 100]) * 1000 for start in (1, 450, 900)]
    print("ms per compression at the beginning, in the middle, at the end:", parts)
    async with database.transaction(DEFAULT_TENANT) as tx:
        counted = await tx.fetch(
            "SELECT (SELECT count(*) FROM state_vector), (SELECT count(*) FROM state_levels),"
            " (SELECT count(*) FROM revision), (SELECT count(*) FROM call),"
            " (SELECT count(*) FROM intent)"
        )
        assert tuple(counted[0]) == (1001, 1001, 1001, 1000, 0)
