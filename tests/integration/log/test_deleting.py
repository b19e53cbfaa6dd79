"""Deleting sessions, memories and answers, at rest and in the middle of what works on them."""

import asyncio
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import pytest

from service.app.kinds import memories_of
from service.dispatch.queue import QueueDispatcher
from service.domain.calls.ledger import CallInProgress, CallScope, Gone, Lease, Reservation
from service.domain.memories.long_operations import OperationId, OperationKind
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import Purpose
from service.domain.values.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.log import sessions as session_usecase
from service.usecases.log.append import Appender
from service.usecases.log.lookup import memory_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.memories import Memories
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations import deleting as usecase
from service.usecases.operations.deleting import Deleter, Remover
from service.usecases.search.index import Indexer
from storage.engine.database import Database, Transaction
from storage.log import deleting
from storage.log.deleting import Removal
from storage.memories import long_operations, revisions
from storage.prism import schema_drafts
from storage.search import chunk_index
from storage.search.chunk_index import Overtaken
from storage.spend import spend, sums
from storage.spend.spend import SpendFilter, SpendLevel
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    STATE,
    TREE,
    Script,
    answerer,
    make,
    prism_method,
    read,
    state_method,
    summary_reply,
    tree_method,
    vector_reply,
)
from tests.integration.support.stored_answers import store_question
from tests.integration.support.writing import append_texts, drop_wake_ups, submission
from tests.support import gateways

#: The test's database.
URL: ContextVar[str] = ContextVar("url")


def deleter(database: Database) -> Deleter:
    return Deleter(database, WakeUps(drop_wake_ups))


async def delete(database: Database, session: str = "s", *, allow_missing: bool = False) -> None:
    await deleter(database).delete_session(DEFAULT_TENANT, session, allow_missing=allow_missing)


async def create(database: Database, session: str = "s") -> Any:
    return await session_usecase.create(database, DEFAULT_TENANT, session, language="english")


def all_memories(database: Database) -> Memories:
    return memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"key", Limits()
    )


async def rows_of(database: Database, key: UUID = KEY) -> dict[str, int]:
    """Returns how many rows each table has of a session, hidden ones among them."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(deleting.REMOVING)
        found: dict[str, int] = {}
        for table in (*deleting._PARTS_OF_ALL, "removal"):
            query = f"SELECT count(*) FROM {table} WHERE session_key = %(key)s"
            ((count,),) = await tx.fetch(query, {"key": key})
            if count:
                found[table] = count
    return found


async def spent(database: Database) -> spend.Spend:
    """Returns what the tenant has spent, by the ledger's sums; the budgets' sums say the same."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        total = await spend.total(tx, SpendFilter())
        assert await sums.sums_off(tx, None) == []
        lines = await spend.lines(
            tx, SpendFilter(), SpendLevel.MEMORY, by_day=True, after=None, limit=100
        )
    assert spend.added(line.spend for line in lines) == total, "no line is left out"
    return total


async def run(database: Database, query: str) -> list[tuple[Any, ...]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(deleting.REMOVING)
        return await tx.fetch(query, {})


async def filled(database: Database) -> Script:
    """Returns the session `s`, with rows in as many tables as a few calls fill."""
    await make(database, ["a", "b", "c"])
    script = Script()
    await prism_method(database, script).drain(ITEM)
    await Indexer(database, None, CONFIG).index(
        WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    )
    stored = await read(database)
    question = await store_question(
        database, MEMORY, "q?", revision=stored.revision, applied_position=3
    )
    await answerer(database, gateways.gateway(script, database)).make(question)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await schema_drafts.create(
            tx, session_key=KEY, draft_id=UUID(int=1), domain="d", example_query="q", model=""
        )
        for number, kind in enumerate((OperationKind.REBUILD, OperationKind.CONSOLIDATION)):
            id = OperationId(session_key=KEY, operation_id=UUID(int=number))
            await long_operations.add(tx, id, kind, memory_id=MEMORY, memory="m", goal=9)
    return script


async def test_nothing_is_left_of_a_session_but_its_tombstone_and_what_it_cost(
    database: Database,
) -> None:
    await filled(database)
    before = await spent(database)
    assert before.calls == 4
    of_some = {"chunk", "chunk_word", "revision", "amendment", "answer", "call", "producer"}
    assert {*of_some, "operation"} <= set(await rows_of(database))
    await delete(database)
    assert await rows_of(database) == {}
    assert await spent(database) == before
    with pytest.raises(NotFound) as caught:
        await session_usecase.get(database, DEFAULT_TENANT, "s")
    assert caught.value.reason is Reason.SESSION_NOT_FOUND
    assert await session_usecase.list_after(database, DEFAULT_TENANT, "", 10) == []
    with pytest.raises(NotFound):
        await delete(database)
    await delete(database, allow_missing=True)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await deleting.leftovers(tx) == []


async def test_a_name_begins_anew_and_what_was_of_the_old_session_is_refused(
    database: Database,
) -> None:
    await make(database, ["a", "b"])
    memories = all_memories(database)
    token = (await memories.flush(DEFAULT_TENANT, "s", ""))[0]
    await delete(database)
    anew = await create(database)
    assert (anew.head, anew.incarnation) == (0, 2)
    with pytest.raises(AlreadyExists):
        await create(database)
    made = await memories.create(DEFAULT_TENANT, "s", "m", SPEC)
    assert made.revision == 0
    ack = await append_texts(database, "s", ["b", "a"])
    assert (ack.first_position, ack.position) == (1, 2), "the producer begins at 1 as well"
    with pytest.raises(InvalidInput) as caught:
        await memories.read(DEFAULT_TENANT, "s", "m", Consistency(at_least=token), deadline=None)
    assert caught.value.reason is Reason.TOKEN_INVALID
    script = Script()
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 2
    assert len(script.asked) == 2, "no reply of the old session is replayed"
    async with database.transaction(DEFAULT_TENANT) as tx:
        of_session = await spend.total(tx, SpendFilter(session_key=KEY))
    assert of_session.calls == 2
    await delete(database)
    assert (await create(database)).incarnation == 3


async def test_a_step_under_way_is_paid_and_not_committed(database: Database) -> None:
    await make(database, ["a", "b"])

    async def meanwhile() -> None:
        script.meanwhile = None
        await delete(database)

    script = Script(meanwhile=meanwhile)
    assert await prism_method(database, script).drain(ITEM) is None
    assert len(script.asked) == 1, "no other call is begun"
    assert await rows_of(database) == {}
    total = await spent(database)
    assert (total.calls, total.failed_calls) == (1, 0)


@pytest.mark.parametrize("spec", [SPEC, TREE, STATE], ids=lambda spec: type(spec).__name__)
async def test_a_step_of_the_old_session_does_not_touch_the_new_one(
    database: Database, spec: Any
) -> None:
    texts = [f"text {n} " + "word " * 60 for n in range(8)]
    await make(database, texts, spec=spec) if spec is not SPEC else await make(database, texts)
    asked = 0

    async def meanwhile() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            return
        await delete(database)
        await create(database)
        await all_memories(database).create(DEFAULT_TENANT, "s", "m", spec)
        await append_texts(database, "s", texts)

    reply = {"PrismSpec": None, "TreeSpec": summary_reply, "StateSpec": vector_reply}
    script = Script(meanwhile=meanwhile, reply=reply[type(spec).__name__])
    workers: dict[str, Any] = {
        "PrismSpec": prism_method,
        "TreeSpec": tree_method,
        "StateSpec": state_method,
    }
    worker = workers[type(spec).__name__]
    assert await worker(database, script).drain(ITEM) is None
    stored = await read(database)
    assert (stored.revision, stored.applied_position, stored.incarnation) == (0, 0, 2)
    found = await rows_of(database)
    assert "call" not in found, "its replies are nobody's"
    assert "intent" not in found
    total = await spent(database)
    assert total.calls == len(script.asked) > 0
    script.meanwhile = None
    before = len(script.asked)
    await worker(database, script).drain(ITEM)
    assert (await read(database)).applied_position > 0
    assert len(script.asked) > before


async def test_an_ask_under_way_is_paid_and_nothing_is_stored(database: Database) -> None:
    await make(database, ["a"])
    question = await store_question(database, MEMORY, "q?", revision=0, applied_position=0)

    async def meanwhile() -> None:
        await delete(database)

    script = Script(meanwhile=meanwhile)
    making = answerer(database, gateways.gateway(script, database))
    await making.make(question)
    await making.make(question)
    assert len(script.asked) == 1
    assert await rows_of(database) == {}
    assert (await spent(database)).calls == 1


async def test_an_answer_under_way_ends_at_the_next_look(database: Database) -> None:
    await make(database, ["a"])
    question = await store_question(database, MEMORY, "q?", revision=0, applied_position=0)
    thinks, never = asyncio.Event(), asyncio.Event()

    async def think() -> None:
        thinks.set()
        await never.wait()

    making = answerer(database, gateways.gateway(Script(meanwhile=think), database))
    task = asyncio.create_task(making.make(question))
    await asyncio.wait_for(thinks.wait(), 60)
    await delete(database)
    await making.active.look()
    await asyncio.wait_for(task, 60)
    assert await rows_of(database) == {}


class Interrupted(Transaction):
    """Its session is deleted after its first statement."""

    async def fetch(self, statement: Any, values: Any = None, **how: Any) -> Any:
        found = await super().fetch(statement, values, **how)
        if not self.changed:
            self.changed.add(KEY)
            other = Database.connect(URL.get(), pool_size=1, name="other")
            await delete(other)
            await other.close()
        return found


async def write_interrupted(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        interrupted = Interrupted(tenant_id=tx.tenant_id, core=tx.core, driver=tx.driver)
        await chunk_index.write_words(interrupted, KEY, 0)


async def test_words_of_a_session_that_is_deleted_meanwhile_are_not_kept(
    database: Database, url: str
) -> None:
    await make(database, ["a", "b"])
    URL.set(url)
    with pytest.raises(Overtaken):
        await write_interrupted(database)
    assert await rows_of(database) == {}


async def test_waiting_calls_learn_that_it_is_gone(database: Database) -> None:
    await make(database, ["a"])
    question = await store_question(database, MEMORY, "q?", revision=0, applied_position=0)
    watcher = ProgressWatcher(database)
    looking = asyncio.create_task(watcher.run())

    async def progress() -> None:
        async for _ in watcher.progress(
            DEFAULT_TENANT, (KEY, MEMORY), deleted=gone[0], deadline=None
        ):
            seen.set()

    seen = asyncio.Event()
    gone = [memory_not_found("s", "a"), memory_not_found("s", "answer")]
    waits = [
        asyncio.create_task(progress()),
        asyncio.create_task(watcher.settled(question, deleted=gone[1], deadline=None)),
    ]
    await asyncio.wait_for(seen.wait(), 60)
    await delete(database)
    found = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 60)
    assert found == gone, "each gets the error that it gave"
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def test_a_group_commit_leaves_out_what_was_deleted(database: Database) -> None:
    for name in ("s", "t"):
        await create(database, name)
    appender = Appender(database, WakeUps(drop_wake_ups), b"key", Limits())
    running = asyncio.create_task(appender.run())
    opened = await appender.open(
        DEFAULT_TENANT, session="s", producer_id="p", epoch=0, expected_head=None
    )
    await asyncio.gather(*(appender.submit(DEFAULT_TENANT, submission(n, ["a"])) for n in "st"))
    await delete(database)
    both = [appender.submit(DEFAULT_TENANT, submission(n, ["b"], first=2)) for n in "st"]
    found = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 60)
    assert getattr(found[0], "reason", found) is Reason.SESSION_NOT_FOUND
    assert getattr(found[1], "position", found) == 2
    await create(database)
    late = submission("s", ["x"])
    object.__setattr__(late, "incarnation", opened.incarnation)
    with pytest.raises(NotFound) as caught:
        await appender.submit(DEFAULT_TENANT, late)
    assert "created anew" in caught.value.message
    assert (await appender.submit(DEFAULT_TENANT, submission("s", ["x"]))).position == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_large_session_is_hidden_at_once_and_workers_go_on_after_a_crash(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(database)
    monkeypatch.setattr(usecase, "BATCH_ROWS", 2)
    before = sum((await rows_of(database)).values())
    await delete(database)
    left = await rows_of(database)
    assert 0 < sum(left.values()) < before
    with pytest.raises(Conflict) as caught:
        await create(database)
    assert caught.value.reason is Reason.BEING_DELETED
    item = WorkItem(kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    await usecase._remove_some(database, DEFAULT_TENANT, Removal(session_key=KEY, item_id=KEY))
    # The worker that began it is gone: another one knows nothing but the row.
    assert await Remover(database, CONFIG).remove(item) is None
    assert await rows_of(database) == {}
    assert (await create(database)).incarnation == 2


async def test_the_queue_gives_removals_to_workers(database: Database) -> None:
    await make(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await deleting.delete_session(tx, KEY)
    stop, items = asyncio.Event(), []

    async def handle(item: WorkItem) -> float | None:
        items.append(item)
        stop.set()
        return await Remover(database, CONFIG).remove(item)

    dispatcher = QueueDispatcher(
        database, heartbeat_seconds=1, dead_after_seconds=60, look_seconds=0.05
    )
    running = dispatcher.run(handle, concurrency=2, stop=stop, stop_seconds=60)
    await asyncio.wait_for(running, 60)
    assert [one.kind for one in items] == [WorkKind.REMOVAL]
    assert await rows_of(database) == {}


async def test_a_memory_goes_and_its_answers_stay(database: Database) -> None:
    script = await filled(database)
    before = await spent(database)
    await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    found = await rows_of(database)
    assert set(found) <= {
        *("chunk", "chunk_word", "producer", "answer", "call", "call_sum"),
        *("spend_sum", "schema_draft", "operation", "answer_text", "trajectory_event"),
    }
    assert (found["chunk"], found["answer"]) == (3, 1)
    assert await spent(database) == before
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await sums.days_off(tx, KEY) == []
        assert await sums.sums_off(tx, KEY) == []
        (texts,) = await tx.fetch("SELECT count(*) FROM call WHERE reply <> ''", {})
    assert texts == (0,)
    ((memory, text),) = await run(database, "SELECT memory_id, text FROM answer")
    assert (memory, text) == (None, "It is x.")
    with pytest.raises(NotFound) as caught:
        await all_memories(database).get(DEFAULT_TENANT, "s", "m")
    assert caught.value.reason is Reason.MEMORY_NOT_FOUND
    with pytest.raises(NotFound):
        await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=True)
    await all_memories(database).create(DEFAULT_TENANT, "s", "m", SPEC)
    asked = len(script.asked)
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 3
    assert len(script.asked) == asked + 3


async def test_a_worker_of_a_deleted_memory_does_not_commit_to_its_successor(
    database: Database,
) -> None:
    await make(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
    assert held is not None
    await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    await all_memories(database).create(DEFAULT_TENANT, "s", "m", SPEC)
    async with database.transaction(DEFAULT_TENANT) as tx:
        again = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
    assert again is not None
    assert again.epoch > held.epoch


async def test_a_large_memory_is_named_again_only_when_its_rows_are_gone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(database)
    monkeypatch.setattr(usecase, "BATCH_ROWS", 1)
    await deleter(database).delete_memory(DEFAULT_TENANT, "s", "m", allow_missing=False)
    for spec in (SPEC, STATE):
        with pytest.raises(Conflict) as caught:
            await all_memories(database).create(DEFAULT_TENANT, "s", "m", spec)
        assert caught.value.reason is Reason.BEING_DELETED
    item = WorkItem(
        kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=MEMORY
    )
    assert await Remover(database, CONFIG).remove(item) is None
    await all_memories(database).create(DEFAULT_TENANT, "s", "m", SPEC)


async def test_an_answer_goes_with_its_texts_and_leaves_what_it_cost(database: Database) -> None:
    await filled(database)
    before = await spent(database)
    ((answer_id,),) = await run(database, "SELECT answer_id FROM answer")
    await deleter(database).delete_answer(DEFAULT_TENANT, "s", answer_id, allow_missing=False)
    found = await rows_of(database)
    assert "answer" not in found
    assert "removal" not in found
    assert await spent(database) == before
    rows = await run(database, "SELECT reply FROM call WHERE occasion LIKE 'answer:' || chr(37)")
    assert rows == [("",)]
    with pytest.raises(NotFound) as caught:
        await deleter(database).delete_answer(DEFAULT_TENANT, "s", answer_id, allow_missing=False)
    assert caught.value.reason is Reason.ANSWER_NOT_FOUND
    await deleter(database).delete_answer(DEFAULT_TENANT, "s", answer_id, allow_missing=True)


async def test_rows_go_only_while_a_removal_is_under_way(database: Database) -> None:
    await make(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await tx.execute("DELETE FROM chunk") == 0


async def test_creates_and_deletes_at_once_leave_one_or_no_session(database: Database) -> None:
    async def often(work: Any) -> None:
        for _ in range(10):
            try:
                await work(database)
            except (AlreadyExists, NotFound, Conflict):
                await asyncio.sleep(0)

    async def append(database: Database) -> None:
        await append_texts(database, "s", ["a"])

    await asyncio.gather(often(create), often(delete), often(append), often(create))
    await delete(database, allow_missing=True)
    item = WorkItem(kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    await Remover(database, CONFIG).remove(item)
    assert await rows_of(database) == {}


async def test_leftovers_are_found(database: Database) -> None:
    await make(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        await deleting.delete_session(tx, KEY)
        await tx.execute("DELETE FROM removal")
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await deleting.leftovers(tx)
    assert {table for _, table in found} >= {"chunk", "memory", "producer"}
    assert {key for key, _ in found} == {KEY}


async def test_a_call_is_not_begun_for_a_deleted_session(database: Database) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    wanted = Reservation(
        purpose=Purpose.REVISE, model="test/scripted", deployment="", tokens=1, micro_usd=None
    )

    def scope(incarnation: int | None) -> CallScope:
        return CallScope(
            tenant_id=DEFAULT_TENANT,
            session_key=KEY,
            memory_id=None,
            occasion="o",
            incarnation=incarnation,
        )

    assert isinstance(await ledger.begin(scope(1), b"k", wanted), Lease)
    assert isinstance(await ledger.begin(scope(1), b"k", wanted), CallInProgress)
    await delete(database)
    for incarnation in (1, None):
        with pytest.raises(Gone):
            await ledger.begin(scope(incarnation), b"k", wanted)
    await create(database)
    with pytest.raises(Gone):
        await ledger.begin(scope(1), b"k", wanted)
    for incarnation in (2, None):
        key = str(incarnation).encode()
        assert isinstance(await ledger.begin(scope(incarnation), key, wanted), Lease)
