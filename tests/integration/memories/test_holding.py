"""What an exhausted budget does to memories, reads, answers and schemas."""

import asyncio
import math
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, text, update

import palimpsest
from palimpsest import sync
from service.app.kinds import memories_of
from service.domain.calls.ledger import CallInProgress, CallScope, Lease, Reservation
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import ModelReply
from service.domain.spend.budgets import BudgetLimits, BudgetOwner, BudgetPeriod, BudgetScope
from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem
from service.llm.gateway.gateway import Gateway
from service.usecases.answers.ask import failure_of
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.memory_method import StepWait, Turn
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.step_engine import StepEngine
from service.usecases.spend.budgets import Budgets, hold
from storage.answers import answers
from storage.engine.claims import Fenced
from storage.engine.database import Database
from storage.memories import flushing, revisions
from storage.spend import budgets
from storage.tables import memory
from tests.integration.spend.test_budgets import a_day_later, reserve
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    Script,
    answerer,
    make,
    prism_method,
    read,
)
from tests.integration.support.stored_answers import read_answer, store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support import gateways
from tests.support.runnable import runnable as runnable_now

DAY, TOTAL = BudgetPeriod.DAY, BudgetPeriod.TOTAL
OF_MEMORY = BudgetOwner(scope=BudgetScope.MEMORY, session="s", memory="m")
OF_SESSION = BudgetOwner(scope=BudgetScope.SESSION, session="s")
OF_TENANT = BudgetOwner(scope=BudgetScope.TENANT)
#: The cost of each call of the script, actual and estimated.
CALL_TOKENS = 12


class SmallCalls(CallLedger):
    """Estimates calls at the cost of those of the script."""

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        return await super().begin(scope, key, replace(wanted, tokens=CALL_TOKENS))


def gateway(database: Database, script: Script) -> Gateway:
    made = gateways.gateway(script, database)
    made._ledger = SmallCalls(database, lease_seconds=gateways.LEASE_SECONDS)
    return made


def budgeted(database: Database, script: Script) -> StepEngine[Any]:
    return prism_method(database, script, calls=gateway(database, script))


def books(database: Database, woken: list[WorkItem] | None = None) -> Budgets:
    wake_ups = WakeUps(drop_wake_ups)
    if woken is not None:
        wake_ups.add = lambda items, wanted=False: woken.extend(items)  # type: ignore[method-assign,misc]
    return Budgets(database, wake_ups)


async def put(
    database: Database, owner: BudgetOwner, period: BudgetPeriod, tokens: int
) -> list[WorkItem]:
    """Sets a budget; the wake-ups that it gave."""
    woken: list[WorkItem] = []
    limits = BudgetLimits(tokens=tokens, micro_usd=None)
    await books(database, woken).put(DEFAULT_TENANT, owner, period, limits)
    return woken


async def ready(database: Database) -> str:
    """Returns when the memory is to be looked at again."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        statement = select(memory.c.ready_at.cast(memory.c.name.type), memory.c.attempts)
        row = (await tx.fetch(statement))[0]
    assert row.attempts == 0, "being held is no failed try"
    return str(row.ready_at)


@pytest.mark.parametrize("owner", [OF_MEMORY, OF_SESSION, OF_TENANT], ids=str)
async def test_a_held_memory_loses_nothing_and_goes_on_when_its_budget_is_raised(
    database: Database, owner: BudgetOwner
) -> None:
    await make(database, ["a", "b", "c"])
    await put(database, owner, TOTAL, 2 * CALL_TOKENS)
    script = Script()
    assert await budgeted(database, script).drain(ITEM) is None
    held = await read(database)
    assert (held.applied_position, held.status, held.stall) == (2, "active", None)
    assert held.held_reason is not None
    assert "24 tokens in total" in held.held_reason
    assert await ready(database) == "infinity"
    assert await budgeted(database, script).drain(ITEM) is None, "nobody can take it"
    assert len(script.asked) == 2
    assert await put(database, owner, TOTAL, 3 * CALL_TOKENS) == [ITEM]
    assert (await read(database)).held_reason is None
    await budgeted(database, script).drain(ITEM)
    done = await read(database)
    assert (done.applied_position, done.held_reason) == (3, None)
    async with database.transaction(DEFAULT_TENANT) as tx:
        (standing,) = await budgets.page(tx, named=None, after=("", "", ""), limit=9)
    assert standing.spent_tokens == 36


async def test_it_goes_on_when_its_budget_is_deleted(database: Database) -> None:
    await make(database, ["a"])
    await put(database, OF_SESSION, TOTAL, 0)
    await budgeted(database, Script()).drain(ITEM)
    assert (await read(database)).held_reason is not None
    woken: list[WorkItem] = []
    kept = books(database, woken)
    await kept.delete(DEFAULT_TENANT, OF_SESSION, TOTAL, allow_missing=False)
    assert woken == [ITEM]
    await budgeted(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 1


async def test_a_days_budget_goes_on_the_next_day(database: Database) -> None:
    await make(database, ["a", "b"])
    await put(database, OF_MEMORY, DAY, CALL_TOKENS)
    await budgeted(database, Script()).drain(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        midnight = select(
            memory.c.ready_at.between(
                select(_midnight()).scalar_subquery(),
                select(_midnight(seconds=5)).scalar_subquery(),
            )
        )
        assert (await tx.fetch(midnight))[0][0], "it is due at midnight UTC"
        # And the hour has come.
        await a_day_later(tx)
        await tx.execute(update(memory).values(ready_at=memory.c.created_at))
    assert (await read(database)).held_reason is None, "it is about to try again"
    async with database.sweeping() as connection:
        assert await runnable_now(connection, 9) == [ITEM]
    await budgeted(database, Script()).drain(ITEM)
    done = await read(database)
    assert (done.applied_position, done.held_reason) == (2, None)


def _midnight(seconds: int = 0) -> Any:
    return text(
        "((now() AT TIME ZONE 'UTC')::date + 1)::timestamp AT TIME ZONE 'UTC'"
        f" + interval '{seconds} s'"
    )


async def test_it_comes_back_soon_when_only_calls_under_way_are_in_its_way(
    database: Database,
) -> None:
    await make(database, ["a"])
    await put(database, OF_MEMORY, TOTAL, 2 * CALL_TOKENS)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await reserve(tx, b"another", CALL_TOKENS + 1)
    seconds = await budgeted(database, Script()).drain(ITEM)
    assert seconds is not None
    assert 0 < seconds < 60
    stored = await read(database)
    assert (stored.held_reason, stored.applied_position) == (None, 0)
    assert await ready(database) != "infinity"


async def test_a_budget_that_is_raised_while_a_memory_is_about_to_be_held_wakes_it(
    database: Database,
) -> None:
    await make(database, ["a"])
    await put(database, OF_MEMORY, TOTAL, 0)
    scope = CallScope(
        tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=MEMORY, occasion="revise:1:1"
    )
    async with database.transaction(DEFAULT_TENANT) as tx:
        claim = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
        assert claim is not None
        with pytest.raises(Exhausted) as refused:
            await budgets.check(tx, scope, tokens=1, micro_usd=None)
    # Raised after the refusal: it finds no held memory to wake.
    assert await put(database, OF_MEMORY, TOTAL, 99) == []
    assert await hold(database, claim, refused.value) == 0.0  # type: ignore[arg-type]
    assert (await read(database)).held_reason is None
    await budgeted(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 1


async def test_who_lost_a_memory_cannot_hold_it(database: Database) -> None:
    await make(database, ["a"])
    await put(database, OF_MEMORY, TOTAL, 0)
    script = Script()
    worker = budgeted(database, script)
    work = await worker._claim(ITEM)
    assert not isinstance(work, StepWait)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind) is not None
    with pytest.raises(Fenced):
        await worker._advance(work, Turn(until=math.inf))
    assert (await read(database)).held_reason is None


async def test_raising_wakes_only_what_it_concerns_and_a_flush_wakes_nothing(
    database: Database,
) -> None:
    await make(database, ["a"])
    await put(database, OF_MEMORY, TOTAL, 0)
    await budgeted(database, Script()).drain(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await flushing.flush(tx, KEY, MEMORY, 1) == [MEMORY]
    assert await ready(database) == "infinity"
    await append_texts(database, "s", ["b"], first=2)
    assert await ready(database) == "infinity"
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await budgets.wake(tx, (KEY, memory_id(KEY, "other"))) == []
        assert await budgets.wake(tx, (session_key(DEFAULT_TENANT, "t"),) * 2) == []
    assert (await read(database)).held_reason is not None
    # A looser budget elsewhere makes it try again; its own holds it still.
    assert await put(database, OF_TENANT, DAY, 10**6) == [ITEM]
    await budgeted(database, Script()).drain(ITEM)
    assert (await read(database)).held_reason is not None


async def test_reads_that_wait_for_a_held_memory_fail_at_once(database: Database) -> None:
    await make(database, ["a", "b"])
    await put(database, OF_MEMORY, TOTAL, CALL_TOKENS)
    watcher = ProgressWatcher(database)
    running = asyncio.create_task(watcher.run())
    reader = memories_of(database, WakeUps(drop_wake_ups), watcher, b"token-key", CONFIG.limits)
    fresh = Consistency(fully_applied=True)
    try:
        # One that waits when the memory is held, and one that begins after it.
        waiting = asyncio.create_task(reader.read(DEFAULT_TENANT, "s", "m", fresh, deadline=None))
        await asyncio.sleep(0)
        await budgeted(database, Script()).drain(ITEM)
        with pytest.raises(Exhausted, match="memory 'm' is held: the budget of memory 'm'"):
            await waiting
        with pytest.raises(Exhausted) as refused:
            await reader.read(DEFAULT_TENANT, "s", "m", fresh, deadline=None)
        assert refused.value.reason == "BUDGET_EXHAUSTED"
        assert refused.value.metadata["memory"] == "m"
        now = await reader.read(DEFAULT_TENANT, "s", "m", Consistency(), deadline=None)
        assert now.applied_position == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_answer_under_an_exhausted_budget_fails_at_once_and_can_be_asked_again(
    database: Database,
) -> None:
    await make(database, ["a"])
    await budgeted(database, Script()).drain(ITEM)
    await put(database, OF_MEMORY, TOTAL, CALL_TOKENS)
    script = Script()
    failed = await _answered(database, script)
    assert failed.status == "failed"
    assert "the budget of memory 'm' of session 's', 12 tokens in total" in failed.failure
    refused = failure_of(failed)
    assert refused.reason is Reason.BUDGET_EXHAUSTED
    assert refused.retry_seconds == 0, "a client waits for more budget, not for a second"
    assert refused.message.endswith("when the budget is raised or deleted; ask again then")
    assert script.asked == []
    await put(database, OF_MEMORY, TOTAL, 2 * CALL_TOKENS)
    assert (await _answered(database, script)).status == "complete"


async def _answered(database: Database, script: Script) -> answers.StoredAnswer:
    item = await store_question(
        database,
        MEMORY,
        "What?",
        revision=1,
        applied_position=1,
    )
    await answerer(database, gateway(database, script)).make(item)
    return await read_answer(database, item)


# Over gRPC


async def test_budgets_are_set_listed_and_deleted(client: palimpsest.Client) -> None:
    session = await client.create_session(f"budgets-{uuid4().hex}")
    memory_ = await session.create_memory("m", schema_source="class N:\n    a: str\n")
    assert [one async for one in session.budgets()] == []
    done = await session.set_budget("day", limit_tokens=5, limit_micro_usd=7)
    assert (done.limit_tokens, done.limit_micro_usd) == (5, 7)
    assert (done.session, done.memory, done.period) == (
        session.id,
        "",
        "day",
    )
    assert done.resets_at is not None
    assert (done.resets_at.hour, done.resets_at.minute) == (0, 0)
    replaced = await session.set_budget("day", limit_tokens=0)
    assert (replaced.limit_tokens, replaced.limit_micro_usd) == (0, None)
    total = await memory_.set_budget("total", limit_micro_usd=2**63 - 1)
    assert (total.memory, total.resets_at) == ("m", None)
    assert [(one.memory, one.period) async for one in session.budgets()] == [
        ("", "day"),
        ("m", "total"),
    ]
    await session.delete_budget("day")
    await memory_.delete_budget("total")
    with pytest.raises(palimpsest.NotFound, match="has no budget for the day") as nothing:
        await session.delete_budget("day")
    assert nothing.value.reason == "BUDGET_NOT_FOUND"
    assert nothing.value.metadata == {"session": session.id, "memory": "", "period": "day"}
    await session.delete_budget("day", missing_ok=True)
    await client.session("nothing").delete_budget("day", missing_ok=True)


async def test_a_budget_is_set_only_while_it_has_the_etag(client: palimpsest.Client) -> None:
    session = await client.create_session(f"budgets-{uuid4().hex}")
    first = await session.set_budget("day", limit_tokens=5)
    again = await session.set_budget("day", limit_tokens=5)
    assert again.etag == first.etag
    raised = await session.set_budget("day", limit_tokens=6, etag=first.etag)
    assert raised.etag != first.etag
    assert [one.etag async for one in session.budgets()] == [raised.etag]
    with pytest.raises(palimpsest.Aborted, match="read it again, then decide") as late:
        await session.set_budget("day", limit_tokens=7, etag=first.etag)
    assert (late.value.reason, late.value.metadata) == ("ETAG_MISMATCH", {"current": raised.etag})
    assert [one.limit_tokens async for one in session.budgets()] == [6]
    with pytest.raises(palimpsest.Aborted) as missing:
        await session.set_budget("total", limit_tokens=7, etag=first.etag)
    assert missing.value.metadata == {"current": ""}
    # Of two that read the same only one changes it.
    done = await asyncio.gather(
        *(session.set_budget("day", limit_tokens=10 + n, etag=raised.etag) for n in range(4)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, palimpsest.Budget) for one in done) == 1
    assert sum(isinstance(one, palimpsest.Aborted) for one in done) == 3


async def test_a_budget_is_set_and_deleted_once_by_a_request_id(
    client: palimpsest.Client,
) -> None:
    session = await client.create_session(f"budgets-{uuid4().hex}")
    first = await session.set_budget("day", limit_tokens=5, request_id="set")
    await session.set_budget("day", limit_tokens=6)
    assert await session.set_budget("day", limit_tokens=5, request_id="set") == first
    assert [one.limit_tokens async for one in session.budgets()] == [6]
    deletion = f"delete {session.id}"
    await session.delete_budget("day", request_id=deletion)
    await session.set_budget("day", limit_tokens=7)
    await session.delete_budget("day", request_id=deletion)
    assert [one.limit_tokens async for one in session.budgets()] == [7]


async def test_what_cannot_be_a_budget_is_refused(client: palimpsest.Client) -> None:
    session = await client.create_session(f"budgets-{uuid4().hex}")
    with pytest.raises(palimpsest.InvalidArgument, match="give limit_tokens or limit_micro_usd"):
        await session.set_budget("day")
    with pytest.raises(palimpsest.NotFound, match="no memory 'nothing'"):
        await session.memory("nothing").set_budget("day", limit_tokens=1)
    with pytest.raises(palimpsest.NotFound, match="no session 'nothing'"):
        await client.session("nothing").set_budget("day", limit_tokens=1)
    with pytest.raises(palimpsest.NotFound, match="no session 'nothing'"):
        _ = [one async for one in client.session("nothing").budgets()]
    with pytest.raises(palimpsest.InvalidArgument):
        await client.session("no/name").set_budget("day", limit_tokens=1)
    refused: list[dict[str, Any]] = [{"limit_tokens": -1}, {"limit_micro_usd": 2**63}]
    for limits in refused:
        with pytest.raises(ValueError, match="is from 0 to"):
            await session.set_budget("day", **limits)
    with pytest.raises(ValueError, match="'day' or 'total'"):
        await session.set_budget("week", limit_tokens=1)  # type: ignore[arg-type]
    assert [one async for one in session.budgets()] == []


def test_the_synchronous_client_has_budgets(address: str) -> None:
    with sync.Client(address) as client:
        session = client.create_session(f"budgets-{uuid4().hex}")
        memory_ = session.create_memory("m", schema_source="class N:\n    a: str\n")
        session.set_budget("total", limit_tokens=5)
        memory_.set_budget("day", limit_tokens=5)
        assert [one.memory for one in session.budgets()] == ["", "m"]
        assert session.id in {one.session for one in client.budgets()}
        session.delete_budget("total")
        memory_.delete_budget("day")
        assert list(session.budgets()) == []
