"""Leases of calls under way: renewed together, and as long as there are any."""

import asyncio
from dataclasses import replace

import structlog

from service.domain.calls.ledger import HeldCall, Lease
from service.llm.gateway.call_executor import CallExecutor
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.plans import CallPlan, CallRequest, Route
from service.telemetry import logs
from tests.support.fake_index import DictIndex
from tests.support.prices import PLAIN
from tests.unit.calls.scripted_calls import SCOPE, Ledger, make_ask
from tests.unit.calls.test_joined_calls import Slow

CALLS = 40


class Renewed(Ledger):
    """Says when leases are renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Queue[list[HeldCall]] = asyncio.Queue()
        self.broken = 0
        self.alone = 0

    async def renew(self, held: HeldCall) -> bool:
        self.alone += 1
        return True

    async def renew_all(self, held: "list[HeldCall]") -> None:  # type: ignore[override]
        self.held.put_nowait(held)
        if self.broken:
            self.broken -= 1
            raise ConnectionError("the database is away")


def order(number: int) -> CallRequest:
    ask = make_ask(f"{number}")
    scope = replace(SCOPE, occasion=f"o:{number}")
    return CallRequest(
        ask=ask,
        model="m/x",
        scope=scope,
        key=bytes([number]),
        lease=Lease(fence=number),
        lease_deadline=float("inf"),
        prefix=prefix_of(
            ask.segments, model="m/x", tenant_id=scope.tenant_id, owner_id=scope.owner_id
        ),
        route=Route(),
        plan=CallPlan(),
    )


def executor(model: Slow, ledger: Ledger) -> CallExecutor:
    return CallExecutor(
        model, ledger, DictIndex(), prices=lambda _: PLAIN, tries=1, lease_seconds=0.15
    )


async def test_all_calls_under_way_are_renewed_together() -> None:
    model, ledger = Slow(), Renewed()
    made = executor(model, ledger)
    making = [asyncio.create_task(made.make(order(number))) for number in range(CALLS)]
    for _ in range(3):
        held = await ledger.held.get()
        assert {(one.key, one.lease.fence) for one in held} == {
            (bytes([number]), number) for number in range(CALLS)
        }
    # One that is over is released, and the others are kept.
    model.go_on.set()
    await asyncio.gather(*making)
    assert ledger.alone == 0
    assert made._keeper is None or not made._under_way
    await made.finish()


async def test_leases_are_renewed_after_a_renewal_that_failed() -> None:
    model, ledger = Slow(), Renewed()
    ledger.broken = 2
    made = executor(model, ledger)
    making = asyncio.create_task(made.make(order(1)))
    for _ in range(4):
        assert len(await ledger.held.get()) == 1
    model.go_on.set()
    assert (await making).text == "reply 1"


async def test_a_call_that_begins_when_the_last_one_ends_is_renewed_too() -> None:
    model, ledger = Slow(), Renewed()
    made = executor(model, ledger)
    first = asyncio.create_task(made.make(order(1)))
    await model.is_asked.wait()
    model.go_on.set()
    await first
    # At once, before the renewing task has noticed that there was nothing left.
    model.go_on.clear()
    second = asyncio.create_task(made.make(order(2)))
    while True:
        held = await ledger.held.get()
        if [one.key for one in held] == [bytes([2])]:
            break
    model.go_on.set()
    await second
    while made._keeper is not None:
        await asyncio.sleep(0)
    assert not made._under_way


async def test_who_renews_for_all_says_nothing_of_the_first() -> None:
    said: list[object] = []

    class Saying(Renewed):
        async def renew_all(self, held: "list[HeldCall]") -> None:  # type: ignore[override]
            said.append(structlog.contextvars.get_contextvars())
            await super().renew_all(held)

    model, ledger = Slow(), Saying()
    made = executor(model, ledger)
    with logs.about(memory="m"):
        making = asyncio.create_task(made.make(order(1)))
        await ledger.held.get()
    model.go_on.set()
    await making
    assert said[0] == {}
