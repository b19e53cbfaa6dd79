"""Model calls that two workers want, or whose executor lost its lease."""

import asyncio
from typing import Any

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.prompting.flows import ModelReply, Purpose
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.calls.call_ledger import CallLedger
from verification.mutants.changes import Change, Drop, Patch, Sql
from verification.mutants.mutant import Chain, Layer
from verification.mutants.servers import server
from verification.mutants.world import LEASE_SECONDS, PATIENCE_SECONDS, PRISM, Gate, Worker, World

WANTED = Reservation(purpose=Purpose.REVISE, model="m/x", deployment="", tokens=10, micro_usd=None)
KEY = b"k"


def _call(reply: str | None) -> Call:
    return Call(
        key=KEY,
        purpose=Purpose.REVISE,
        template="t/1",
        model="m/x",
        reply=reply,
        failure=None if reply else "the model is away",
        input_tokens=7,
        predicted_cached_tokens=0,
        reported_cached_tokens=None,
        cache_write_tokens=None,
        output_tokens=3,
        cost_micro_usd=None,
        latency_ms=1,
    )


async def _ledgers(world: World, number: int) -> tuple[CallScope, list[CallLedger]]:
    await world.begin(m=PRISM)
    scope = CallScope(
        tenant_id=DEFAULT_TENANT,
        session_key=world.key,
        memory_id=world.item("m").item_id,
        occasion="revise:1:1",
    )
    made = [CallLedger(world.database(f"j{n}"), lease_seconds=LEASE_SECONDS) for n in range(number)]
    return scope, made


async def _begin(ledger: CallLedger, scope: CallScope) -> Lease:
    begun = await ledger.begin(scope, KEY, WANTED)
    assert isinstance(begun, Lease), "the call is free"
    return begun


async def _run_out(world: World) -> None:
    """The holder of a lease is suspended for longer than the lease."""
    await world.run_sql(
        "UPDATE intent SET lease_until = now() - interval '1 second' WHERE session_key = %s",
        world.key,
    )


async def wanted_by_two(world: World) -> None:
    """A worker takes over while the one before it has its call with the model."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
    hold = Gate()

    async def think(_: object) -> None:
        if not hold.reached.is_set():
            await hold.pass_()

    world.model.meanwhile = think
    first = asyncio.create_task(world.drain(Worker(world, "slow"), "m"))
    await hold.wait()
    quick, refused = Worker(world, "quick"), asyncio.Event()
    begin = quick.ledger.begin

    async def notice_refusal(*arguments: Any) -> Any:
        begun = await begin(*arguments)
        if isinstance(begun, CallInProgress):
            refused.set()
        return begun

    quick.ledger.begin = notice_refusal  # type: ignore[method-assign, assignment]
    second = asyncio.create_task(world.drain(quick, "m"))
    waiting = asyncio.create_task(refused.wait())
    # Its call has to wait; without the lease it asks the model too, and gets to the head.
    await asyncio.wait(
        (second, waiting), timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    waiting.cancel()
    hold.open()
    await asyncio.gather(first, second)


async def died_behind_the_reply(world: World) -> None:
    """A worker dies between the model's reply and the commit of its step."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
    hold = Gate()
    first = asyncio.create_task(world.drain(Worker(world, "dying", hold=hold), "m"))
    await hold.wait()
    first.cancel()
    await asyncio.wait((first,))
    await _run_out(world)


async def failed_behind_the_lease(world: World) -> None:
    """A call fails after another executor has taken it over, and a third one wants it."""
    scope, (slow, other, third) = await _ledgers(world, 3)
    lost = await _begin(slow, scope)
    await _run_out(world)
    held = await _begin(other, scope)
    await slow.record(scope, _call(None), lost, last=True)
    if not isinstance(await third.begin(scope, KEY, WANTED), CallInProgress):
        world.wrong.append("two executors may make the same call")
    await other.record(scope, _call("paid"), held, last=False)


async def renewed_behind_the_lease(world: World) -> None:
    """An executor that lost a call renews its lease."""
    scope, (slow, other) = await _ledgers(world, 2)
    lost = await _begin(slow, scope)
    await _run_out(world)
    await _begin(other, scope)
    if await slow.renew(HeldCall(scope=scope, key=KEY, lease=lost)):
        world.wrong.append("a lease is renewed after another executor has taken it")


async def begun_anew(world: World) -> None:
    """A call ends and begins again while an executor that lost it still makes it."""
    scope, (slow, other, third) = await _ledgers(world, 3)
    lost = await _begin(slow, scope)
    await _run_out(world)
    # The intent of a dead executor is removed, also one that was taken over.
    await world.run_sql("DELETE FROM intent WHERE session_key = %s", world.key)
    await _begin(other, scope)
    await slow.record(scope, _call(None), lost, last=True)
    if not isinstance(await third.begin(scope, KEY, WANTED), CallInProgress):
        world.wrong.append("two executors may make the same call")


async def replied_twice(world: World) -> None:
    """A call is made a second time, since its executor was suspended, and both reply."""
    scope, (slow, other) = await _ledgers(world, 2)
    lost = await _begin(slow, scope)
    await _run_out(world)
    held = await _begin(other, scope)
    replies = [
        await other.record(scope, _call("the first"), held, last=False),
        await slow.record(scope, _call("the second"), lost, last=False),
    ]
    if len({one.text for one in replies if one is not None}) != 1:
        world.wrong.append("two replies to the same call count")


def _keeps_in_mind(_: Any) -> Any:
    async def wrong(
        self: CallLedger, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        return call.as_reply()

    return wrong


_TAKE = r"INSERT INTO intent AS i"
_END = r"DELETE FROM intent i USING"
#: No key keeps a second reply to a call out.
SECOND_REPLIES: tuple[Change, ...] = (
    Drop(table="call", name="call_once"),
    Sql(
        of=r"INSERT INTO call \(",
        cut=r"ON CONFLICT \(session_key, key\) WHERE reply IS NOT NULL DO NOTHING",
    ),
)


def _one(name: str, what: str, change: Change, counter: str) -> tuple[Layer, ...]:
    return (Layer(name=name, what=what, change=(change,), counter=counter),)


CALLS = (
    Chain(
        name="one call",
        scenario=wanted_by_two,
        layers=_one(
            "lease",
            "a call is taken over while its lease is valid",
            Sql(of=_TAKE, cut=r"WHERE i\.lease_until <= excluded\.created_at"),
            "replays",
        ),
    ),
    Chain(
        name="one payment",
        scenario=died_behind_the_reply,
        layers=_one(
            "ledger",
            "a reply is used before it is stored",
            Patch(where=CallLedger, name="record", to=_keeps_in_mind),
            "replays",
        ),
    ),
    Chain(
        name="late failure",
        scenario=failed_behind_the_lease,
        layers=_one(
            "fence",
            "an executor that lost a call ends it",
            Sql(
                of=_END,
                cut=r" AND fence = over_fence",
            ),
            "call.lease",
        ),
    ),
    Chain(
        name="late renewal",
        scenario=renewed_behind_the_lease,
        layers=_one(
            "fence",
            "an executor that lost a call renews its lease",
            Sql(of=r"^\s*UPDATE intent i SET", cut=r" AND fence = over_fence"),
            "call.lease",
        ),
    ),
    Chain(
        name="call begun anew",
        scenario=begun_anew,
        layers=_one(
            "clock",
            "a call's fencing tokens begin at 1 again",
            Sql(
                of=_TAKE,
                cut=r"\(extract\(epoch FROM clock_timestamp\(\)\) \* 1000000\)::bigint",
                put="1::bigint",
            ),
            "call.lease",
        ),
    ),
    Chain(
        name="two replies",
        scenario=replied_twice,
        layers=(
            Layer(
                name="call_once",
                what="a call may have two replies",
                change=SECOND_REPLIES,
                counter="call.reply",
            ),
        ),
    ),
)
