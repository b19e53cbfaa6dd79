"""An order for a call that an executor still makes after its lease ran out joins that call."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from service.domain.calls.ledger import Call, CallScope, HeldCall, Lease
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.llm.gateway.call_executor import CallExecutor, LeaseLost
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan, CallRequest, Route
from service.llm.providers.transport import Completion
from tests.support.completions import completion
from tests.support.fake_index import DictIndex
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger, make_ask

ASK = make_ask("task")
KEY = b"k" * 32


class Slow:
    """A model that replies when it is released."""

    def __init__(self, *failures: ModelFailure) -> None:
        self.failures = list(failures)
        self.asked = 0
        self.is_asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.asked += 1
        self.is_asked.set()
        await self.go_on.wait()
        if self.failures:
            raise self.failures.pop(0)
        return completion(
            f"reply {self.asked}",
            model,
            input_tokens=3,
            output_tokens=5,
            cached_tokens=None,
            cost_micro_usd=7,
        )


class FencedLedger(Ledger):
    """Ends an intent only for the holder of its newest lease, as the tables do."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[int] = []
        #: Done by a renewal, once, before it looks.
        self.meanwhile: Callable[[], object] | None = None
        #: Done by a record, once, before it writes.
        self.before_write: Callable[[], Awaitable[object]] | None = None

    def take(self) -> Lease:
        """Takes the call over, as another worker does after the lease."""
        self.intents[KEY] = self.intents.get(KEY, 0) + 1
        return Lease(fence=self.intents[KEY])

    async def renew(self, held: HeldCall) -> bool:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            await asyncio.sleep(0)
        self.renewed.append(held.lease.fence)
        return await super().renew(held)

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        if self.before_write is not None:
            before, self.before_write = self.before_write, None
            await before()
        newest = self.intents.get(KEY)
        reply = await super().record(scope, call, lease, last=last)
        if newest is not None and newest != lease.fence:
            self.intents[KEY] = newest
        return reply


def order(lease: Lease, *, deadline: float = float("inf")) -> CallRequest:
    return CallRequest(
        ask=ASK,
        model="m/x",
        scope=SCOPE,
        key=KEY,
        lease=lease,
        lease_deadline=deadline,
        prefix=prefix_of(
            ASK.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
        ),
        route=Route(deployment="", predicted_tokens=0),
        plan=CallPlan(),
    )


def executor(model: Slow, ledger: Ledger) -> CallExecutor:
    return CallExecutor(
        model, ledger, DictIndex(), prices=lambda _: BRIEF, tries=1, lease_seconds=90
    )


async def begun(made: CallExecutor, given: CallRequest) -> asyncio.Task[ModelReply]:
    task = asyncio.create_task(made.make(given))
    await asyncio.sleep(0)
    return task


async def test_a_call_whose_lease_ran_out_in_the_hands_of_its_executor_is_paid_once() -> None:
    model, ledger = Slow(), FencedLedger()
    made = executor(model, ledger)
    first = await begun(made, order(ledger.take()))
    await model.is_asked.wait()
    # It was suspended; a worker that finds the lease expired orders the call again.
    second = await begun(made, order(ledger.take()))
    model.go_on.set()
    replies = await asyncio.gather(first, second)
    assert [one.text for one in replies] == ["reply 1", "reply 1"]
    assert (model.asked, len(ledger.calls)) == (1, 1)
    # The second one's intent is over, too.
    assert ledger.intents == {}


async def test_an_order_that_joins_while_the_reply_is_written_ends_its_own_intent() -> None:
    model, ledger = Slow(), FencedLedger()
    made = executor(model, ledger)
    joined: list[asyncio.Task[ModelReply]] = []

    async def join() -> None:
        joined.append(await begun(made, order(ledger.take())))

    ledger.before_write = join
    model.go_on.set()
    first = await made.make(order(ledger.take()))
    second = await joined[0]
    assert (first.text, second.text) == ("reply 1", "reply 1")
    assert (model.asked, len(ledger.calls), ledger.intents) == (1, 1, {})


async def test_a_lease_that_was_taken_over_for_the_same_executor_is_not_lost() -> None:
    model, ledger = Slow(), FencedLedger()
    made = executor(model, ledger)
    joined: list[asyncio.Task[ModelReply]] = []
    lease = ledger.take()

    def join() -> None:
        joined.append(asyncio.create_task(made.make(order(ledger.take()))))

    # The first order waited so long that its lease is looked after before it is made.
    ledger.meanwhile = join
    model.go_on.set()
    first = await made.make(order(lease, deadline=0.0))
    second = await joined[0]
    assert (first.text, second.text, model.asked) == ("reply 1", "reply 1", 1)
    assert ledger.renewed == [1, 2]


async def test_a_lease_that_another_process_has_is_lost() -> None:
    model, ledger = Slow(), FencedLedger()
    lease = ledger.take()
    ledger.take()
    with pytest.raises(LeaseLost):
        await executor(model, ledger).make(order(lease, deadline=0.0))
    assert model.asked == 0


async def test_a_failure_is_that_of_all_waiting_orders() -> None:
    model, ledger = Slow(ModelFailure("it broke", retryable=False)), FencedLedger()
    made = executor(model, ledger)
    first = await begun(made, order(ledger.take()))
    await model.is_asked.wait()
    second = await begun(made, order(ledger.take()))
    model.go_on.set()
    failures = await asyncio.gather(first, second, return_exceptions=True)
    assert [str(one) for one in failures] == ["it broke", "it broke"]
    assert (model.asked, len(ledger.calls), ledger.intents) == (1, 1, {})


async def test_an_order_that_joins_a_failure_that_is_written_already_makes_the_call() -> None:
    model, ledger = Slow(ModelFailure("it broke", retryable=False)), FencedLedger()
    made = executor(model, ledger)
    joined: list[asyncio.Task[ModelReply]] = []

    async def join() -> None:
        joined.append(await begun(made, order(ledger.take())))

    ledger.before_write = join
    model.go_on.set()
    with pytest.raises(ModelFailure, match="it broke"):
        await made.make(order(ledger.take()))
    assert (await joined[0]).text == "reply 2"
    assert [call.reply for call in ledger.calls] == [None, "reply 2"]
    assert ledger.intents == {}


async def test_the_same_ask_of_another_session_is_another_call() -> None:
    model, ledger = Slow(), FencedLedger()
    made = executor(model, ledger)
    first = await begun(made, order(Lease(fence=1)))
    other = replace(order(Lease(fence=1)), scope=replace(SCOPE, session_key=SCOPE.tenant_id))
    second = await begun(made, other)
    model.go_on.set()
    await asyncio.gather(first, second)
    assert model.asked == 2


async def test_who_joined_may_leave_and_the_call_goes_on() -> None:
    model, ledger = Slow(), FencedLedger()
    made = executor(model, ledger)
    first = await begun(made, order(ledger.take()))
    await model.is_asked.wait()
    second = await begun(made, order(ledger.take()))
    second.cancel()
    await asyncio.wait((second,))
    model.go_on.set()
    assert (await first).text == "reply 1"
    assert (model.asked, ledger.intents) == (1, {})
