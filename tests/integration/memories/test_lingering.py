"""The default of `linger`: messages wait for more of them, but not while a reader waits."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import palimpsest
from service.app.kinds import memories_of
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.log.read_tokens import ReadToken
from service.domain.prism.spec import MEMORY_TOKENS, SERVICE_LINGER_MS, PrismSpec
from service.domain.values.memory_specs import ReaderName
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem
from service.settings.config import Limits
from service.usecases.answers.ask import Asker
from service.usecases.answers.interest import Interest
from service.usecases.answers.questions import Question
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.memories import MemoryReading
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.memories import flushing, revisions
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    Script,
    add_memory,
    make,
    prism_method,
    read,
)
from tests.integration.support.statements import statements
from tests.integration.support.writing import append_chunks
from tests.support.harness import Servers, api, eventually, worker

TOKEN_KEY = b"token-key"
MESSAGE = Chunk(kind=ChunkKind.MESSAGE, role="user", text="I moved to Bern.")
OTHERS = [
    Chunk(kind=ChunkKind.TEXT, text="A page."),
    Chunk(kind=ChunkKind.STEP, action="look", observation="nothing"),
]
SERVICE: dict[str, Any] = {"chunk_tokens": 1000, "linger_ms": SERVICE_LINGER_MS}
#: Longer than any test: what is applied anyway did not wait.
ENDLESS = CONFIG.model_copy(update={"message_linger_seconds": 3600.0})


async def say(database: Database, *chunks: Chunk, first: int = 1) -> None:
    await append_chunks(database, "s", chunks or [MESSAGE], first=first)


async def row(database: Database) -> tuple[Any, ...]:
    """Returns what a write to the memory changes, and what a flush does."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(
            "SELECT xmin::text, flush_position, epoch, ready_at <= now() FROM memory"
            " WHERE memory_id = %s",
            (MEMORY,),
        )
        return tuple(found[0])


# What waits


async def test_messages_wait_for_more_of_them(database: Database) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    script = Script()
    assert await prism_method(database, script).drain(ITEM) == CONFIG.message_linger_seconds / 4
    assert script.asked == []


@pytest.mark.parametrize("other", OTHERS, ids=["text", "step"])
async def test_what_is_no_message_is_read_at_once_with_those_before_it(
    database: Database, other: Chunk
) -> None:
    await make(database, [], **SERVICE)
    await say(database, MESSAGE, other)
    script = Script()
    assert await prism_method(database, script, ENDLESS).drain(ITEM) is None
    assert len(script.asked) == 1
    assert (await read(database)).applied_position == 2


@pytest.mark.parametrize("chunk", [MESSAGE, *OTHERS])
async def test_a_memory_that_says_how_long_waits_so_long_for_everything(
    database: Database, chunk: Chunk
) -> None:
    await make(database, [], chunk_tokens=1000, linger_ms=8000)
    await say(database, chunk)
    assert await prism_method(database, Script(), ENDLESS).drain(ITEM) == 2.0


async def test_a_memory_that_says_nought_does_not_wait(database: Database) -> None:
    await make(database, [], chunk_tokens=1000, linger_ms=0)
    await say(database)
    assert await prism_method(database, Script(), ENDLESS).drain(ITEM) is None
    assert (await read(database)).applied_position == 1


async def test_the_operator_may_turn_it_off(database: Database) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    never = CONFIG.model_copy(update={"message_linger_seconds": 0.0})
    assert await prism_method(database, Script(), never).drain(ITEM) is None
    assert (await read(database)).applied_position == 1


async def test_the_wait_ends_with_its_time(database: Database) -> None:
    await make(database, [], **SERVICE)
    await say(database, MESSAGE, MESSAGE)
    short = CONFIG.model_copy(update={"message_linger_seconds": 0.001})
    script = Script()
    assert await prism_method(database, script, short).drain(ITEM) is None
    assert (await read(database)).applied_position == 2
    assert len(script.asked) == 1


# What earlier releases stored


async def test_a_memory_of_an_earlier_release_stays_as_it_was(database: Database) -> None:
    stored = SPEC.to_json()
    assert not {"memory_tokens", "linger_ms"} & stored.keys()
    old = PrismSpec.from_json(stored)
    assert (old.memory_tokens, old.linger_ms) == (0, 0)
    large = "word " * (2 * MEMORY_TOKENS)
    await make(database, [], replace(old, chunk_tokens=100_000), task="old")
    await say(database, MESSAGE)

    def reply(*_: object) -> str:
        return f'[OBJECTS FOR ADD]\n{{"$.topics.t": {{"add": "{large}"}}}}'

    script = Script(reply=reply)
    await prism_method(database, script, ENDLESS, window=100_000).drain(ITEM)
    await say(database, MESSAGE, first=2)
    script.reply = lambda *_: '{"changes": []}'
    await prism_method(database, script, ENDLESS, window=100_000).drain(ITEM)
    # It neither waited nor was made smaller, though it is larger than a new one may be.
    assert [one.purpose.value for one in script.asked] == ["revise", "revise"]


# What ends the wait


@pytest.fixture
async def watcher(database: Database) -> AsyncIterator[ProgressWatcher]:
    made = ProgressWatcher(database)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Woken:
    """Returns the memories and answers that workers are notified of."""

    def __init__(self) -> None:
        self.items: list[WorkItem] = []
        self.wake_ups = WakeUps(self._wake_up)

    async def _wake_up(self, items: Any) -> None:
        self.items += items

    async def memories(self) -> list[UUID]:
        """Returns those so far."""
        await self.wake_ups.flush()
        return [one.item_id for one in self.items if one.kind.value == "memory"]


def token(position: int) -> Consistency:
    made = ReadToken(session_key=KEY, incarnation=1, position=position).sign(TOKEN_KEY)
    return Consistency(at_least=made)


def reading(
    database: Database, watcher: ProgressWatcher, woken: Woken, consistency: Consistency
) -> "asyncio.Task[MemoryReading]":
    memories = memories_of(database, woken.wake_ups, watcher, TOKEN_KEY, Limits())
    return asyncio.create_task(memories.read(DEFAULT_TENANT, "s", "m", consistency, deadline=None))


async def until_flushed(database: Database, position: int) -> None:
    while (await row(database))[1] < position:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("linger_ms", [SERVICE_LINGER_MS, 3_600_000])
@pytest.mark.parametrize("consistency", [token(1), Consistency(fully_applied=True)])
async def test_a_read_that_waits_ends_the_wait(
    database: Database, watcher: ProgressWatcher, consistency: Consistency, linger_ms: int
) -> None:
    await make(database, [], chunk_tokens=1000, linger_ms=linger_ms)
    await say(database)
    works, woken = prism_method(database, Script(), ENDLESS), Woken()
    assert await works.drain(ITEM) == 900.0
    assert await works.drain(ITEM) is None, "it is not ready"
    task = reading(database, watcher, woken, consistency)
    await until_flushed(database, 1)
    assert (await row(database))[3], "it is ready at once"
    while not await woken.memories():
        await asyncio.sleep(0.01)
    assert await woken.memories() == [MEMORY]
    assert await works.drain(ITEM) is None
    assert (await task).applied_position == 1


async def test_a_read_ends_the_wait_of_messages_that_are_read_after_a_text(
    database: Database, watcher: ProgressWatcher
) -> None:
    await make(database, [], **{**SERVICE, "chunk_tokens": 1})
    await say(database, OTHERS[0], MESSAGE)
    task = reading(database, watcher, Woken(), token(2))
    await until_flushed(database, 2)
    assert await prism_method(database, Script(), ENDLESS).drain(ITEM) is None
    assert (await task).applied_position == 2


async def test_who_waits_for_the_same_writes_once(
    database: Database, watcher: ProgressWatcher
) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    works, woken = prism_method(database, Script(), ENDLESS), Woken()
    await works.drain(ITEM)
    tasks = [reading(database, watcher, woken, token(1))]
    await until_flushed(database, 1)
    written = await row(database)
    with statements() as sent:
        tasks += [reading(database, watcher, woken, token(1)) for _ in range(5)]
        # Several looks after them, none of which writes.
        await asyncio.sleep(0.3)
    assert await row(database) == written
    assert len([one for one in sent if one.startswith("UPDATE")]) == 5, "once for each read"
    await works.drain(ITEM)
    assert {one.applied_position for one in await asyncio.gather(*tasks)} == {1}
    assert await woken.memories() == [MEMORY]


@pytest.mark.parametrize(
    ("linger_ms", "chunk"), [(0, MESSAGE), *((SERVICE_LINGER_MS, other) for other in OTHERS)]
)
async def test_a_memory_that_does_not_wait_is_not_written_to(
    database: Database, watcher: ProgressWatcher, linger_ms: int, chunk: Chunk
) -> None:
    await make(database, [], chunk_tokens=1000, linger_ms=linger_ms)
    await say(database, chunk)
    before, woken = await row(database), Woken()
    task = reading(database, watcher, woken, Consistency(fully_applied=True))
    await asyncio.sleep(0.2)
    for _ in range(2):
        await ask(database, watcher, woken, "m", "")
    assert await row(database) == before
    assert await woken.memories() == []
    await prism_method(database, Script(), ENDLESS).drain(ITEM)
    assert (await task).applied_position == 1


async def test_a_worker_that_is_about_to_wait_does_not(
    database: Database, watcher: ProgressWatcher
) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
        (now,) = (await tx.fetch("SELECT now()"))[0]
    assert held is not None
    task = reading(database, watcher, Woken(), token(1))
    await until_flushed(database, 1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        due = now + timedelta(hours=1)
        assert not await revisions.linger(tx, held, due=due, look_seconds=900.0)
    await prism_method(database, Script(), ENDLESS).drain(ITEM)
    assert (await task).applied_position == 1


async def test_a_read_in_the_middle_of_a_step_takes_nothing_from_its_worker(
    database: Database, watcher: ProgressWatcher
) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    script = Script()
    tasks: list[asyncio.Task[MemoryReading]] = []

    async def meanwhile() -> None:
        if not tasks:
            await say(database, first=2)
            tasks.append(reading(database, watcher, Woken(), token(2)))
            await until_flushed(database, 2)

    script.meanwhile = meanwhile
    works = prism_method(database, script, ENDLESS)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await flushing.end_wait(tx, KEY, MEMORY, 1)
    assert await works.drain(ITEM) is None, "the second message does not wait either"
    assert (await tasks[0]).applied_position == 2
    assert (await row(database))[2] == 1, "it was taken once"
    assert len(script.asked) == 2


async def ask(
    database: Database,
    watcher: ProgressWatcher,
    woken: Woken,
    memory: str,
    reader: str,
    **said: Any,
) -> Any:
    """Returns the first event of a question."""
    interest = Interest(database, seconds=60)
    asker = Asker(database, woken.wake_ups, watcher, TOKEN_KEY, ConcurrencyLimiter(10), interest)
    asked = Question(
        session="s",
        memory=memory,
        query="Where?",
        consistency=said.get("consistency", Consistency()),
        reader=ReaderName(reader) if reader else None,
    )
    async with aclosing(asker.ask(DEFAULT_TENANT, asked, deadline=None)) as told:
        return await anext(told)


@pytest.mark.parametrize(
    ("memory", "reader", "ends"),
    [
        ("m", "", True),
        ("m", "prism", True),
        ("m", "auto", True),
        ("", "", True),
        ("", "auto", True),
        ("", "whole", False),
        ("", "dciso", False),
    ],
)
async def test_a_question_ends_the_wait_of_what_it_may_read(
    database: Database, watcher: ProgressWatcher, memory: str, reader: str, ends: bool
) -> None:
    await make(database, [], **SERVICE)
    await add_memory(database, memory_id(KEY, "other"), "other", replace(SPEC, linger_ms=0), head=0)
    await say(database)
    woken = Woken()
    await prism_method(database, Script(), ENDLESS).drain(ITEM)
    told = await ask(database, watcher, woken, memory, reader)
    assert told.applied_position == (0 if memory and reader != "auto" else 1), "it does not wait"
    assert await woken.memories() == ([MEMORY] if ends else [])
    assert (await row(database))[3] == ends
    script = Script()
    await prism_method(database, script, ENDLESS).drain(ITEM)
    assert len(script.asked) == ends


async def test_a_question_that_waits_for_its_memory_ends_the_wait(
    database: Database, watcher: ProgressWatcher
) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    works, woken = prism_method(database, Script(), ENDLESS), Woken()
    await works.drain(ITEM)
    told = await ask(database, watcher, woken, "m", "", consistency=token(1))
    assert told.wanted_position == 1
    assert await woken.memories() == [MEMORY]
    await works.drain(ITEM)
    assert (await read(database)).applied_position == 1


async def test_a_memory_whose_step_failed_keeps_waiting_for_its_next_try(
    database: Database, watcher: ProgressWatcher
) -> None:
    await make(database, [], **SERVICE)
    await say(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("UPDATE memory SET attempts = 1, ready_at = now() + interval '1 hour'")
    task = reading(database, watcher, Woken(), token(1))
    await until_flushed(database, 1)
    assert not (await row(database))[3]
    task.cancel()


# The service as a whole


@pytest.fixture(scope="module")
def patient(servers: Servers) -> Iterator[str]:
    """Yields a service in which messages would wait for an hour."""
    url = servers.new_database()
    setting = {"PALIMPSEST_MESSAGE_LINGER_SECONDS": "3600"}
    with api(url) as (_, address), worker(url, **setting, **servers.redis_settings()):
        yield address


SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"


async def talk(session: palimpsest.Session, *texts: str) -> str:
    async with session.producer(f"p-{uuid4().hex}") as producer:
        for text in texts:
            await producer.append_message("user", text)
        ack = await producer.flush()
    assert ack is not None
    return ack.read_token


async def test_what_is_not_said_is_shown_back(patient: str) -> None:
    async with palimpsest.connect(patient) as client:
        session = await client.create_session(f"l-{uuid4().hex}")
        memory = await session.create_memory("m", SCHEMA)
        info = (await memory.get()).info
        assert (info.memory_tokens, info.linger_seconds) == (MEMORY_TOKENS, None)
        at_once = await session.create_memory("n", SCHEMA, linger=0, memory_tokens=1_000_000)
        info = (await at_once.get()).info
        assert (info.memory_tokens, info.linger_seconds) == (1_000_000, 0.0)
        again = await session.create_memory("m", SCHEMA, exist_ok=True)
        assert (await again.get()).info.linger_seconds is None


async def test_waiting_reads_see_the_messages_and_others_do_not_end_the_wait(patient: str) -> None:
    async with palimpsest.connect(patient) as client:
        session = await client.create_session(f"l-{uuid4().hex}")
        memory = await session.create_memory("m", SCHEMA)
        said = await talk(session, "My sister lives in Bern.", "She has a boat.")
        assert (await memory.get()).applied_position == 0
        assert (await memory.get(after=said)).applied_position == 2
        await talk(session, "The boat is red.")
        assert (await memory.get(fully_applied=True)).applied_position == 3
        steps = [one async for one in memory.revisions() if one.kind == "step"]
        read = [(1, 2), (3, 3)]
        assert [one.positions for one in steps] == [
            palimpsest.PositionRange(first=first, last=last) for first, last in read
        ]
        said = await talk(session, "The boat is new.")
        answer = await memory.ask("What colour is the boat?", after=said)
        assert answer.read_point.applied_position == 4
        await talk(session, "The boat has a sail.")
        flushed = await memory.flush()
        assert (await memory.get(after=flushed.read_token)).applied_position == 5


async def test_a_question_ends_the_wait_for_more_messages(patient: str) -> None:
    async with palimpsest.connect(patient) as client:
        session = await client.create_session(f"l-{uuid4().hex}")
        memory = await session.create_memory("m", SCHEMA)
        await talk(session, "My sister lives in Bern.")
        await memory.ask("Where does my sister live?")
        # No read waits with a token: the question alone has ended the wait.
        while (await memory.get()).applied_position < 1:
            await asyncio.sleep(0.05)
        assert (await memory.get()).revision == 1


async def test_a_rebuilt_memory_does_not_wait(patient: str) -> None:
    async with palimpsest.connect(patient) as client:
        session = await client.create_session(f"l-{uuid4().hex}")
        memory = await session.create_memory("m", SCHEMA)
        await talk(session, "My sister lives in Bern.")
        rebuild = await memory.rebuild("n")
        assert (await rebuild.wait()).applied_position == 1
        assert (await memory.get()).applied_position == 0


def test_the_wait_ends_by_itself_when_the_conversation_does(servers: Servers) -> None:
    url = servers.new_database()

    async def say_and_leave(address: str) -> None:
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            await session.create_memory("m", SCHEMA)
            await talk(session, "My sister lives in Bern.")

    async def applied(address: str) -> int:
        async with palimpsest.connect(address) as client:
            return (await client.session("s").memory("m").get()).applied_position

    with api(url) as (_, address):
        asyncio.run(say_and_leave(address))
        short = ("PALIMPSEST_MESSAGE_LINGER_SECONDS", "PALIMPSEST_SMALL_TALK_LINGER_SECONDS")
        with worker(url, **dict.fromkeys(short, "0.5")):
            eventually("the message is read", lambda: asyncio.run(applied(address)) == 1)
