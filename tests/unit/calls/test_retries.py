"""Calls that fail: tried again, waited for, sent to another deployment, given up."""

import time

import pytest

from service.domain.calls.ledger import HeldCall, Lease
from service.domain.prompting.flows import ModelRequest
from service.llm.gateway.call_executor import (
    BACKOFF_SECONDS,
    JITTER,
    MAX_RETRY_AFTER_SECONDS,
    CallExecutor,
)
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan, CallRequest, Route
from service.llm.providers.transport import Completion
from service.settings.deployments import Deployment
from tests.support.fake_index import DictIndex
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger, Script, gateway, make_ask


async def test_what_may_pass_is_tried_again_and_every_try_is_in_the_ledger() -> None:
    waits: list[float] = []
    busy = ModelFailure("busy", retryable=True, retry_after_seconds=4.0)
    ledger = Ledger()
    calls = gateway(Script([busy, busy, "at last"]), ledger, DictIndex(), waits)
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "at last"
    assert [call.failure for call in ledger.calls] == ["busy", "busy", None]
    assert all(4.0 <= wait <= 4.0 * (1 + JITTER) for wait in waits)
    assert len(set(waits)) == 2


async def test_waits_double_and_differ_between_calls_but_not_between_runs() -> None:
    async def waits_of(text: str) -> list[float]:
        waits: list[float] = []
        script = Script([ModelFailure("busy", retryable=True) for _ in range(2)] + ["done"])
        calls = gateway(script, Ledger(), DictIndex(), waits)
        await calls.call(make_ask(text), model="m/x", scope=SCOPE)
        return waits

    first, second = await waits_of("a")
    assert BACKOFF_SECONDS <= first <= BACKOFF_SECONDS * (1 + JITTER)
    assert BACKOFF_SECONDS * 2 <= second <= BACKOFF_SECONDS * 2 * (1 + JITTER)
    assert await waits_of("a") == [first, second]
    assert await waits_of("b") != [first, second]


async def test_a_provider_may_ask_for_a_long_wait_but_not_for_any() -> None:
    waits: list[float] = []
    far = [ModelFailure("busy", retryable=True, retry_after_seconds=s) for s in (60.0, 1e9)]
    calls = gateway(Script([*far, "done"]), Ledger(), DictIndex(), waits)
    await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert waits[0] >= 60.0
    assert waits[1] <= MAX_RETRY_AFTER_SECONDS * (1 + JITTER)


@pytest.mark.parametrize(("retryable", "tries"), [(False, 1), (True, 3)])
async def test_what_does_not_pass_is_raised(retryable: bool, tries: int) -> None:
    script = Script([ModelFailure("no", retryable=retryable) for _ in range(5)])
    with pytest.raises(ModelFailure, match="no"):
        await gateway(script, Ledger(), DictIndex(), []).call(
            make_ask("a"), model="m/x", scope=SCOPE
        )
    assert script.asked == tries


async def test_a_lease_that_was_lost_between_two_tries_is_not_paid_on() -> None:
    ledger = Ledger()

    class Stopped(Script):
        async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
            try:
                return await super().complete(ask, model, plan)
            finally:
                if self.asked == 1:
                    # Another executor took the call over meanwhile, and has paid for its reply.
                    ledger.intents.clear()
                    theirs = Script(["theirs"])
                    other = gateway(theirs, ledger, DictIndex(), [])
                    await other.call(make_ask("a"), model="m/x", scope=SCOPE)

    script = Stopped([ModelFailure("busy", retryable=True), "paid twice"])
    calls = gateway(script, ledger, DictIndex(), [])
    reply = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (reply.text, script.asked) == ("theirs", 1)


async def test_a_call_that_breaks_leaves_no_intent_and_its_error_as_it_is() -> None:
    class Broken(Script):
        async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
            raise ZeroDivisionError("a prompt's text")

    ledger = Ledger()
    calls = gateway(Broken([]), ledger, DictIndex(), [])
    with pytest.raises(ZeroDivisionError):
        await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert not ledger.intents
    assert [one.failure for one in ledger.calls] == ["the call broke: ZeroDivisionError"]


@pytest.mark.parametrize(("left", "renewed"), [(0.9, 0), (0.2, 1)])
async def test_an_order_that_waited_is_renewed_before_it_is_made(left: float, renewed: int) -> None:
    ledger = Ledger(intents={b"k": 1})
    renewals: list[bytes] = []

    async def renew(held: HeldCall) -> bool:
        renewals.append(held.key)
        return True

    ledger.renew = renew  # type: ignore[method-assign]
    ask, lease_seconds = make_ask("a"), 30.0
    executor = CallExecutor(
        Script(["a reply"]),
        ledger,
        DictIndex(),
        prices=lambda _: BRIEF,
        tries=1,
        lease_seconds=lease_seconds,
    )
    prefix = prefix_of(
        ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
    )
    order = CallRequest(
        ask=ask,
        model="m/x",
        scope=SCOPE,
        key=b"k",
        lease=Lease(fence=1),
        lease_deadline=time.monotonic() + left * lease_seconds,
        prefix=prefix,
        route=Route(),
        plan=CallPlan(),
    )
    await executor.make(order)
    assert len(renewals) == renewed


def shared(script: Script, ledger: Ledger, waits: list[float], deployments: int) -> Gateway:
    """Returns a gateway for a model with several deployments."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    index = DictIndex()
    several = [Deployment(name=f"deployment-{n}", model="m/x") for n in range(deployments)]
    executor = CallExecutor(
        script, ledger, index, prices=lambda _: BRIEF, tries=2, lease_seconds=9, sleep=sleep
    )
    router = Router(several, index, lambda _: BRIEF)
    return Gateway(
        ledger,
        router,
        executor,
        prices=lambda _: BRIEF,
        lease_seconds=9,
        settings=None,
        sleep=sleep,
    )


async def test_a_call_that_fails_goes_on_to_another_deployment_at_once() -> None:
    busy, waits, ledger = ModelFailure("busy", retryable=True), list[float](), Ledger()
    calls = shared(Script([busy, busy, "at last"]), ledger, waits, 3)
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "at last"
    assert waits == []
    assert {call.deployment for call in ledger.calls} == {
        "deployment-0",
        "deployment-1",
        "deployment-2",
    }
    assert [call.failure for call in ledger.calls] == ["busy", "busy", None]
    assert len({call.key for call in ledger.calls}) == 1, "the same model, the same answer"
    assert ledger.intents == {}


async def test_where_all_deployments_fail_the_last_is_tried_as_a_single_one_is() -> None:
    busy, waits = ModelFailure("busy", retryable=True), list[float]()
    script, ledger = Script([busy] * 9), Ledger()
    with pytest.raises(ModelFailure, match="busy"):
        await shared(script, ledger, waits, 3).call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (script.asked, len(waits)) == (2 + 2, 1)
    assert ledger.intents == {}


async def test_what_is_refused_is_not_asked_of_another_deployment() -> None:
    script = Script([ModelFailure("bad", retryable=False), "never"])
    with pytest.raises(ModelFailure, match="bad"):
        await shared(script, Ledger(), [], 3).call(make_ask("a"), model="m/x", scope=SCOPE)
    assert script.asked == 1
