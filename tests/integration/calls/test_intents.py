"""Intents decide which executor makes a call, which one waits, and what is left of a dead one."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, Purpose
from service.domain.spend.budgets import BudgetPeriod
from service.domain.values.errors import BudgetExhausted
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.usecases.calls.call_ledger import RENEWED_TOGETHER, CallLedger
from storage.calls import intents
from storage.calls.call_ledger import CallOutcome, RecordedOutcome, record
from storage.engine.database import Database, Transaction, value
from storage.spend import budgets
from tests.integration.spend.test_spend import OTHER, owners
from tests.integration.support.scripted import ITEM, KEY, MEMORY, Script, make, prism_method
from tests.integration.support.statements import statements

__all__ = ["owners"]

SCOPE = CallScope(
    tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=MEMORY, occasion="revise:1:1"
)
WANTED = Reservation(purpose=Purpose.REVISE, model="m/x", deployment="", tokens=10, micro_usd=None)
CALL = Call(
    key=b"k",
    purpose=Purpose.REVISE,
    template="t/1",
    model="m/x",
    reply="paid",
    failure=None,
    input_tokens=7,
    predicted_cached_tokens=0,
    reported_cached_tokens=4,
    cache_write_tokens=None,
    output_tokens=3,
    cost_micro_usd=None,
    latency_ms=1,
)
#: The ledger's record of CALL.
PAID = ModelReply(text="paid", model="m/x", input_tokens=7, cached_tokens=4, output_tokens=3)
FAILED = replace(CALL, reply=None, failure="no")


def held(lease: Lease) -> HeldCall:
    return HeldCall(scope=SCOPE, key=b"k", lease=lease)


async def count(database: Database, table: str) -> Any:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return value(await tx.fetch(text(f"SELECT count(*) FROM {table}")))


async def test_one_of_many_makes_the_call_and_all_get_its_reply(database: Database) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    begun = await asyncio.gather(*(ledger.begin(SCOPE, b"k", WANTED) for _ in range(8)))
    leases = [one for one in begun if isinstance(one, Lease)]
    assert len(leases) == 1
    busy = [one for one in begun if isinstance(one, CallInProgress)]
    assert len(busy) == 7
    assert all(0 < one.seconds <= 60 for one in busy)
    reply = await ledger.record(SCOPE, CALL, leases[0], last=False)
    assert reply == PAID
    assert await ledger.begin(SCOPE, b"k", WANTED) == reply
    assert await count(database, "intent") == 0


async def test_what_a_provider_did_not_say_of_its_cache_stays_unknown(database: Database) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    lease = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(lease, Lease)
    silent = replace(CALL, reported_cached_tokens=None)
    recorded = await ledger.record(SCOPE, silent, lease, last=False)
    assert recorded == await ledger.begin(SCOPE, b"k", WANTED) == replace(PAID, cached_tokens=None)


async def test_how_a_reply_ended_is_stored_with_it(database: Database) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    for number, end in enumerate(End):
        key = bytes([number])
        lease = await ledger.begin(SCOPE, key, WANTED)
        assert isinstance(lease, Lease)
        ended = replace(CALL, key=key, end=end, said=f"why {number}", reasoning_tokens=number)
        recorded = await ledger.record(SCOPE, ended, lease, last=False)
        assert recorded == await ledger.begin(SCOPE, key, WANTED) == ended.as_reply()


async def test_a_lease_that_ran_out_is_taken_over_and_does_not_come_back(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=0.05)
    first = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(first, Lease)
    assert await ledger.renew(held(first)), "late, but nobody else wanted it"
    await asyncio.sleep(0.1)
    second = await ledger.begin(SCOPE, b"k", WANTED)
    assert second == Lease(fence=first.fence + 1)
    assert not await ledger.renew(held(first))
    # A reply of the first one still counts: it was paid for. The intent is the
    # second one's, until it finds the reply.
    assert await ledger.record(SCOPE, CALL, first, last=False)
    theirs = await ledger.record(SCOPE, replace(CALL, reply="again"), second, last=False)
    assert theirs == PAID
    assert (await count(database, "intent"), await count(database, "call")) == (0, 1)


@pytest.mark.parametrize(("last", "left"), [(False, 1), (True, 0)])
async def test_a_failed_try_keeps_the_intent_until_the_last(
    database: Database, last: bool, left: int
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    lease = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(lease, Lease)
    assert await ledger.record(SCOPE, FAILED, lease, last=last) is None
    assert await count(database, "intent") == left
    assert isinstance(await ledger.begin(SCOPE, b"k", WANTED), CallInProgress if left else Lease)


async def test_an_intent_that_outlived_its_stored_reply_is_removed(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=0.05)
    first = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(first, Lease)
    await asyncio.sleep(0.1)
    assert isinstance(await ledger.begin(SCOPE, b"k", WANTED), Lease)
    await ledger.record(SCOPE, CALL, first, last=False)
    await asyncio.sleep(0.1)
    assert await ledger.begin(SCOPE, b"k", WANTED) == PAID
    assert await count(database, "intent") == 0


async def test_a_lease_of_before_is_none_of_an_intent_that_began_again(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=0.05)
    first = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(first, Lease)
    await asyncio.sleep(0.1)
    second = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(second, Lease)
    assert await ledger.record(SCOPE, FAILED, second, last=True) is None
    third = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(third, Lease)
    assert third.fence > second.fence
    assert not await ledger.renew(held(first))
    await ledger.record(SCOPE, FAILED, first, last=True)
    assert await count(database, "intent") == 1, "it is the third one's"


async def test_a_claim_removes_intents_of_executors_that_died_long_ago(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    for key in (b"dead", b"late", b"alive"):
        assert isinstance(await ledger.begin(SCOPE, key, WANTED), Lease)
    async with database.transaction(DEFAULT_TENANT) as tx:
        for key, minutes in ((b"dead", 61), (b"late", 50)):
            await tx.execute(
                text("UPDATE intent SET lease_until = now() - :ago WHERE key = :key"),
                {"ago": timedelta(minutes=minutes), "key": key},
            )
    async with database.transaction(DEFAULT_TENANT) as tx:
        # A transaction that has one locked is not waited for.
        await tx.execute(text("SELECT 1 FROM intent WHERE key = 'dead' FOR UPDATE"))
        async with database.transaction(DEFAULT_TENANT) as other:
            await intents.forget(other, KEY)
    assert await count(database, "intent") == 3
    await prism_method(database, Script()).drain(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        left = await tx.fetch(text("SELECT key FROM intent ORDER BY key"))
        assert [row.key for row in left] == [b"alive", b"late"]


async def test_calls_of_a_group_get_each_what_is_theirs(database: Database) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    first = await ledger.begin(SCOPE, b"made", WANTED)
    assert isinstance(first, Lease)
    await ledger.record(SCOPE, replace(CALL, key=b"made"), first, last=False)
    assert isinstance(await ledger.begin(SCOPE, b"busy", WANTED), Lease)
    keys = (b"1", b"2", b"made", b"3", b"busy", b"4", b"1")
    begun = await asyncio.gather(*(ledger.begin(SCOPE, key, WANTED) for key in keys))
    kinds = [type(one) for one in begun]
    assert kinds == [Lease, Lease, ModelReply, Lease, CallInProgress, Lease, CallInProgress]
    outcomes = {
        key: replace(
            CALL if key != b"3" else FAILED, key=key, reply=None if key == b"3" else str(key)
        )
        for key in (b"1", b"2", b"3", b"4")
    }
    recorded = await asyncio.gather(
        *(
            ledger.record(SCOPE, outcomes[key], lease, last=True)
            for key, lease in zip(keys, begun, strict=True)
            if isinstance(lease, Lease)
        )
    )
    assert [one and one.text for one in recorded] == ["b'1'", "b'2'", None, "b'4'"]
    assert (await count(database, "intent"), await count(database, "call")) == (1, 5)


async def test_many_workers_in_any_order_never_wait_for_each_other_in_a_circle(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledgers = [CallLedger(database, lease_seconds=60) for _ in range(4)]
    owners = (SCOPE, replace(SCOPE, memory_id=None, occasion="schema:1"))

    async def work(number: int) -> list[str]:
        ledger, texts = ledgers[number % 4], []
        keys = [bytes([at]) for at in range(24)]
        for key in keys if number % 2 else reversed(keys):
            scope = owners[key[0] % 2]
            begun = await ledger.begin(scope, key, WANTED)
            while isinstance(begun, CallInProgress):
                await asyncio.sleep(0.001)
                begun = await ledger.begin(scope, key, WANTED)
            if isinstance(begun, Lease):
                call = replace(CALL, key=key, reply=key.hex())
                made = await ledger.record(scope, call, begun, last=False)
                assert made is not None
                begun = made
            texts.append(begun.text)
        return sorted(texts)

    texts = await asyncio.gather(*(work(number) for number in range(8)))
    assert texts == [[bytes([at]).hex() for at in range(24)]] * 8
    assert (await count(database, "intent"), await count(database, "call")) == (0, 24)


async def test_a_caller_that_leaves_while_a_call_begins_leaves_no_lease(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    begun = asyncio.create_task(ledger.begin(SCOPE, b"k", WANTED))
    # It has been put into a group that is being written.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    other = CallLedger(database, lease_seconds=60)
    again = await other.begin(SCOPE, b"k", WANTED)
    while isinstance(again, CallInProgress):
        await asyncio.sleep(0.01)
        again = await other.begin(SCOPE, b"k", WANTED)
    assert isinstance(again, Lease)
    assert await other.renew(held(again))


async def test_beginning_and_recording_take_three_round_trips(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, ["a"])
    sent: list[str] = []
    batch, execute = Transaction._sent, psycopg.AsyncCursor.execute

    async def counted_batch(self: Transaction, *arguments: Any, **named: Any) -> Any:
        sent.append("batch")
        return await batch(self, *arguments, **named)

    async def counted_execute(self: Any, *arguments: Any, **named: Any) -> Any:
        # A pipeline does not wait for it.
        if self.connection.info.pipeline_status is psycopg.pq.PipelineStatus.OFF:
            sent.append("execute")
        return await execute(self, *arguments, **named)

    monkeypatch.setattr(Transaction, "_sent", counted_batch)
    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted_execute)
    ledger = CallLedger(database, lease_seconds=60)
    lease = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(lease, Lease)
    await ledger.record(SCOPE, CALL, lease, last=False)
    assert sent == ["batch", "execute", "batch"]


async def test_texts_from_outside_come_through_as_they_are(database: Database) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    text = "it's 100%s \\' \\x00 %(key)s {rows} ; DROP TABLE call; -- é\n\U0001f9fe"
    scope = replace(SCOPE, occasion=text)
    wanted = replace(WANTED, model=text, deployment=text)
    lease = await ledger.begin(scope, b"%s'\\\x00", wanted)
    assert isinstance(lease, Lease)
    said = replace(CALL, key=b"%s'\\\x00", reply=text, model=text, template=text)
    recorded = await ledger.record(scope, said, lease, last=False)
    assert recorded == await ledger.begin(scope, said.key, wanted)
    assert recorded == replace(PAID, text=text, model=text)


async def test_a_reply_whose_commit_was_not_heard_of_is_its_own_when_stored_again(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    lease = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(lease, Lease)
    outcome = CallOutcome(scope=SCOPE, call=CALL, lease=lease, is_last=True)
    for _ in range(2):
        async with database.direct(DEFAULT_TENANT) as tx:
            (recorded,) = await record(tx, (outcome,))
        assert recorded == RecordedOutcome(is_new=True, reply=PAID, was_held=True)
    assert await count(database, "call") == 1
    assert await count(database, "intent") == 0


async def test_leases_of_many_tenants_are_renewed_by_few_asynchronous_commits(
    owners: Database,
) -> None:
    ledger = CallLedger(owners, lease_seconds=60)
    calls = []
    for tenant_id in (DEFAULT_TENANT, OTHER):
        scope = CallScope(
            tenant_id=tenant_id,
            session_key=session_key(tenant_id, "a"),
            memory_id=None,
            occasion="o",
        )
        keys = [number.to_bytes(2, "big") for number in range(RENEWED_TOGETHER)]
        leases = await asyncio.gather(*(ledger.begin(scope, key, WANTED) for key in keys))
        for key, lease in zip(keys, leases, strict=True):
            assert isinstance(lease, Lease)
            calls.append(HeldCall(scope=scope, key=key, lease=lease))
    lost = replace(calls[7], lease=Lease(fence=1))
    with statements() as sent:
        await CallLedger(owners, lease_seconds=600).renew_all([*calls[:7], lost, *calls[8:]])
    assert [one for one in sent if one.startswith(("BEGIN", "COMMIT"))] == ["BEGIN", "COMMIT"] * 2
    unflushed = "SET LOCAL synchronous_commit = off"
    assert [one for one in sent if "synchronous_commit" in one] == [unflushed] * 2
    for tenant_id, left in ((DEFAULT_TENANT, 1), (OTHER, 0)):
        async with owners.transaction(tenant_id) as tx:
            found = await tx.fetch(
                text("SELECT key FROM intent WHERE lease_until < now() + interval '5 minutes'")
            )
            assert [row.key for row in found] == [calls[7].key] * left
            kept = await tx.fetch(text("SHOW synchronous_commit"))
            assert kept[0][0] == "on", "it was for that transaction alone"


async def test_a_locked_lease_delays_no_other(
    database: Database,
) -> None:
    await make(database, ["a"])
    ledger = CallLedger(database, lease_seconds=60)
    calls = []
    for key in (b"1", b"2", b"3"):
        lease = await ledger.begin(SCOPE, key, WANTED)
        assert isinstance(lease, Lease)
        calls.append(HeldCall(scope=SCOPE, key=key, lease=lease))
    later = CallLedger(database, lease_seconds=600)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(text("SELECT 1 FROM intent WHERE key = '2' FOR UPDATE"))
        await later.renew_all(calls)
    short = text("SELECT key FROM intent WHERE lease_until < now() + interval '5 minutes'")
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert [row.key for row in await tx.fetch(short)] == [b"2"]
    await later.renew_all(calls)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert [row.key for row in await tx.fetch(short)] == []


@pytest.mark.parametrize("taken", [False, True])
async def test_a_renewal_that_is_lost_with_the_server_loses_no_reply_and_no_reservation(
    database: Database, taken: bool
) -> None:
    """It was not flushed: after a crash of the server the lease is as it was before it."""
    await make(database, ["a"])
    ledger, other = (CallLedger(database, lease_seconds=60) for _ in range(2))
    lease = await ledger.begin(SCOPE, b"k", WANTED)
    assert isinstance(lease, Lease)
    assert await ledger.renew(held(lease))
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(text("UPDATE intent SET lease_until = now() - interval '1 second'"))
        await budgets.put(
            tx, None, BudgetPeriod.TOTAL, limit_tokens=WANTED.tokens, limit_micro_usd=None
        )
    with pytest.raises(BudgetExhausted):
        await other.begin(SCOPE, b"another", WANTED)
    if taken:
        second = await other.begin(SCOPE, b"k", WANTED)
        assert second == Lease(fence=lease.fence + 1)
        assert not await ledger.renew(held(lease))
        assert await ledger.record(SCOPE, CALL, lease, last=False) == PAID
        again = replace(CALL, reply="again")
        assert await other.record(SCOPE, again, second, last=False) == PAID
    else:
        assert await ledger.renew(held(lease)), "nobody else wanted it"
        assert await ledger.record(SCOPE, CALL, lease, last=False) == PAID
    assert (await count(database, "intent"), await count(database, "call")) == (0, 1)
