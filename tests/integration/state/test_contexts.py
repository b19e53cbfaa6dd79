"""Working contexts out of the database, at any moment and position, against a plain model."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import psycopg
import pytest

from palimpsest.v1.memories_pb2 import Memory
from service.app.kinds import memories_of
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.state.working_context import as_text
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import Exhausted, FailedPrecondition, NotFound, OutOfRange
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.llm.providers.facts import ModelFacts
from service.rpc.convert.states import working_context
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.state.working_contexts import ContextReading, WorkingContexts
from storage.engine.database import Database
from storage.memories import memories
from storage.state import contexts
from storage.state.contexts import ContextBounds
from tests.integration.support.vector_rows import Keeper, append, chunk
from tests.integration.support.writing import drop_wake_ups
from tests.support.harness import Servers

SPEC = StateSpec(task="Find the key.", period=3, model="test/scripted")
KEY = b"token-key"


async def keeper(database: Database, spec: StateSpec = SPEC) -> Keeper:
    made = Keeper(database=database, spec=spec)
    await made.create()
    return made


def reader(database: Database, limits: Limits | None = None) -> WorkingContexts:
    return WorkingContexts(database, ProgressWatcher(database), KEY, limits or Limits())


def editor(database: Database) -> Editor:
    made = memories_of(database, WakeUps(drop_wake_ups), ProgressWatcher(database), KEY, Limits())
    return Editor(database, made, Limits())


async def roll_back(kept: Keeper, revision: int) -> None:
    await editor(kept.database).rollback(
        DEFAULT_TENANT, Target(session=kept.session, memory=kept.name), revision
    )
    kept.rolled_back(revision)


def check(kept: Keeper, reading: ContextReading, position: int) -> None:
    """A context is that of the model at a position."""
    context, wanted = reading.context, kept.at(position)
    assert context.state == wanted
    recent = [(step.position, step.logged.chunk) for step in context.recent]
    assert recent == [(p, chunk(p)) for p in range(wanted.applied_position + 1, position + 1)]
    assert context.head == position


async def read(kept: Keeper, position: int | None = None) -> ContextReading:
    return await reader(kept.database).read(
        DEFAULT_TENANT, kept.session, kept.name, position=position
    )


async def test_an_empty_log_has_the_task_alone(database: Database) -> None:
    kept = await keeper(database)
    for position in (None, 0):
        reading = await read(kept, position)
        check(kept, reading, 0)
        assert [one.text for one in reading.context.state.stack] == ["Find the key."]
        assert not reading.due


@pytest.mark.parametrize("period_tokens", [0, 4000])
async def test_no_context_passes_the_window_of_its_model(
    database: Database, period_tokens: int
) -> None:
    kept = await keeper(database, replace(SPEC, period=10, period_tokens=period_tokens))
    await append(database, kept.session, [chunk(1), Chunk(kind=ChunkKind.TEXT, text="ab " * 52000)])
    window = ModelFacts(window_tokens=32_000, count=estimate_tokens)
    bounded = WorkingContexts(database, ProgressWatcher(database), KEY, Limits(), lambda _: window)
    reading = await bounded.read(DEFAULT_TENANT, kept.session, kept.name)
    text = as_text(reading.context)
    assert estimate_tokens(text) <= (4100 if period_tokens else 24_000)
    assert "saw 1" in text
    assert "characters left out" in text
    assert reading.due == bool(period_tokens)
    whole = await read(kept)
    assert estimate_tokens(as_text(whole.context)) > 39_000, "what is compared and kept"


async def test_a_context_is_the_vectors_and_what_came_since(database: Database) -> None:
    kept = await keeper(database)
    await kept.append(2)
    check(kept, await read(kept), 2)
    assert not (await read(kept)).due
    await kept.append(5)
    assert (await read(kept)).due, "three steps are there"
    await kept.step(3)
    check(kept, await read(kept), 7)
    await kept.step(3)
    reading = await read(kept)
    check(kept, reading, 7)
    assert not reading.due
    assert reading.memory.revision == 2
    assert reading.context.state.current.text == "vector 2 up to 6"


@pytest.mark.parametrize("seed", range(4))
async def test_every_position_shows_what_was_there(database: Database, seed: int) -> None:
    dice = random.Random(seed)
    kept = await keeper(database, StateSpec(task="t", episode_vectors=(0, 2, 3, 2)[seed]))
    await kept.append(30)
    while kept.newest.applied_position < 26:
        if kept.newest.levels.full_level(kept.spec.episode_vectors) is not None:
            await kept.episode()
        elif dice.random() < 0.2:
            await roll_back(kept, dice.randrange(len(kept.states)))
        else:
            await kept.step(dice.randint(1, 3))
    assert len(kept.newest.stack) > 1 or not kept.spec.episode_vectors
    check(kept, await read(kept), kept.head)
    for position in range(kept.head + 1):
        check(kept, await read(kept, position), position)
    for number, wanted in enumerate(kept.states):
        reading = await reader(database).read_revision(DEFAULT_TENANT, "s", "state", number)
        assert reading.context.state == wanted
        assert reading.context.recent == []


async def test_a_rollback_restores_vectors_and_leaves_recent_chunks(
    database: Database,
) -> None:
    kept = await keeper(database, StateSpec(task="t", episode_vectors=2))
    await kept.append(9)
    for count in (2, 2):
        await kept.step(count)
    await kept.episode()
    await kept.step(2)
    assert [one.revision for one in kept.newest.stack] == [3, 4]
    await roll_back(kept, 1)
    reading = await read(kept)
    check(kept, reading, 9)
    assert [one.revision for one in reading.context.state.stack] == [1]
    assert [step.position for step in reading.context.recent] == [7, 8, 9]
    check(kept, await read(kept, 5), 5)
    await roll_back(kept, 0)
    check(kept, await read(kept), 9)
    assert reading.context.state.digest == kept.states[1].digest


async def test_a_rollback_to_a_full_level_is_looked_at(database: Database) -> None:
    kept = await keeper(database, StateSpec(task="t", period=4, episode_vectors=2))
    await kept.append(4)
    await kept.step(2)
    await kept.step(2)
    await kept.episode()
    await set_memory(kept, "has_work = false, resting = true, ready_at = now() + interval '1 day'")
    assert not (await read(kept)).due
    await roll_back(kept, 2)
    assert (await read(kept)).due
    row = await memory_row(kept, "has_work AND NOT resting AND ready_at <= now()")
    assert row is True


async def set_memory(kept: Keeper, changes: str) -> None:
    async with kept.database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(f"UPDATE memory SET {changes} WHERE memory_id = %s", (kept.key[1],))


async def memory_row(kept: Keeper, what: str) -> object:
    async with kept.database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(f"SELECT {what} FROM memory WHERE memory_id = %s", (kept.key[1],))
        return found[0][0]


async def test_flushed_and_idle_steps_are_due(
    servers: Servers, url: str, database: Database
) -> None:
    kept = await keeper(database, StateSpec(idle_ms=1_000_000))
    await kept.append(2)
    assert not (await read(kept)).due
    await set_memory(kept, "flush_position = 2")
    assert (await read(kept)).due
    assert not (await read(kept, 2)).due, "the past does not wait"
    await set_memory(kept, "flush_position = 0")
    with psycopg.connect(servers.as_superuser(url)) as owner:
        owner.execute("UPDATE chunk SET created_at = created_at - interval '20 minutes'")
    assert (await read(kept)).due
    assert not (await read(kept, 2)).due


async def test_why_nothing_happens_is_said_where_something_is_due(database: Database) -> None:
    kept = await keeper(database)
    await kept.append(3)
    held = "held_reason = 'the budget is used up', ready_at = now() + interval '1 day'"
    await set_memory(kept, held)
    assert blocked(await read(kept)).cause == "the budget is used up"
    await kept.step(3)
    assert not working_context(await read(kept), ()).HasField("blocked")
    await set_memory(kept, "held_reason = NULL, ready_at = now(), status = 'stalled'")
    await kept.append(3)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            "INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id,"
            " from_position, to_position, attempts, cause)"
            " VALUES (%s, %s, gen_random_uuid(), %s, 3, 6, 5, 'no model')",
            (*kept.key, DEFAULT_TENANT),
        )
    found = blocked(await read(kept))
    assert (found.cause, found.position, found.attempts) == ("no model", 4, 5)
    assert found.HasField("since")


def blocked(reading: ContextReading) -> Memory.Blocked:
    message = working_context(reading, ())
    assert message.compression_due
    return message.blocked


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"max_context_chunks": 4}, 4),
        ({"max_context_bytes": 44}, 44),
    ],
)
async def test_more_than_the_limits_is_refused_before_it_is_read(
    database: Database, limits: dict[str, int], limit: int
) -> None:
    kept = await keeper(database, StateSpec(task="t" * 1000, period=100))
    await append(database, "s", [Chunk(kind=ChunkKind.TEXT, text="é" * 5 + "x")] * 5)
    tight = reader(database, Limits(**limits))
    with pytest.raises(Exhausted, match="is too large: 5 chunks are recent; it may have") as seen:
        await tight.read(DEFAULT_TENANT, "s", "state")
    assert seen.value.reason is Reason.CONTEXT_TOO_LARGE
    assert seen.value.metadata == {"memory": "state", "limit": str(limit)}
    allowed = Limits(**limits)
    bounds = ContextBounds(
        chunks=allowed.max_context_chunks,
        content_bytes=allowed.max_context_bytes,
        metadata_bytes=allowed.max_message_bytes,
    )
    async with database.direct(DEFAULT_TENANT) as direct:
        found = await contexts.read_newest(direct, kept.key, bounds)
    assert found is not None
    assert (list(found.recent), found.recent_chunks, found.is_whole) == ([], 5, False)
    four = await tight.read(DEFAULT_TENANT, "s", "state", position=4)
    assert [step.position for step in four.context.recent] == [1, 2, 3, 4]
    kept.head = 5
    await kept.step(1)
    assert len((await tight.read(DEFAULT_TENANT, "s", "state")).context.recent) == 4


async def test_large_chunks_come_whole_up_to_the_limit(database: Database) -> None:
    kept = await keeper(database, StateSpec(task="t", period=100))
    texts = [str(n) + "é" * (128 * 1024 - 1) for n in range(4)]
    chunks = [Chunk(kind=ChunkKind.TEXT, text=one) for one in texts]
    assert sum(one.content_bytes() for one in chunks) == 1024 * 1024 - 4
    await append(database, "s", chunks)
    assert [step.text for step in (await read(kept)).context.recent] == texts
    more = Chunk(kind=ChunkKind.MESSAGE, role="me", text="no")
    await append(database, "s", [more], 5)
    assert more.content_bytes() == 4
    assert len((await read(kept)).context.recent) == 5
    await append(database, "s", [Chunk(kind=ChunkKind.TEXT, text="x")], 6)
    with pytest.raises(Exhausted, match="it may have 1048576 bytes"):
        await read(kept)


async def test_a_long_backlog_is_not_read(database: Database) -> None:
    kept = await keeper(database, StateSpec(task="t", period=10))
    await kept.append(10_001)
    with pytest.raises(Exhausted, match="10001 chunks are recent; it may have 10000 chunks"):
        await read(kept)
    await kept.step(10)
    assert (await read(kept)).context.head == 10_001


@pytest.mark.prove
async def test_nothing_is_missing_or_repeated_while_others_write(database: Database) -> None:
    kept = await keeper(database, StateSpec(task="t", episode_vectors=3))
    stop = asyncio.Event()

    async def writes() -> None:
        for _ in range(40):
            await kept.append(3)
            await kept.step(2)
            if kept.newest.levels.full_level(3) is not None:
                await kept.episode()
        stop.set()

    async def reads() -> Sequence[ContextReading]:
        seen = []
        while not stop.is_set():
            seen.append(await read(kept))
        return seen

    _, *readings = await asyncio.gather(writes(), reads(), reads())
    seen = [one for found in readings for one in found]
    assert len({one.context.state.revision for one in seen}) > 3
    for one in seen:
        state = one.context.state
        assert state == kept.states[state.revision]
        positions = [step.position for step in one.context.recent]
        assert positions == list(range(state.applied_position + 1, one.memory.head + 1))


async def test_a_compression_between_two_reads_moves_the_border_alone(database: Database) -> None:
    kept = await keeper(database)
    await kept.append(4)
    before = await read(kept)
    await kept.step(3)
    after = await read(kept)
    assert before.context.recent[3:] == after.context.recent
    assert before.token == after.token, "both stand for the log up to its head"
    assert (await read(kept, 2)).token != after.token


async def test_what_is_not_there_is_refused(database: Database) -> None:
    kept = await keeper(database)
    await kept.append(3)
    contexts_ = reader(database)
    with pytest.raises(NotFound) as unknown:
        await contexts_.read(DEFAULT_TENANT, "s", "other")
    assert unknown.value.reason is Reason.MEMORY_NOT_FOUND
    with pytest.raises(NotFound) as unknown:
        await contexts_.read(DEFAULT_TENANT, "other", "state")
    assert unknown.value.reason is Reason.SESSION_NOT_FOUND
    for position in (4, 2**63 - 1):
        with pytest.raises(OutOfRange) as beyond:
            await contexts_.read(DEFAULT_TENANT, "s", "state", position=position)
        assert beyond.value.reason is Reason.POSITION_NOT_APPLIED
        assert beyond.value.metadata == {"position": str(position), "applied_position": "3"}
    for revision in (1, 2**64 - 1):
        with pytest.raises(OutOfRange) as beyond:
            await contexts_.read_revision(DEFAULT_TENANT, "s", "state", revision)
        assert beyond.value.reason is Reason.REVISION_NOT_FOUND
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=kept.key[0],
            memory_id=memory_id(kept.key[0], "tree"),
            name="tree",
            spec=TreeSpec(),
            head=3,
            digest=b"",
        )
    for at in (None, 1):
        with pytest.raises(FailedPrecondition) as other:
            await contexts_.read(DEFAULT_TENANT, "s", "tree", position=at)
        assert other.value.reason is Reason.WRONG_MEMORY_KIND
        assert other.value.metadata["wanted"] == "state"
