"""Retention removes what is over, and nothing else; dates in rows are the clock."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from service.app.kinds import memories_of, use_cases
from service.domain.answers.trajectory import Action, Event, EventKind
from service.domain.operations.retention import Retention
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import LeafText, Text
from service.domain.values import fault_hook
from service.domain.values.errors import AlreadyExists, FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.answers.readers.tree_reading import TreeReader
from service.usecases.log import sessions as session_usecase
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations import retention as usecase
from service.usecases.operations.deleting import Remover
from service.usecases.operations.retention import Retainer
from service.usecases.operations.verify import LocatedDifference, Verifier
from service.usecases.search.index import Indexer
from storage.answers import answers, trajectories
from storage.engine.database import Database
from storage.log import retention_turns
from storage.log.retention_turns import TurnLost
from storage.memories import memories as stored_memories
from storage.search import posting_lists
from storage.spend import sums
from tests.integration.support.crashing import Killed
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    TREE,
    Script,
    add_memory,
    make,
    prism_method,
    read,
    summary_reply,
    tree_method,
)
from tests.integration.support.stored_answers import read_answer, store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.harness import Servers

Sql = Any


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator[Sql]:
    """Yields what runs a statement as the superuser, and returns its rows."""
    connection = await psycopg.AsyncConnection.connect(servers.as_superuser(url), autocommit=True)

    async def run(statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = await connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []

    async with connection:
        yield run


async def age(admin: Sql, table: str, days: int, which: str = "true") -> None:
    """Makes rows so many days older."""
    older = f"created_at = created_at - make_interval(days => {days})"
    await admin(f"UPDATE {table} SET {older} WHERE {which}")


async def retain(database: Database, session: str = "s", **days: int) -> None:
    await session_usecase.update(
        database, DEFAULT_TENANT, session, metadata=None, retention=Retention(**days), etag=""
    )


async def run(database: Database, admin: Sql) -> None:
    """Runs one pass now."""
    await admin("UPDATE retention_turn SET ready_at = now()")
    await Retainer(database, WakeUps(drop_wake_ups), b"token-key", CONFIG).look()
    assert (
        await admin("SELECT 1 FROM retention_turn WHERE ended_at IS NULL OR after_name <> ''") == []
    )


async def run_killed(database: Database, admin: Sql, step: str) -> None:
    """Begins what `run` does, and ends it at the second removal: at its `commit` or `committed`."""
    passed = 0

    def kill(boundary: str) -> None:
        nonlocal passed
        passed += boundary == f"retention-remove:{step}"
        if passed == 2:
            raise Killed

    fault_hook.install(kill)
    try:
        with pytest.raises(Killed):
            await run(database, admin)
    finally:
        fault_hook.install(None)


async def answered(database: Database, *, events: int = 2, pending: bool = False) -> UUID:
    """Returns an answer with events."""
    stored = await read(database)
    item = await store_question(
        database, stored.memory_id, "q?", revision=stored.revision, applied_position=1
    )
    async with database.transaction(DEFAULT_TENANT) as tx:
        for ordinal in range(1, events + 1):
            event = Event(ordinal=ordinal, kind=EventKind.LEAF, action=Action.ANSWER)
            await trajectories.append(tx, (KEY, item.item_id), event)
        if not pending:
            await answers.complete(tx, KEY, item.item_id, text="a", citations=(), model="m")
    return item.item_id


async def count(admin: Sql, table: str, which: str = "true") -> int:
    ((found,),) = await admin(f"SELECT count(*) FROM {table} WHERE {which}")
    return int(found)


async def test_nothing_expires_without_a_policy(database: Database, admin: Sql) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    for table in ("session", "chunk", "call", "revision"):
        await age(admin, table, 30_000)
    assert await count(admin, "retention_turn") == 0
    await run(database, admin)
    assert await count(admin, "call", "reply <> ''") == 1
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await retention_turns.seconds_since_last(tx) is None


async def test_texts_of_calls_go_and_their_figures_stay(database: Database, admin: Sql) -> None:
    await make(database, ["a", "b"], chunk_tokens=1)
    await prism_method(database, Script()).drain(ITEM)
    old = "key IN (SELECT key FROM call ORDER BY created_at LIMIT 1)"
    await age(admin, "call", 31, old)
    before = await admin("SELECT sum(input_tokens), sum(output_tokens), count(*) FROM call")
    await retain(database, call_days=30)
    await run(database, admin)
    assert await count(admin, "call", "reply = '' AND said IS NULL") == 1
    assert await count(admin, "call", "reply <> ''") == await count(admin, "call") - 1 > 0
    assert await admin("SELECT sum(input_tokens), sum(output_tokens), count(*) FROM call") == before
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await sums.sums_off(tx, None) == []
    # The memory goes on, and its state is what it was.
    await append_texts(database, "s", ["a", "b", "c"])
    await prism_method(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 3


async def test_old_answers_go_with_all_their_parts(database: Database, admin: Sql) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    old, young, pending = (
        await answered(database),
        await answered(database),
        await answered(database, pending=True),
    )
    await age(admin, "answer", 8, f"answer_id IN ('{old}', '{pending}')")
    await retain(database, answer_days=7)
    await run(database, admin)
    left = {row[0] for row in await admin("SELECT answer_id FROM answer")}
    assert left == {young, pending}
    assert {row[0] for row in await admin("SELECT answer_id FROM trajectory_event")} == left
    assert await count(admin, "removal") == 0


async def test_trajectories_go_up_to_the_first_pending_answer(
    database: Database, admin: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        usecase,
        "_BATCHES",
        {**usecase._BATCHES, "trajectory_days": (usecase._BATCHES["trajectory_days"][0], 2)},
    )
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    made = [await answered(database, events=number) for number in (1, 0, 0, 2)]
    pending = await answered(database, pending=True)
    later, young = await answered(database), await answered(database)
    for days, answer_id in enumerate([later, pending, *reversed(made)], 8):
        await age(admin, "answer", days, f"answer_id = '{answer_id}'")
    await retain(database, trajectory_days=7)
    await run(database, admin)
    with_events = "SELECT DISTINCT answer_id FROM trajectory_event"
    assert {row[0] for row in await admin(with_events)} == {pending, later, young}
    assert await count(admin, "answer") == 7, "answers stay"
    await admin("UPDATE answer SET status = 'complete'")
    await run(database, admin)
    assert {row[0] for row in await admin(with_events)} == {young}


async def test_the_sessions_policy_goes_before_the_tenants(database: Database, admin: Sql) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    await answered(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await retention_turns.write_policy(tx, Retention(answer_days=7, call_days=7))
    await age(admin, "answer", 8)
    await age(admin, "call", 8)
    await retain(database, answer_days=0)
    await run(database, admin)
    assert await count(admin, "answer") == 1
    assert await count(admin, "call", "reply <> ''") == 0
    await retain(database)
    await run(database, admin)
    assert await count(admin, "answer") == 0


async def test_a_session_expires_by_age_and_when_it_is_idle(database: Database, admin: Sql) -> None:
    names = ("aged", "asked", "fresh", "idle")
    for name in names:
        await session_usecase.create(database, DEFAULT_TENANT, name, language="english")
        await append_texts(database, name, ["a"])
        await retain(database, name, idle_session_days=30, session_days=90)
    keys = {name: session_key(DEFAULT_TENANT, name) for name in names}
    await age(admin, "session", 40, f"session_key IN ('{keys['idle']}', '{keys['asked']}')")
    await age(admin, "chunk", 31, f"session_key IN ('{keys['idle']}', '{keys['asked']}')")
    await age(admin, "session", 91, f"session_key = '{keys['aged']}'")
    await admin(
        "INSERT INTO answer (session_key, answer_id, tenant_id, query, revision, applied_position)"
        " VALUES (%s, %s, %s, 'q', 0, 0)",
        keys["asked"],
        uuid4(),
        DEFAULT_TENANT,
    )
    await run(database, admin)
    async with database.transaction(DEFAULT_TENANT) as tx:
        left = [name for (name,) in await tx.fetch("SELECT name FROM session ORDER BY 1", {})]
    assert left == ["asked", "fresh"]
    for name in ("aged", "idle"):
        item = WorkItem(
            kind=WorkKind.REMOVAL,
            tenant_id=DEFAULT_TENANT,
            session_key=keys[name],
            item_id=keys[name],
        )
        await Remover(database, CONFIG).remove(item)
    assert {row[0] for row in await admin("SELECT session_key FROM chunk")} == {
        keys["asked"],
        keys["fresh"],
    }


async def test_a_pass_that_is_killed_continues_where_it_was(
    database: Database, admin: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usecase, "PAGE_SESSIONS", 2)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        await session_usecase.create(database, DEFAULT_TENANT, name, language="english")
        await retain(database, name, session_days=1)
    await age(admin, "session", 2)
    passed = 0

    def kill(boundary: str) -> None:
        nonlocal passed
        passed += boundary == "retention-remove:commit"
        if passed == 4:
            raise Killed

    fault_hook.install(kill)
    try:
        with pytest.raises(Killed):
            await run(database, admin)
    finally:
        fault_hook.install(None)
    left = "SELECT name FROM session WHERE deleted_at IS NULL AND name > '' ORDER BY 1"
    assert [name for (name,) in await admin(left)] == ["s3", "s4"], "the fourth did not commit"
    retainer = Retainer(database, WakeUps(drop_wake_ups), b"token-key", CONFIG)
    await retainer.look()
    assert len(await admin(left)) == 2, "its turn has a lease"
    await run(database, admin)
    assert await admin(left) == []


async def test_a_turn_that_another_worker_claimed_removes_nothing_more(
    database: Database, admin: Sql
) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    await age(admin, "call", 2)
    await retain(database, call_days=1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        turn = await retention_turns.claim(tx, 100)
        assert turn is not None
        assert await retention_turns.claim(tx, 100) is None, "the lease is valid"
    await admin("UPDATE retention_turn SET ready_at = now()")
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await retention_turns.claim(tx, 100) is not None
    late = usecase._Pass(
        database, WakeUps(drop_wake_ups), lambda _, digest: digest, DEFAULT_TENANT, turn.lease_id
    )
    with pytest.raises(TurnLost):
        await late._remove_some("call_days", KEY, 1)
    assert await count(admin, "call", "reply <> ''") == 1


async def test_overdue_retention_is_reported(database: Database, admin: Sql) -> None:
    await make(database, [])
    await retain(database, call_days=1)
    await admin("UPDATE retention_turn SET created_at = now() - interval '1 day'")
    async with database.transaction(DEFAULT_TENANT) as tx:
        seconds = await retention_turns.seconds_since_last(tx)
    assert seconds is not None
    assert seconds == pytest.approx(86_400, abs=600)
    await run(database, admin)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await retention_turns.seconds_since_last(tx) == pytest.approx(0, abs=600)


async def differences(database: Database) -> list[object]:
    """Returns what `palimpsest verify` finds wrong in the session."""
    verifier = Verifier(database, use_cases())
    found = [one async for one in verifier.verify(DEFAULT_TENANT, "s")]
    wrong = [one for one in found if isinstance(one, LocatedDifference)]
    # `make` writes no digest of the first revision.
    return [one for one in wrong if one.difference.place != "revision 0"]


async def texts(admin: Sql) -> list[str]:
    """Returns the texts of the session's chunks, in order."""
    rows = await admin("SELECT text FROM chunk WHERE session_key = %s ORDER BY position", KEY)
    return [text for (text,) in rows]


async def test_chunks_that_all_memories_have_read_expire(database: Database, admin: Sql) -> None:
    await make(database, ["alpha", "beta", "gamma", "delta"], chunk_tokens=1)
    await prism_method(database, Script()).drain(ITEM)
    other = memory_id(KEY, "late")
    await add_memory(database, other, "late", SPEC, head=4)
    await age(admin, "chunk", 31, "position <= 3")
    await retain(database, chunk_days=30)
    await run(database, admin)
    assert await texts(admin) == ["alpha", "beta", "gamma", "delta"], "one memory lags"
    await admin("UPDATE memory SET deleted_at = now() WHERE memory_id = %s", other)
    before = await read(database)
    await run(database, admin)
    assert await texts(admin) == ["", "", "", "delta"]
    assert await admin("SELECT cause, sum(chunks) FROM redaction GROUP BY 1") == [("expired", 3)]
    assert await read(database) == before
    # A second pass finds nothing.
    await run(database, admin)
    assert await count(admin, "redaction") == 1

    # The same chunks sent again are acked with their positions, and other ones are refused.
    acked = await append_texts(database, "s", ["alpha", "beta", "gamma", "delta", "epsilon"])
    assert acked.position == 5
    with pytest.raises(AlreadyExists):
        await append_texts(database, "s", ["other"])
    assert (await texts(admin))[:3] == ["", "", ""]
    await prism_method(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 5

    page = await session_usecase.read_chunks(
        database, DEFAULT_TENANT, "s", from_position=1, limit=10, max_bytes=10_000
    )
    assert [one.chunk.is_redacted for one in page.chunks] == [True, True, True, False, False]


async def test_a_log_that_has_expired_is_not_read_again(database: Database, admin: Sql) -> None:
    await make(database, ["alpha", "beta"])
    await prism_method(database, Script()).drain(ITEM)
    await age(admin, "chunk", 31, "position = 1")
    await retain(database, chunk_days=30)
    await run(database, admin)
    memories = memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"key", Limits()
    )
    for refused in (
        partial(memories.create, DEFAULT_TENANT, "s", "new", SPEC),
        partial(memories.rebuild, DEFAULT_TENANT, "s", "new", SPEC, "m"),
    ):
        with pytest.raises(FailedPrecondition) as caught:
            await refused()
        assert caught.value.reason is Reason.LOG_EXPIRED
        assert caught.value.metadata == {"session": "s", "expired_position": "1"}
    # A rebuild may be of what remains.
    await memories.rebuild(DEFAULT_TENANT, "s", "new", SPEC, "m", allow_expired_log=True)
    item = replace(ITEM, item_id=memory_id(KEY, "new"))
    script = Script()
    await prism_method(database, script).drain(item)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rebuilt = await stored_memories.get(tx, KEY, item.item_id)
    assert rebuilt is not None
    assert rebuilt.applied_position == 2
    assert ["beta" in ask.text for ask in script.asked] == [True], "no call for what has expired"
    assert await differences(database) == []


async def test_the_text_after_the_last_leaf_of_a_tree_stays(database: Database, admin: Sql) -> None:
    text = "one two three four five six seven eight nine ten. " * 3
    await make(database, [text] * 8, TREE)
    await tree_method(database, Script(reply=summary_reply)).drain(ITEM)
    ((end,),) = await admin("SELECT max(end_position) FROM tree_node WHERE level = 0")
    assert 1 < end <= 8
    await age(admin, "chunk", 31)
    await retain(database, chunk_days=30)
    # A seal that was requested has summarized nothing yet.
    await admin("UPDATE memory SET seal_position = 8")
    await run(database, admin)
    await admin("UPDATE memory SET seal_position = NULL")
    found = await texts(admin)
    assert found == [""] * (end - 1) + [text] * (9 - end)
    before = await admin("SELECT level, number, summary FROM tree_node ORDER BY 1, 2")
    # A question reads the summary of a leaf in place of its text.
    question = await store_question(
        database, MEMORY, "q?", revision=(await read(database)).revision, applied_position=8
    )
    asked = await read_answer(database, question)
    reader = await TreeReader.open(
        database, DEFAULT_TENANT, asked, spec=TREE, count=estimate_tokens, tail_bytes=100_000
    )
    assert reader is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        await reader._look_up(tx, ["0.1"])
    ((summary,),) = await admin("SELECT summary FROM tree_node WHERE level = 0 AND number = 1")
    assert await reader.fetch(Text(node_id="0.1")) == LeafText(text=summary)
    # It goes on where it was.
    await append_texts(database, "s", [text] * 8 + [f"more {text}"] * 8)
    await tree_method(database, Script(reply=summary_reply)).drain(ITEM)
    after = await admin("SELECT level, number, summary FROM tree_node ORDER BY 1, 2")
    assert set(before) < set(after)
    assert await differences(database) == []


async def test_words_of_expired_chunks_are_not_found(
    database: Database, admin: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("BLOCK_CHUNKS", 4), ("LOOK_CHUNKS", 1)):
        monkeypatch.setattr(posting_lists, name, value)
    await make(database, [f"word{number} common" for number in range(10)])
    await prism_method(database, Script()).drain(ITEM)
    item = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    await Indexer(database, None, CONFIG).index(item)
    assert await count(admin, "posting_block") == 2
    monkeypatch.setattr(usecase, "BATCH_CHUNKS", 3)
    await age(admin, "chunk", 31, "position <= 6")
    await retain(database, chunk_days=30)
    await run(database, admin)
    assert await texts(admin) == [""] * 6 + [f"word{number} common" for number in range(6, 10)]
    assert await count(admin, "chunk_word", "words <> ''") == 4
    lists = await admin("SELECT last_position, words FROM posting_list")
    assert {last for last, _ in lists} == {8}, "the first block has expired as a whole"
    words = {word for _, some in lists for word in some}
    assert words == {"common", "word6", "word7"}, "the second one in part"
    assert await count(admin, "redaction") == 2, "in two batches"
    assert await differences(database) == []


@pytest.mark.parametrize("step", ["commit", "committed"])
async def test_a_crash_between_batches_expires_no_chunk_twice(
    database: Database, admin: Sql, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(usecase, "BATCH_CHUNKS", 2)
    await make(database, [str(number) for number in range(7)])
    await prism_method(database, Script()).drain(ITEM)
    await age(admin, "chunk", 31)
    await retain(database, chunk_days=30)
    await run_killed(database, admin, step)
    gone = 2 if step == "commit" else 4
    assert (await texts(admin)).count("") == gone
    assert await admin("SELECT expired_position FROM session WHERE name = 's'") == [(gone,)]
    await run(database, admin)
    assert await texts(admin) == [""] * 7
    assert await admin("SELECT sum(chunks) FROM redaction") == [(7,)]
